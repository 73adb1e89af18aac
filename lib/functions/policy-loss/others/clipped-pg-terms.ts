// The terms and metrics of clipped_pg, NeMo-RL's loss.
import type { CheckedOptions } from '../../../core/options.js';
import type { Expression, ProgramSymbols } from '../../../program/expression.js';
import type { MetricExpression } from '../expression-loss.js';
import { bounded, k3, within } from './bounds.js';
import { unitRatio } from './surrogate.js';

/** The options of NeMo-RL's loss. */
export const CLIPPED_PG = {
  ratioClipMin: {
    type: 'number',
    default: 0.2,
    atLeast: 0,
    typical: [0.05, 0.6],
    help: 'the ratio is clipped to at least 1 − this',
  },
  ratioClipMax: {
    type: 'number',
    default: 0.2,
    atLeast: 0,
    typical: [0.05, 0.6],
    help: 'the ratio is clipped to at most 1 + this',
  },
  ratioClipC: {
    type: 'number',
    above: 1,
    typical: [1.1, 5],
    help: 'dual clip: the loss of a token with A < 0 is at most −A times this',
  },
  disablePpoRatio: {
    type: 'boolean',
    default: false,
    help: 'use logprob itself in place of the ratio, without clipping',
  },
  forceOnPolicyRatio: {
    type: 'boolean',
    default: false,
    help: 'use the current policy as the old one: the ratio is 1, and old_logprob is not read',
  },
  useCispo: {
    type: 'boolean',
    default: false,
    needs: {
      disablePpoRatio: [false],
      forceOnPolicyRatio: [false],
      sequenceLevelImportanceRatios: [false],
      ratioClipC: [undefined],
    },
    help: 'CISPO: ℓ = −A·sg(clip(ρ))·logprob',
  },
  sequenceLevelImportanceRatios: {
    type: 'boolean',
    default: false,
    needs: { lossAggMode: ['seq-mean-token-mean'] },
    help: "the ratio is the geometric mean, and the weight for the sampler the product, of the row's tokens",
  },
  referencePolicyKlPenalty: {
    type: 'number',
    default: 0.01,
    atLeast: 0,
    typical: [0, 0.3],
    help: 'β, the coefficient of the KL divergence to the reference policy',
  },
  referencePolicyKlType: {
    type: 'choice',
    choices: ['k1', 'k2', 'k3'],
    default: 'k3',
    help: 'the estimate of KL divergences',
  },
  klInputClampValue: {
    type: 'number',
    default: 20,
    nullable: true,
    atLeast: 0,
    typical: [1, 20],
    help: 'log-ratios to the reference policy are clipped to ± this; null for no limit',
  },
  klOutputClampValue: {
    type: 'number',
    default: 10,
    nullable: true,
    atLeast: 0,
    typical: [0.05, 10],
    help: 'KL values of tokens are clipped to ± this; null for no limit',
  },
  useOnPolicyKlApproximation: {
    type: 'boolean',
    default: false,
    help: 'multiply KL values by the ratio of logprob to rollout_logprob',
  },
  useImportanceSamplingCorrection: {
    type: 'boolean',
    default: false,
    help: 'multiply the losses by the ratio ω of old_logprob to rollout_logprob',
  },
  truncatedImportanceSamplingType: {
    type: 'choice',
    choices: ['tis', 'icepop', 'seq-mask-tis'],
    help: 'how ω is bounded: clipped, set to 0 outside, or set to 0 in rows whose geometric mean is outside',
  },
  truncatedImportanceSamplingRatioMin: {
    type: 'number',
    atLeast: 0,
    typical: [0.5, 0.98],
    help: 'the lower bound of ω; none if absent',
  },
  truncatedImportanceSamplingRatio: {
    type: 'number',
    above: 0,
    atLeastOption: 'truncatedImportanceSamplingRatioMin',
    typical: [1.02, 2],
    help: 'the upper bound of ω; none if absent',
  },
  positiveExampleNllWeight: {
    type: 'number',
    default: 0,
    atLeast: 0,
    typical: [0, 0.5],
    help: 'μ, the coefficient of −logprob in rows with a positive reward',
  },
} as const;

type Options = CheckedOptions<typeof CLIPPED_PG>;

// The log-probability under the policy that counts as the one that sampled the tokens.
function oldLogprob({ lp, old, sg }: ProgramSymbols, { forceOnPolicyRatio }: Options): Expression {
  return forceOnPolicyRatio ? sg(lp) : old;
}

/** Returns the ratio, or what takes its place. */
export function ratioOf(symbols: ProgramSymbols, options: Options): Expression {
  const { lp, exp, rowMean } = symbols;
  if (options.disablePpoRatio) return lp;
  const log = lp.sub(oldLogprob(symbols, options));
  return exp(options.sequenceLevelImportanceRatios ? rowMean(log) : log);
}

