// M2PO: decoupled PPO without the tokens whose policies differ most.
import type { MetricsOf } from '../../../core/declaration.js';
import type { Expression } from '../../../program/expression.js';
import { lossMetric } from '../../../program/loss-program.js';
import { isAmongSmallest } from '../../order-statistics.js';
import { expressionLossClass } from '../expression-loss.js';
import { POLICY_LOSS_FN, RATIO_KEYS } from '../policy-loss-fn.js';
import { TOKEN_MEAN } from './aggregation.js';
import { clipRange, DUAL_CLIP, limited, surrogateOf } from './surrogate.js';

const PARTLY = { when: 'when the whole batch is computed in one call' } as const;

/** M2PO as in AReaL: the tokens with the largest squared log-ratios are dropped until the mean of the others is small. */
export class M2POLossFn extends expressionLossClass(
  {
    name: 'm2po',
    summary:
      'decoupled PPO of the tokens that are left when those with the largest (old − prox)² are dropped',
    details: [
      'Tokens are dropped until the mean of (old_logprob − prox_logprob)² is below m2_threshold. One token stays.',
      'The loss is the mean over the tokens that are left.',
    ],
    source: ['arXiv 2510.01161', 'AReaL'],
    reads: [...RATIO_KEYS, 'prox_logprob'],
    options: {
      ...clipRange(0.2, 0.2),
      ...DUAL_CLIP,
      ...TOKEN_MEAN,
      m2Threshold: {
        type: 'number',
        default: 0.04,
        above: 0,
        typical: [0.001, 0.1],
        help: 'the mean square of the log-ratios of the tokens that are left is below this',
      },
    },
    metrics: {
      pg_loss: { unit: 'loss' },
      importance_weight: { unit: 'ratio', ...PARTLY },
      approx_kl: { unit: 'nats per token', ...PARTLY },
      clip_ratio: { unit: 'fraction of tokens', ...PARTLY },
      dual_clip_ratio: { unit: 'fraction of tokens', ...PARTLY },
      m2_masked_fraction: { unit: 'fraction of tokens' },
    },
    numerics: {
      range: 'differences of log-probabilities from −20 to 20',
      outside: 'ratios are not clipped where A < 0: they overflow from 88 on',
      overflows: 'for A < 0',
    },
  },
  (symbols, options) => {
    const { lp, old, prox, exp, max, select, square, batchSum, batchUnderMean } = symbols;
    const squares = square(old.sub(prox));
    const count = max(batchUnderMean(squares, options.m2Threshold), 1);
    // This many tokens are kept. A further pass to count them would only differ in rows that count more than once.
    const kept = isAmongSmallest(symbols, squares, count);
    const d = lp.sub(prox);
    const ppo = surrogateOf(symbols, exp(d), options);
    const { loss: perToken, cut } = limited(symbols, ppo.loss, options.clipRatioC);
    const loss = select(kept, perToken, 0).div(count);
    const keptMean = (x: Expression) => ({ batch: batchSum(select(kept, x, 0)).div(count.add(1e-8)) });
    return {
      loss,
      metrics: {
        pg_loss: lossMetric(symbols, loss),
        importance_weight: keptMean(exp(d)),
        approx_kl: keptMean(d),
        clip_ratio: keptMean(ppo.clipped),
        dual_clip_ratio: keptMean(cut),
        m2_masked_fraction: { token: kept.not() },
      },
    };
  },
) {
  static {
    POLICY_LOSS_FN.register('m2po', M2POLossFn);
  }
}

/** Options of {@link M2POLossFn}. */
export type M2POLossOptions = NonNullable<ConstructorParameters<typeof M2POLossFn>[0]>;
/** Metrics of {@link M2POLossFn}. */
export type M2POMetrics = MetricsOf<(typeof M2POLossFn)['declaration']['metrics']>;
