// Decoupled PPO: the ratio is to the proximal policy, and weights or rejections correct for the behaviour policy.
import type { MetricsOf } from '../../../core/declaration.js';
import type { CheckedOptions } from '../../../core/options.js';
import type { Expression, ProgramSymbols } from '../../../program/expression.js';
import { lossMetric } from '../../../program/loss-program.js';
import { expressionLossClass } from '../expression-loss.js';
import { POLICY_LOSS_FN, RATIO_KEYS } from '../policy-loss-fn.js';
import { TOKEN_MEAN } from './aggregation.js';
import { bounded, k3, within } from './bounds.js';
import { clipRange, DUAL_CLIP, limited, surrogateOf } from './surrogate.js';

const REJECTION = {
  rejectionLevel: {
    type: 'choice',
    choices: ['token', 'sequence'],
    help: 'what is judged by rejectionMetric: tokens or rows; nothing if absent, and tokens then have no weights',
  },
  rejectionAction: {
    type: 'choice',
    choices: ['mask', 'clamp'],
    default: 'mask',
    needs: { clamp: { rejectionMetric: ['ratio'] } },
    help: 'what happens out of bounds: tokens are rejected, or their weights are limited to the bounds',
  },
  rejectionMetric: {
    type: 'choice',
    choices: ['ratio', 'kl_k1', 'kl_k2', 'kl_k3'],
    default: 'ratio',
    help: 'the ratio of prox_logprob to old_logprob, or an estimate of their KL divergence',
  },
  rejectionAgg: {
    type: 'choice',
    choices: ['sum', 'mean', 'max'],
    default: 'sum',
    help: "how a row's value comes from those of its tokens; the log-ratios for the metric ratio",
  },
  rejectionLower: {
    type: 'number',
    typical: [-0.3, 0.97],
    help: 'the lower bound of rejectionMetric; none if absent',
  },
  rejectionUpper: {
    type: 'number',
    default: 5,
    nullable: true,
    typical: [1.05, 5],
    help: 'the upper bound of rejectionMetric; null for none',
  },
} as const;

/** Decoupled PPO, as in AReaL and RLinf: old_logprob is of the behaviour policy, and the ratio is to prox_logprob. */
export class DecoupledPPOLossFn extends expressionLossClass(
  {
    name: 'decoupled_ppo',
    summary:
      'ℓ = ω·max(−A·ρ, −A·clip(ρ)), where ρ is the ratio to prox_logprob, and ω its ratio to old_logprob',
    details: ['As in AReaL, tokens have weights only if rejection_level is given.'],
    source: ['arXiv 2110.00641', 'arXiv 2505.24298', 'AReaL', 'RLinf'],
    reads: [...RATIO_KEYS, 'prox_logprob'],
    options: {
      ...clipRange(0.2, 0.2),
      ...DUAL_CLIP,
      ...TOKEN_MEAN,
      importanceSamplingLevel: {
        type: 'choice',
        choices: ['token', 'sequence'],
        default: 'token',
        help: "the ratio of each token, or the geometric mean of its row's; the latter also averages advantages",
      },
      ...REJECTION,
      rejectedInDenominator: {
        type: 'boolean',
        default: true,
        help: 'divide by the number of all unmasked tokens; otherwise, by that of the tokens which are not rejected',
      },
    },
    metrics: {
      pg_loss: { unit: 'loss' },
      importance_weight: { unit: 'ratio' },
      approx_kl: { unit: 'nats per token' },
      clip_ratio: { unit: 'fraction of tokens' },
      dual_clip_ratio: { unit: 'fraction of tokens' },
      behave_imp_weight: {
        unit: 'ratio',
        when: 'with rejection, when the whole batch is computed in one call',
      },
      behave_approx_kl: {
        unit: 'nats per token',
        when: 'with rejection, when the whole batch is computed in one call',
      },
      filtered_fraction: { unit: 'fraction of tokens', when: 'with rejection' },
    },
    numerics: {
      range: 'differences of log-probabilities from −20 to 20',
      outside: 'ratios are not clipped where A < 0: they overflow from 88 on',
      overflows: 'for A < 0',
    },
  },
  (symbols, options) => {
    const { lp, old, prox, A, exp, max, select, tokens, batchSum, rowSum, constant } = symbols;
    const log = prox.sub(old);
    const rejection = rejectionOf(symbols, log, options);
    const kept = rejection?.kept ?? constant(1);
    const weight = rejection?.weight ?? constant(1);

    const keptMean = (x: Expression) => rowSum(select(kept, x, 0)).div(max(rowSum(kept), 1));
    const perLevel = (x: Expression) => (options.importanceSamplingLevel === 'sequence' ? keptMean(x) : x);
    const d = lp.sub(prox);
    const ratio = exp(perLevel(d));
    const advantage = perLevel(A);
    const ppo = surrogateOf(symbols, ratio, options, advantage);
    const { loss: perToken, cut } = limited(symbols, ppo.loss, options.clipRatioC, advantage);
    const divisor = options.rejectedInDenominator ? tokens : max(batchSum(kept), 1);
    const loss = select(kept, perToken.mul(weight), 0).div(divisor);

    const weighed = kept.and(weight.gt(0));
    const weighedMean = (x: Expression) => ({
      batch: batchSum(select(weighed, x, 0)).div(batchSum(weighed).add(1e-8)),
    });
    return {
      loss,
      metrics: {
        pg_loss: lossMetric(symbols, loss),
        importance_weight: { token: select(kept, ratio, 0) },
        approx_kl: { token: d },
        clip_ratio: { token: kept.and(ppo.clipped) },
        dual_clip_ratio: { token: kept.and(cut) },
        behave_imp_weight: rejection && weighedMean(weight),
        behave_approx_kl: rejection && weighedMean(log),
        filtered_fraction: rejection && { token: rejection.isFiltered },
      },
    };
  },
) {
  static {
    POLICY_LOSS_FN.register('decoupled_ppo', DecoupledPPOLossFn);
  }
}

