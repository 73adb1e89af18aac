// SkyRL's rollout_is: a policy gradient weighted by the ratio to the sampler, without tokens whose ratio is far from 1.
import type { MetricsOf } from '../../../core/declaration.js';
import { expressionLossClass } from '../expression-loss.js';
import { POLICY_LOSS_FN } from '../policy-loss-fn.js';
import { aggregated, MEANS } from './aggregation.js';
import { clipRange } from './surrogate.js';

/** SkyRL's rollout_is: ℓ = −sg(ρ)·A·logprob, or 0 where the ratio ρ to the sampler is outside the range. */
export class RolloutISLossFn extends expressionLossClass(
  {
    name: 'rollout_is',
    summary: 'ℓ = −sg(ρ)·A·logprob where the ratio ρ to the sampler is within the range, and 0 elsewhere',
    source: ['SkyRL'],
    reads: ['rollout_logprob', 'action_mask', 'advantages'],
    options: { ...clipRange(0.2, 0.28), ...MEANS },
    metrics: { pg_clipfrac: { unit: 'fraction of tokens' }, pg_loss: { unit: 'loss' } },
    numerics: {
      range: 'logprob − rollout_logprob from −20 to 20',
      outside: 'the difference is clipped to ±20',
    },
  },
  (symbols, options) => {
    const { A, lp, rollout, clip, exp, select, sg } = symbols;
    const ratio = sg(exp(clip(lp.sub(rollout), -20, 20)));
    const isInside = ratio.gt(1 - options.clipRangeLow).and(ratio.lt(1 + options.clipRangeHigh));
    const perToken = select(isInside, ratio, 0).mul(A.neg()).mul(lp);
    const { loss, pg_loss } = aggregated(symbols, perToken, options.lossAggMode);
    return { loss, metrics: { pg_clipfrac: { token: isInside.not() }, pg_loss } };
  },
) {
  static {
    POLICY_LOSS_FN.register('rollout_is', RolloutISLossFn);
  }
}

/** Options of {@link RolloutISLossFn}. */
export type RolloutISLossOptions = NonNullable<ConstructorParameters<typeof RolloutISLossFn>[0]>;
/** Metrics of {@link RolloutISLossFn}. */
export type RolloutISMetrics = MetricsOf<(typeof RolloutISLossFn)['declaration']['metrics']>;
