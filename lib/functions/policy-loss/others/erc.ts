// ERC: PPO without gradients where the entropy has changed much.
import type { MetricsOf } from '../../../core/declaration.js';
import { aggregationOption } from '../../../core/options.js';
import { expressionLossClass } from '../expression-loss.js';
import { POLICY_LOSS_FN, RATIO_KEYS } from '../policy-loss-fn.js';
import { aggregated } from './aggregation.js';
import { clipRange, dualClip, gentleSurrogate, limited, surrogateOf } from './surrogate.js';

/** ERC (entropy ratio clipping): PPO or GPPO. Only tokens whose entropy is near its old value have a gradient. */
export class ERCLossFn extends expressionLossClass(
  {
    name: 'erc',
    summary: "PPO or GPPO, with gradients only where the entropy's ratio to its old value is within bounds",
    details: ['The loss and the metrics count all tokens.'],
    source: ['arXiv 2512.05591', 'ERC'],
    reads: [...RATIO_KEYS, 'entropy', 'old_entropy'],
    options: {
      base: {
        type: 'choice',
        choices: ['ppo', 'gppo'],
        default: 'ppo',
        help: 'the loss: PPO, or ce_gppo with both factors 1',
      },
      ...clipRange(0.2, 0.28),
      ...dualClip(10),
      entropyRatioLow: {
        type: 'number',
        default: 0.95,
        atLeast: 0,
        typical: [0.8, 0.99],
        help: 'a token has a gradient only if the ratio is above this',
      },
      entropyRatioHigh: {
        type: 'number',
        default: 1.05,
        atLeast: 0,
        typical: [1.01, 1.2],
        help: 'a token has a gradient only if the ratio is below this',
      },
      lossAggMode: aggregationOption('token-mean'),
    },
    metrics: {
      pg_clipfrac: { unit: 'fraction of tokens' },
      ppo_kl: { unit: 'nats per token' },
      entropy_kept_fraction: { unit: 'fraction of tokens' },
      pg_loss: { unit: 'loss' },
    },
    numerics: {
      range: 'logprob − old_logprob from −20 to 20',
      outside: 'the difference is clipped to ±20: the loss saturates and the gradient is 0',
    },
  },
  (symbols, options) => {
    const { d, H, oldEntropy, clip, exp, select, sg } = symbols;
    const log = clip(d, -20, 20);
    const base =
      options.base === 'ppo'
        ? surrogateOf(symbols, exp(log), options)
        : gentleSurrogate(symbols, log, options, { below: 1, above: 1 });
    const perToken = limited(symbols, base.loss, options.clipRatioC).loss;
    const ratio = H.add(1e-8).div(oldEntropy.add(1e-8));
    const isNear = ratio.gt(options.entropyRatioLow).and(ratio.lt(options.entropyRatioHigh));
    const kept = select(isNear, perToken, sg(perToken));
    const { loss, pg_loss } = aggregated(symbols, kept, options.lossAggMode);
    return {
      loss,
      metrics: {
        pg_clipfrac: { token: base.clipped },
        ppo_kl: { token: log.neg() },
        entropy_kept_fraction: { token: isNear },
        pg_loss,
      },
    };
  },
) {
  static {
    POLICY_LOSS_FN.register('erc', ERCLossFn);
  }
}

/** Options of {@link ERCLossFn}. */
export type ERCLossOptions = NonNullable<ConstructorParameters<typeof ERCLossFn>[0]>;
/** Metrics of {@link ERCLossFn}. */
export type ERCMetrics = MetricsOf<(typeof ERCLossFn)['declaration']['metrics']>;