/** Options of {@link DecoupledPPOLossFn}. */
export type DecoupledPPOLossOptions = NonNullable<ConstructorParameters<typeof DecoupledPPOLossFn>[0]>;
/** Metrics of {@link DecoupledPPOLossFn}. */
export type DecoupledPPOMetrics = MetricsOf<(typeof DecoupledPPOLossFn)['declaration']['metrics']>;

interface Rejection {
  /** The condition that the token stays in the loss. */
  readonly kept: Expression;
  readonly weight: Expression;
  /** The condition that the token is rejected, or that its weight is limited. */
  readonly isFiltered: Expression;
}

// Judges how much the proximal policy and the behaviour policy differ. `log` is their log-ratio.
function rejectionOf(
  symbols: ProgramSymbols,
  log: Expression,
  options: CheckedOptions<typeof REJECTION>,
): Rejection | undefined {
  const { exp, square, select, constant, rowSum, rowMean, rowMax } = symbols;
  const { rejectionLevel, rejectionMetric, rejectionLower, rejectionUpper } = options;
  if (rejectionLevel === undefined) return undefined;
  const statistics = {
    ratio: () => log,
    kl_k1: () => log,
    kl_k2: () => square(log).div(2),
    kl_k3: () => k3(symbols, log.neg()),
  };
  const isRatio = rejectionMetric === 'ratio';
  const isPerRow = rejectionLevel === 'sequence';
  const ofRow = { sum: rowSum, mean: rowMean, max: rowMax }[options.rejectionAgg];
  const statistic = statistics[rejectionMetric]();
  const judged = isPerRow ? ofRow(statistic) : statistic;
  const isInside = within(symbols, isRatio ? exp(judged) : judged, rejectionLower, rejectionUpper);
  const weight = exp(isPerRow && isRatio ? rowMean(log) : log);
  if (options.rejectionAction === 'mask') return { kept: isInside, weight, isFiltered: isInside.not() };
  const clamped = select(isInside, weight, bounded(symbols, weight, rejectionLower, rejectionUpper));
  return { kept: constant(1), weight: clamped, isFiltered: clamped.ne(weight) };
}