/** Returns a clipped ratio. The function is monotonic, so the extremes of clipped ratios are clipped extremes. */
export function clippedRatio({ clip }: ProgramSymbols, options: Options, ratio: Expression): Expression {
  if (options.disablePpoRatio || options.forceOnPolicyRatio) return ratio;
  return clip(ratio, 1 - options.ratioClipMin, 1 + options.ratioClipMax);
}

/** Returns the weight of a token or its row for the sampler, its mean, and how often a ratio is out of bounds. */
export function importanceOf(
  symbols: ProgramSymbols,
  options: Options,
): { weight: Expression; mean: MetricExpression; outside: MetricExpression | undefined } {
  const { rollout, exp, rowSum, rowMean, select } = symbols;
  const {
    truncatedImportanceSamplingType: type,
    truncatedImportanceSamplingRatioMin: low,
    truncatedImportanceSamplingRatio: high,
    sequenceLevelImportanceRatios: isPerRow,
  } = options;
  const meanOf = (x: Expression) => (isPerRow ? { row: x } : { token: x });
  const log = oldLogprob(symbols, options).sub(rollout);
  const exact = exp(isPerRow ? rowSum(log) : log);
  const ratio = select(exact.le(LARGEST_FLOAT), exact, 0);
  if (type === undefined) return { weight: ratio, mean: meanOf(ratio), outside: undefined };
  if (type === 'seq-mask-tis') {
    const isInside = within(symbols, exp(rowMean(log)), low, high);
    const weight = select(isInside, ratio, 0);
    return { weight, mean: meanOf(weight), outside: { row: isInside.not() } };
  }
  const isInside = within(symbols, ratio, low, high);
  const weight = type === 'tis' ? bounded(symbols, ratio, low, high) : select(isInside, ratio, 0);
  return { weight, mean: meanOf(weight), outside: meanOf(isInside.not()) };
}

// The largest finite float32 number. NeMo-RL computes in float32 and takes infinite weights as 0.
const LARGEST_FLOAT = (2 - 2 ** -23) * 2 ** 127;

function estimateOf(symbols: ProgramSymbols, { referencePolicyKlType }: Options, x: Expression): Expression {
  const estimates = { k1: () => x.neg(), k2: () => symbols.square(x).div(2), k3: () => k3(symbols, x) };
  return estimates[referencePolicyKlType]();
}

/** Returns the KL divergence to the reference policy. Its gradient includes that of the token's probability. */
export function klPenalty(symbols: ProgramSymbols, options: Options): Expression {
  const { lp, ref, rollout, exp, select, sg } = symbols;
  const { klInputClampValue: most, klOutputClampValue: limit } = options;
  const limitedTo = (x: Expression, bound: number | undefined) =>
    bounded(symbols, x, bound === undefined ? undefined : -bound, bound);
  const delta = ref.sub(lp);
  const kl = estimateOf(symbols, options, limitedTo(delta, most));
  const ratio = options.useOnPolicyKlApproximation ? exp(lp.sub(rollout)) : unitRatio(symbols, lp);
  const isInside = within(symbols, delta, most === undefined ? undefined : -most, most);
  return limitedTo(select(isInside, ratio, sg(ratio)).mul(kl), limit);
}

/** Returns the terms of the mean of −logprob over the tokens of rows with a positive reward. */
export function positiveLoss({ lp, rewards, select, batchSum }: ProgramSymbols): Expression {
  const isPositive = rewards.gt(0);
  return select(isPositive, lp.neg(), 0).div(batchSum(isPositive).add(1e-8));
}

/** Returns the metrics that compare the current policy, the old one and the sampler. */
export function mismatchMetrics(symbols: ProgramSymbols, options: Options) {
  const { lp, rollout, max, exp, log1p } = symbols;
  const log = oldLogprob(symbols, options).sub(rollout);
  // NeMo-RL's formula is the mean of k3 at both logarithms relative to that of the mean probability, which amounts to
  // ln cosh(log/2). This form shares the exponentials with the other metrics.
  const divergence = log1p(k3(symbols, log).add(k3(symbols, log.neg())).mul(0.25)).mul(0.5);
  return {
    token_mult_prob_error: { token: max(exp(log), exp(log.neg())) },
    gen_kl_error: { token: estimateOf(symbols, options, log) },
    policy_kl_error: { token: estimateOf(symbols, options, log.neg()) },
    js_divergence_error: { token: divergence },
    approx_entropy: { token: exp(lp.sub(rollout)).mul(lp).neg() },
  };
}

/** Returns the smallest and the largest value of the batch's tokens. They are NaN if it has none. */
export function extremesOf(
  { n, tokens, rowMin, rowMax, rowsMin, rowsMax, select, constant }: ProgramSymbols,
  x: Expression,
): { smallest: Expression; largest: Expression } {
  const ofTokens = (extreme: Expression) => select(tokens.gt(0), extreme, constant(0).div(0));
  return {
    smallest: ofTokens(rowsMin(select(n.gt(0), rowMin(x), LARGEST_FLOAT))),
    largest: ofTokens(rowsMax(select(n.gt(0), rowMax(x), -LARGEST_FLOAT))),
  };
}
