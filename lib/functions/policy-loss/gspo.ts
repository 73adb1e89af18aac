// GSPO: PPO with one ratio per row (sequence) instead of one ratio per token.

import { advise } from '../../core/advice.js';
import type { MetricsOf } from '../../core/declaration.js';
import { aggregationOption } from '../../core/options.js';
import { CLIP_RANGE } from './clip-range.js';
import { POLICY_LOSS_FN, policyLossClass, RATIO_KEYS } from './policy-loss-fn.js';

// Warns if the aggregation is not the one with which GSPO was published.
function warnOfAggregation(mode: string): void {
  if (mode !== 'seq-mean-token-mean')
    advise(
      'POLICY_LOSS_GSPO_AGGREGATION',
      `GSPO was published with loss_agg_mode seq-mean-token-mean, not ${mode}`,
    );
}

/** GSPO: PPO's clipped loss, in which every token has the geometric mean of its row's ratios as its ratio. */
export class GSPOLossFn extends policyLossClass(
  {
    name: 'gspo',
    summary: "PPO's clip on the geometric mean of the sequence's ratios",
    details: [
      'The ratio is exp(mean of logprob − old_logprob over the unmasked tokens of the row), and the gradient flows to each of them.',
      'An aggregation other than the published one is allowed, with a warning.',
    ],
    source: ['arXiv 2507.18071', 'Trinity-RFT'],
    reads: RATIO_KEYS,
    options: {
      clipRange: CLIP_RANGE.clipRange,
      clipRangeLow: { ...CLIP_RANGE.clipRangeLow, trinity: 0.0003, typical: [0.0003, 0.3] },
      clipRangeHigh: { ...CLIP_RANGE.clipRangeHigh, trinity: 0.0004, typical: [0.0004, 0.3] },
      lossAggMode: aggregationOption('seq-mean-token-mean'),
    },
    stopsGradient: true,
    metrics: {
      pg_clipfrac: { unit: 'fraction of tokens' },
      ppo_kl: { unit: 'nats per token' },
      ppo_kl_seq: { unit: 'nats per token, mean over rows' },
      pg_loss: { unit: 'loss' },
    },
    numerics: {
      range: "the row's mean of logprob − old_logprob up to 88.7",
      outside:
        'A < 0: the ratio overflows, loss and gradient are ±Infinity; A ≥ 0: the clip bounds it; below −87.3 the ratio ' +
        'is 0',
      overflows: 'for A < 0',
    },
  },
  ({ lossAggMode }) => {
    warnOfAggregation(lossAggMode);
    return {};
  },
) {
  static {
    POLICY_LOSS_FN.register('gspo', GSPOLossFn);
  }
}

/** Options of {@link GSPOLossFn}. It requires clipRange, or both clipRangeLow and clipRangeHigh. */
export type GSPOLossOptions = NonNullable<ConstructorParameters<typeof GSPOLossFn>[0]>;
/** Metrics of {@link GSPOLossFn}. */
export type GSPOMetrics = MetricsOf<(typeof GSPOLossFn)['declaration']['metrics']>;
