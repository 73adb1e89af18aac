// CE-GPPO: PPO whose clipped tokens keep a bounded gradient.
import type { MetricsOf } from '../../../core/declaration.js';
import { aggregationOption } from '../../../core/options.js';
import { expressionLossClass } from '../expression-loss.js';
import { POLICY_LOSS_FN, RATIO_KEYS } from '../policy-loss-fn.js';
import { aggregated } from './aggregation.js';
import { CLIP_METRICS, clipMetrics, clipRange, dualClip, gentleSurrogate, limited } from './surrogate.js';

/** CE-GPPO: PPO whose clipped tokens keep a bounded gradient. With both factors 1, it is GPPO. */
export class CEGPPOLossFn extends expressionLossClass(
  {
    name: 'ce_gppo',
    summary: 'PPO whose clipped tokens keep a gradient, scaled by β₁ below the range and by β₂ above it',
    details: ['GPPO is beta1 1, beta2 1.'],
    source: ['arXiv 2509.20712', 'arXiv 2508.07629', 'CE-GPPO'],
    reads: RATIO_KEYS,
    options: {
      ...clipRange(0.2, 0.2),
      beta1: {
        type: 'number',
        default: 0.75,
        atLeast: 0,
        typical: [0, 1.5],
        help: 'factor of tokens with A < 0 whose ratio is below the range',
      },
      beta2: {
        type: 'number',
        default: 1,
        atLeast: 0,
        typical: [0, 1.5],
        help: 'factor of tokens with A > 0 whose ratio is above the range',
      },
      ...dualClip(10),
      lossAggMode: aggregationOption('token-mean'),
    },
    metrics: CLIP_METRICS,
    numerics: {
      range: 'logprob − old_logprob from −20 to 20',
      outside: 'the dual clip limits the loss where A < 0; without it, the ratio overflows from 88 on',
    },
  },
  (symbols, options) => {
    const { d } = symbols;
    const gentle = gentleSurrogate(symbols, d, options, { below: options.beta1, above: options.beta2 });
    const { loss: perToken, cut } = limited(symbols, gentle.loss, options.clipRatioC);
    const { loss, pg_loss } = aggregated(symbols, perToken, options.lossAggMode);
    return { loss, metrics: { ...clipMetrics(gentle.clipped, cut, d), pg_loss } };
  },
) {
  static {
    POLICY_LOSS_FN.register('ce_gppo', CEGPPOLossFn);
  }
}

/** Options of {@link CEGPPOLossFn}. */
export type CEGPPOLossOptions = NonNullable<ConstructorParameters<typeof CEGPPOLossFn>[0]>;
/** Metrics of {@link CEGPPOLossFn}. */
export type CEGPPOMetrics = MetricsOf<(typeof CEGPPOLossFn)['declaration']['metrics']>;
