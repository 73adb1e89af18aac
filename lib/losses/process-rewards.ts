// The losses of process reward models, which classify the tokens at the ends of steps.
import { list } from '../base/option.js';
import { atTarget, logSoftmax } from './distillation-terms.js';
import { logitsLoss } from './logits-loss.js';
import { ALL, byItems, isRight, LABELS, maskUnlabelled } from './sft-terms.js';
import { FRACTION } from './units.js';

const NUMERICS = {
  range: 'any logits; a logit of −Infinity has probability 0',
  outside: 'the loss is infinite where the logit of a label is −Infinity',
};

/** The loss of TRL's PRMTrainer, over two classes. */
export class TRLPRMLossFn extends logitsLoss({
  name: 'trl/prm',
  summary: 'ℓ = −ln p of the label, the mean over the labels',
  details: [
    'logits has the two classes of each token: wrong and right. Only the last token of a step has a label; the target of the others is −100.',
  ],
  source: ['TRL'],
  reads: LABELS,
  options: {},
  metrics: { accuracy: FRACTION },
  numerics: NUMERICS,
  mask: (mask, _, inputs) => maskUnlabelled(mask, inputs),
  entries: () => ALL,
  weights: (symbols) => byItems(symbols, {}),
  formula: (symbols) => {
    const { student, weights, weighted, mean } = symbols;
    const s = logSoftmax(symbols, student);
    return {
      loss: weighted(weights[0], atTarget(symbols, s).neg()),
      metrics: { accuracy: mean(isRight(symbols, student)) },
    };
  },
}) {}

void list;
