// The losses of process reward models, which classify the tokens at the ends of steps.
import { LossError } from '../base/errors.js';
import { list } from '../base/option.js';
import { float32Of } from '../batch/convert.js';
import { readTokenMatrix } from '../logits/loss-inputs.js';
import type { Expression } from '../program/expression.js';
import { atTarget, expected, logSoftmax } from './distillation-terms.js';
import type { EntrySymbols } from './entries.js';
import { logitsLoss } from './logits-loss.js';
import type { MaskInputs } from './logits-loss-fn.js';
import { hasInput } from './logits-parts.js';
import {
  ALL,
  byItems,
  isRight,
  LABELS,
  marksOfLabels,
  maskUnlabelled,
  NO_LABEL,
  NUMERICS,
} from './sft-terms.js';
import { FRACTION } from './units.js';

/** The loss of TRL's PRMTrainer, over two classes. */
export class TRLPRMLossFn extends logitsLoss({
  name: 'trl/prm',
  summary: 'ℓ = −ln p of the label, the mean over the labels',
  details: [
    'logits has the two classes of each token: a wrong step, and a right one. Only the last token of a step has a label. The target of the others is −100.',
  ],
  source: ['TRL'],
  reads: LABELS,
  options: {},
  metrics: { accuracy: FRACTION },
  numerics: NUMERICS,
  mask: maskUnlabelled,
  entries: () => ALL,
  weights: (symbols) => byItems(symbols, {}),
  formula: (symbols) => {
    const { student, batchWeights, weighted, mean } = symbols;
    const nll = atTarget(symbols, logSoftmax(symbols, student)).neg();
    return { loss: weighted(batchWeights[0], nll), metrics: { accuracy: mean(isRight(symbols, student)) } };
  },
}) {}

/** The loss of OpenRLHF's process reward models. */
export class OpenRLHFPRMLossFn extends logitsLoss({
  name: 'openrlhf/prm',
  summary: 'ℓ = −ln p of the label, or the cross-entropy of a soft label; the mean over the labels',
  details: [
    'The mask chooses the tokens at the ends of steps. acc counts those whose target is −100 as wrong.',
    'If the batch has target_probs, the labels are soft: the first of two reward tokens has that probability, and the second the rest.',
  ],
  source: ['OpenRLHF'],
  reads: [...LABELS, 'target_probs'],
  options: {
    rewardTokenIds: list('number', {
      typical: [
        [3, 5],
        [2, 7, 4],
      ],
      help: 'the tokens among which the model chooses; the whole vocabulary if absent',
    }),
  },
  metrics: { acc: FRACTION },
  numerics: NUMERICS,
  mask: (mask, { rewardTokenIds: ids }, inputs) => {
    if (hasInput(inputs.batch, inputs.mapper, 'target_probs')) return softLabels(inputs);
    if (ids) checkLabels(mask, ids, inputs);
    return marksOfLabels(inputs);
  },
  entries: ({ rewardTokenIds: ids }, has) => {
    const isSoft = has('target_probs');
    if (ids || isSoft) checkIds(ids ?? [], isSoft);
    return { ...(isSoft ? { over: 'vocabulary' } : ALL), ...(ids && { named: { option: OPTION, ids } }) };
  },
  // The third number is not a share of the batch, but the soft label.
  weights: ({ mark, batchSum, tokens, max }) => {
    const isLabel = mark.ge(0);
    return [isLabel.div(max(batchSum(isLabel), 1)), isLabel.div(max(tokens, 1)), max(mark, 0)];
  },
  formula: (symbols, { rewardTokenIds: ids }, has) => {
    const { student, isAt, select, batchWeights, weighted, total } = symbols;
    const x = ids
      ? select(
          ids.map(isAt).reduce((some, one) => some.or(one)),
          student,
          LOWEST,
        )
      : student;
    const s = logSoftmax(symbols, x);
    const { nll, isHit } = has('target_probs')
      ? softLoss(symbols, s, ids!)
      : { nll: atTarget(symbols, s).neg(), isHit: ids ? isRightAmong(symbols, x, ids) : isRight(symbols, x) };
    return {
      loss: weighted(batchWeights[0], nll),
      metrics: { acc: total(weighted(batchWeights[1], isHit)) },
    };
  },
}) {}

const OPTION = 'reward_token_ids';

// A logit with probability 0.
const LOWEST = -1e30;

// Returns the cross-entropy of a soft label, and whether the larger of both logits is that of the likelier label.
function softLoss(symbols: EntrySymbols, s: Expression, ids: readonly number[]) {
  const { isAt, rowSum, select, constant, batchWeights } = symbols;
  const [first, second] = ids.map((id) => rowSum(select(isAt(id), s, 0))) as [Expression, Expression];
  const p = batchWeights[2];
  const log = expected(symbols, p, first).add(expected(symbols, constant(1).sub(p), second));
  return { nll: log.neg(), isHit: select(p.ge(0.5), first.ge(second), second.gt(first)) };
}

// Returns whether the label has the largest logit; of equal ones, that of the first id in the list.
function isRightAmong(symbols: EntrySymbols, logit: Expression, ids: readonly number[]): Expression {
  const { isAt, rowMax, rowSum, select, constant } = symbols;
  const largest = rowMax(logit);
  return ids.reduceRight((ofLater, id) => {
    const isLargest = rowSum(select(isAt(id), logit.ge(largest), 0));
    return select(isLargest, atTarget(symbols, isAt(id)), ofLater);
  }, constant(0));
}

function softLabels({ batch, mapper, layout: { tokens } }: MaskInputs): Float32Array {
  return float32Of(readTokenMatrix(batch, mapper, 'target_probs', tokens), 0, tokens);
}

function checkIds(ids: readonly number[], isSoft: boolean): void {
  const areIds = ids.every((id) => Number.isInteger(id) && id >= 0) && new Set(ids).size === ids.length;
  if (areIds && (isSoft ? ids.length === 2 : ids.length > 0)) return;
  throw new LossError('ERR_INVALID_OPTION', {
    option: OPTION,
    expected: isSoft ? 'two token ids, because the batch has target_probs' : 'different token ids',
    received: `[${ids.join(', ')}]`,
  });
}

function checkLabels(mask: Uint8Array, ids: readonly number[], { targets }: MaskInputs): void {
  for (const [index, target] of targets().entries())
    if (mask[index] && target !== NO_LABEL && !ids.includes(target))
      throw new LossError('ERR_INVALID_INPUT', {
        key: 'targets',
        index,
        expected: `one of ${OPTION} (${ids.join(', ')}), or ${NO_LABEL} for no label`,
        received: String(target),
      });
}
