// UP-GRPO: a plain policy gradient for positive advantages, and PPO for the others.
import type { MetricsOf } from '../../../core/declaration.js';
import { aggregationOption } from '../../../core/options.js';
import { expressionLossClass } from '../expression-loss.js';
import { POLICY_LOSS_FN, RATIO_KEYS } from '../policy-loss-fn.js';
import { aggregated } from './aggregation.js';
import {
  CLIP_METRICS,
  clipMetrics,
  clipRange,
  DUAL_CLIP,
  limited,
  surrogateOf,
  unitRatio,
} from './surrogate.js';

/** UP-GRPO: tokens with A > 0 have the unclipped policy gradient, and all others have PPO's loss. */
export class UPLossFn extends expressionLossClass(
  {
    name: 'up',
    summary: 'ℓ = −A·exp(logprob − sg(logprob)) where A > 0, and max(−A·r, −A·clip(r)) elsewhere',
    details: ['The upper end of the clip range never has an effect.'],
    source: ['arXiv 2607.06987'],
    reads: RATIO_KEYS,
    options: { ...clipRange(0.2, 0.2), ...DUAL_CLIP, lossAggMode: aggregationOption('token-mean') },
    metrics: CLIP_METRICS,
    numerics: {
      range: 'logprob − old_logprob from −20 to 20',
      outside: 'the ratio overflows from 88 on where A < 0, unless the dual clip limits the loss',
      overflows: 'for A < 0',
    },
  },
  (symbols, options) => {
    const { A, lp, d, r, select } = symbols;
    const ppo = limited(symbols, surrogateOf(symbols, r, options).loss, options.clipRatioC);
    const perToken = select(A.gt(0), A.neg().mul(unitRatio(symbols, lp)), ppo.loss);
    const { loss, pg_loss } = aggregated(symbols, perToken, options.lossAggMode);
    const clipped = A.lt(0).and(r.lt(1 - options.clipRangeLow));
    return { loss, metrics: { ...clipMetrics(clipped, ppo.cut, d), pg_loss } };
  },
) {
  static {
    POLICY_LOSS_FN.register('up', UPLossFn);
  }
}

/** Options of {@link UPLossFn}. */
export type UPLossOptions = NonNullable<ConstructorParameters<typeof UPLossFn>[0]>;
/** Metrics of {@link UPLossFn}. */
export type UPMetrics = MetricsOf<(typeof UPLossFn)['declaration']['metrics']>;
