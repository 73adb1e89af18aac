// DPO: learns from pairs of answers which of the two is preferred.
import type { Input } from '../../core/batch-reader.js';
import type { Normalizer } from '../../core/counts.js';
import type { MetricsOf } from '../../core/declaration.js';
import { LossError } from '../../core/errors.js';
import type { Coefficients } from '../../core/evaluator.js';
import { checkPairs } from './pairs.js';
import { POLICY_LOSS_FN, policyLossClass } from './policy-loss-fn.js';

/** DPO: a loss over pairs of rows. It rewards a policy that prefers the chosen row to the rejected one. */
export class DPOLossFn extends policyLossClass({
  name: 'dpo',
  summary: '−ln σ(β·margin), averaged over pairs of rows',
  details: [
    "The margin is the chosen row's sum of logprob − ref_logprob minus the rejected row's sum.",
    'Even rows are chosen, and each odd row is the rejected answer to the row before it.',
  ],
  source: ['arXiv 2305.18290', 'Trinity-RFT'],
  reads: ['ref_logprob', 'action_mask'],
  pairs: true,
  options: {
    beta: { type: 'number', default: 0.1, typical: [0.02, 0.5], help: 'the margin is multiplied by this' },
    labelSmoothing: {
      type: 'number',
      default: 0,
      atLeast: 0,
      atMost: 1,
      typical: [0, 0.4],
      help: 'the probability that a label is wrong',
    },
    pairwise: {
      type: 'boolean',
      default: true,
      help: "a loss per pair, as in the paper; otherwise Trinity's arithmetic, one margin for the batch",
    },
  },
  metrics: {
    chosen_reward: { unit: 'nats times beta' },
    rejected_reward: { unit: 'nats times beta' },
    accuracy_mean: { unit: 'fraction of pairs' },
    dpo_loss: { unit: 'loss' },
  },
  numerics: {
    range: 'sums of logprob − ref_logprob over a row up to 1e37',
    outside: 'margins of any size are linear or 0, without overflow; row sums are float64',
  },
}) {
  static {
    POLICY_LOSS_FN.register('dpo', DPOLossFn);
  }

  /** @internal */
  override coefficients(input: Input, normalizer: Normalizer | undefined): Coefficients {
    const { pairwise } = this.nativeOptions;
    if (!pairwise && normalizer !== undefined)
      throw new LossError('ERR_INVALID_OPTION', {
        option: 'normalizer',
        expected: (spell) =>
          `no normalizer with ${spell('pairwise')} false, which computes one margin over the whole batch`,
        received: 'a normalizer',
      });
    if (pairwise) checkPairs(input, 'pairwise DPO');
    return super.coefficients(input, normalizer);
  }
}

/** Options of {@link DPOLossFn}. */
export type DPOLossOptions = NonNullable<ConstructorParameters<typeof DPOLossFn>[0]>;
/** Metrics of {@link DPOLossFn}. */
export type DPOMetrics = MetricsOf<(typeof DPOLossFn)['declaration']['metrics']>;
