// TRL's DAPO: the clipped surrogate, averaged over all tokens of a global batch.
import type { MetricsOf } from '../../../core/declaration.js';
import { expressionLossClass } from '../expression-loss.js';
import { POLICY_LOSS_FN, RATIO_KEYS } from '../policy-loss-fn.js';
import { CLIP, CLIP_METRICS, clipped } from './clipped.js';

/** DAPO as in TRL's GRPO trainer: the clipped surrogate without a dual clip, averaged over all tokens. */
export class TRLDAPOLossFn extends expressionLossClass(
  {
    name: 'trl/dapo',
    summary: 'ℓ = −min(min(r, δ)·A, clip(r)·A)',
    source: ['arXiv 2503.14476', 'TRL'],
    reads: RATIO_KEYS,
    options: {
      ...CLIP,
      numItemsInBatch: {
        type: 'integer',
        atLeast: 0,
        typical: [0, 200],
        help: 'the loss is divided by this; the number of unmasked tokens of the batch if absent',
      },
      numProcesses: {
        type: 'integer',
        default: 1,
        atLeast: 1,
        typical: [1, 8],
        help: 'the number of processes whose gradients are averaged; the loss is multiplied by it',
      },
    },
    metrics: CLIP_METRICS,
    numerics: {
      range: 'logprob − old_logprob from −20 to 20',
      outside: 'the ratio is not clipped where A < 0 and no delta is given: it overflows from 88 on',
    },
  },
  (symbols, options) => {
    const { r, tokens, constant, max } = symbols;
    const { loss, metrics } = clipped(symbols, r, options);
    const divisor = max(options.numItemsInBatch ?? tokens, 1);
    return { loss: loss.mul(constant(options.numProcesses).div(divisor)), metrics };
  },
) {
  static {
    POLICY_LOSS_FN.register('trl/dapo', TRLDAPOLossFn);
  }
}

/** Options of {@link TRLDAPOLossFn}. */
export type TRLDAPOLossOptions = NonNullable<ConstructorParameters<typeof TRLDAPOLossFn>[0]>;
/** Metrics of {@link TRLDAPOLossFn}. */
export type TRLDAPOMetrics = MetricsOf<(typeof TRLDAPOLossFn)['declaration']['metrics']>;
