// Losses of papers that correct for the policy that sampled the tokens.
import { aggregation, choice, flag, number } from '../base/option.js';
import type { CheckedOptions } from '../base/options.js';
import type { Expression, ProgramSymbols } from '../program/expression.js';
import { lossMetric, type MetricExpression } from '../program/loss-program.js';
import { CORRECTION, clamped, clampedTo, keptOf, masked, samplerWeight, within } from './corrections.js';
import { aggregated, MEANS, TOKEN_MEAN } from './divisors.js';
import { ESTIMATES } from './kl-terms.js';
import { policyLoss } from './policy-loss.js';
import { RATIO_KEYS } from './policy-loss-declaration.js';
import { LARGEST_FLOAT, limitedLog, maxOfFilled, minOfFilled } from './statistics.js';
import {
  clippedTo,
  clipRange,
  DUAL_CLIP,
  LEAST,
  limited,
  MOST,
  OVERFLOWING,
  rangeOf,
  reinforced,
  surrogate,
  unitRatio,
} from './surrogate.js';
import { FRACTION, IN_ONE_CALL, LOSS, NATS, RATIO } from './units.js';

// The default coefficient of the KL divergence to the reference policy.
const KL_PENALTY = 0.01;

// The options of NeMo-RL's loss.
const CLIPPED_PG = {
  ratioClipMin: number({ ...LEAST, default: 0.2 }),
  ratioClipMax: number({ ...MOST, default: 0.2 }),
  ratioClipC: number({
    above: 1,
    typical: [1.1, 5],
    help: 'dual clip: the loss of a token with A < 0 is at most −A times this',
  }),
  disablePpoRatio: flag({
    default: false,
    help: 'use logprob itself in place of the ratio, without clipping',
  }),
  forceOnPolicyRatio: flag({
    default: false,
    help: 'use the current policy as the old one: the ratio is 1, and old_logprob is not read',
  }),
  useCispo: flag({
    default: false,
    needs: {
      disablePpoRatio: [false],
      forceOnPolicyRatio: [false],
      sequenceLevelImportanceRatios: [false],
      ratioClipC: [undefined],
    },
    help: 'CISPO: ℓ = −A·sg(clip(ρ))·logprob',
  }),
  sequenceLevelImportanceRatios: flag({
    default: false,
    needs: { lossAggMode: ['seq-mean-token-mean'] },
    help: "the ratio is the geometric mean, and the weight for the sampler the product, of the row's tokens",
  }),
  referencePolicyKlPenalty: number({
    default: KL_PENALTY,
    atLeast: 0,
    typical: [0, 0.3],
    help: 'β, the coefficient of the KL divergence to the reference policy',
  }),
  referencePolicyKlType: choice(['k1', 'k2', 'k3'], {
    default: 'k3',
    help: 'the estimate of KL divergences',
  }),
  klInputClampValue: number({
    default: 20,
    nullable: true,
    atLeast: 0,
    typical: [1, 20],
    help: 'log-ratios to the reference policy are clipped to ± this; null for no limit',
  }),
  klOutputClampValue: number({
    default: 10,
    nullable: true,
    atLeast: 0,
    typical: [0.05, 10],
    help: 'KL values of tokens are clipped to ± this; null for no limit',
  }),
  useOnPolicyKlApproximation: flag({
    default: false,
    help: 'multiply KL values by the ratio of logprob to rollout_logprob',
  }),
  useImportanceSamplingCorrection: flag({
    default: false,
    help: 'multiply the losses by the ratio ω of old_logprob to rollout_logprob',
  }),
  truncatedImportanceSamplingType: choice(['tis', 'icepop', 'seq-mask-tis'], {
    help: 'how ω is bounded: clipped, set to 0 outside, or set to 0 in rows whose geometric mean is outside',
  }),
  truncatedImportanceSamplingRatioMin: number({
    atLeast: 0,
    typical: [0.5, 0.98],
    help: 'the lower bound of ω; none if absent',
  }),
  truncatedImportanceSamplingRatio: number({
    above: 0,
    atLeastOption: 'truncatedImportanceSamplingRatioMin',
    typical: [1.02, 2],
    help: 'the upper bound of ω; none if absent',
  }),
  positiveExampleNllWeight: number({
    default: 0,
    atLeast: 0,
    typical: [0, 0.5],
    help: 'μ, the coefficient of −logprob in rows with a positive reward',
  }),
};

type Options = CheckedOptions<typeof CLIPPED_PG>;

// The log-probability under the policy that counts as the one that sampled the tokens.
function oldLogprob({ lp, old, sg }: ProgramSymbols, { forceOnPolicyRatio }: Options): Expression {
  return forceOnPolicyRatio ? sg(lp) : old;
}

// Returns the ratio, or what takes its place.
function ratioOf(symbols: ProgramSymbols, options: Options): Expression {
  const { lp, exp, rowMean } = symbols;
  if (options.disablePpoRatio) return lp;
  const log = lp.sub(oldLogprob(symbols, options));
  return exp(options.sequenceLevelImportanceRatios ? rowMean(log) : log);
}

// Returns the range to which ratios are clipped, or undefined if they are not.
function clipRangeOf(options: Options): readonly [number, number] | undefined {
  if (options.disablePpoRatio || options.forceOnPolicyRatio) return undefined;
  return [1 - options.ratioClipMin, 1 + options.ratioClipMax];
}

// Returns the weight of a token or its row for the sampler, its mean, and how often a ratio is out of bounds.
function importanceOf(
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
  // NeMo-RL computes in float32 and takes infinite weights as 0.
  const ratio = select(exact.le(LARGEST_FLOAT), exact, 0);
  if (type === undefined) return { weight: ratio, mean: meanOf(ratio), outside: undefined };
  if (type === 'seq-mask-tis') {
    const isInside = within(symbols, exp(rowMean(log)), { low, high });
    const weight = select(isInside, ratio, 0);
    return { weight, mean: meanOf(weight), outside: { row: isInside.not() } };
  }
  const isInside = within(symbols, ratio, { low, high });
  const weight = (type === 'tis' ? clamped : masked)(symbols, ratio, { low, high });
  return { weight, mean: meanOf(weight), outside: { token: isInside.not() } };
}

function estimateOf(symbols: ProgramSymbols, { referencePolicyKlType }: Options, x: Expression): Expression {
  return ESTIMATES[referencePolicyKlType](symbols, x);
}

// Returns the KL divergence to the reference policy. Its gradient includes that of the token's probability.
function klPenalty(symbols: ProgramSymbols, options: Options): Expression {
  const { lp, ref, rollout, exp, select, sg } = symbols;
  const { klInputClampValue: most, klOutputClampValue: limit } = options;
  const delta = ref.sub(lp);
  const kl = estimateOf(symbols, options, clampedTo(symbols, delta, most));
  const ratio = options.useOnPolicyKlApproximation ? exp(lp.sub(rollout)) : unitRatio(symbols, lp);
  const isInside = within(symbols, delta, { low: most && -most, high: most });
  return clampedTo(symbols, select(isInside, ratio, sg(ratio)).mul(kl), limit);
}

// Returns the terms of the mean of −logprob over the tokens of rows with a positive reward.
function positiveLoss({ lp, rewards, select, batchSum }: ProgramSymbols): Expression {
  const isPositive = rewards.gt(0);
  return select(isPositive, lp.neg(), 0).div(batchSum(isPositive).add(1e-8));
}

// Returns the metrics that compare the current policy, the old one and the sampler.
function mismatchMetrics(symbols: ProgramSymbols, options: Options) {
  const { lp, rollout, abs, max, exp, log1p, select } = symbols;
  const { k3 } = ESTIMATES;
  const log = oldLogprob(symbols, options).sub(rollout);
  // NeMo-RL's formula is the mean of k3 at both logarithms relative to that of the mean probability, which amounts to
  // ln cosh(log/2). This form shares the exponentials with the other metrics. Where these overflow, it is |log|/2 − ln 2.
  const near = log1p(k3(symbols, log).add(k3(symbols, log.neg())).mul(0.25)).mul(0.5);
  const size = abs(log);
  const divergence = select(size.gt(80), size.mul(0.5).sub(Math.LN2), near);
  return {
    token_mult_prob_error: { token: max(exp(log), exp(log.neg())) },
    gen_kl_error: { token: estimateOf(symbols, options, log) },
    policy_kl_error: { token: estimateOf(symbols, options, log.neg()) },
    js_divergence_error: { token: divergence },
    approx_entropy: { token: exp(lp.sub(rollout)).mul(lp).neg() },
  };
}

/**
 * PPO with importance weights for samples of another policy, and with rejected tokens. A rejected token has no loss, but
 * counts in every divisor.
 */
export class CorrectedPPOLossFn extends policyLoss({
  name: 'corrected_ppo',
  summary: 'ℓ = kept·ω·max(−A·r, −A·clip(r)), where ω corrects for the sampler',
  details: [
    'Truncated importance sampling (TIS): isLevel token, isMode truncate, isUpper 2.',
    'IcePop: isLevel token, isMode mask, isLower 0.5, isUpper 5.',
    'Off-policy sequence masking (OPSM): opsmDelta 1e-4.',
  ],
  source: ['NeMo-RL', 'OpenRLHF', 'SkyRL', 'slime', 'open-instruct', 'ROLL', 'ms-swift'],
  reads: [...RATIO_KEYS, 'rollout_logprob'],
  options: { ...clipRange(0.2, 0.28), ...DUAL_CLIP, lossAggMode: aggregation('token-mean'), ...CORRECTION },
  metrics: {
    pg_loss: LOSS,
    pg_clipfrac: FRACTION,
    ppo_kl: NATS,
    is_ratio_mean: { ...RATIO, when: 'with weights' },
    is_clipfrac: { ...FRACTION, when: 'with weights' },
    reject_fraction: FRACTION,
  },
  numerics: {
    range: 'differences of log-probabilities from −20 to 20',
    outside: 'ratios overflow from 88 on, unless log_ratio_bound limits them',
    overflows: 'for A < 0',
  },
  formula: (symbols, options) => {
    const { r, d, select } = symbols;
    const correction = samplerWeight(symbols, options);
    const kept = keptOf(symbols, options);
    const ppo = surrogate(symbols, r, rangeOf(options));
    const perToken = limited(symbols, ppo.loss, options.clipRatioC).loss;
    const weighted = correction ? perToken.mul(correction.weight) : perToken;
    return aggregated(symbols, select(kept, weighted, 0), options.lossAggMode, {
      pg_clipfrac: { token: ppo.clipped },
      ppo_kl: { token: d.neg() },
      is_ratio_mean: correction && { token: correction.ratio },
      is_clipfrac: correction && { token: correction.isInside.not() },
      reject_fraction: { token: kept.not() },
    });
  },
}) {}

const OF_TOKENS = `${IN_ONE_CALL} and has unmasked tokens`;

/**
 * NeMo-RL's loss: a clipped surrogate or CISPO, importance weights for the sampler, a KL penalty whose gradient includes
 * that of the token's probability, and the likelihood of rows with a positive reward.
 */
export class ClippedPGLossFn extends policyLoss({
  name: 'clipped_pg',
  summary: 'ℓ = ω·max(−A·ρ, −A·clip(ρ)) + β·KL − μ·logprob, the last term in rows with a positive reward',
  details: ['sampling_importance_ratio counts each row once at the level of sequences.'],
  source: ['arXiv 2506.09477', 'NeMo-RL'],
  reads: [...RATIO_KEYS, 'rollout_logprob', 'ref_logprob', 'rewards'],
  options: { ...CLIPPED_PG, ...MEANS },
  metrics: {
    pg_loss: LOSS,
    probs_ratio: RATIO,
    probs_ratio_clamped: RATIO,
    probs_ratio_min: { ...RATIO, when: OF_TOKENS },
    probs_ratio_max: { ...RATIO, when: OF_TOKENS },
    probs_ratio_clamped_min: { ...RATIO, when: OF_TOKENS },
    probs_ratio_clamped_max: { ...RATIO, when: OF_TOKENS },
    kl_penalty: { unit: 'nats' },
    token_mult_prob_error: RATIO,
    gen_kl_error: NATS,
    policy_kl_error: NATS,
    js_divergence_error: NATS,
    approx_entropy: NATS,
    sampling_importance_ratio: RATIO,
    is_oob_ratio: { unit: 'fraction', when: 'with bounds on the weights' },
    positive_nll_loss: NATS,
  },
  numerics: {
    ...OVERFLOWING,
    /** The policy gradient and the KL term, which is at most 10, cancel each other. This is the KL term. */
    cancels: ({ logprob, refLogprob }) => {
      const kl = Math.min(Math.expm1(refLogprob - logprob) - (refLogprob - logprob), 10);
      return { value: KL_PENALTY * kl, gradient: KL_PENALTY * (kl + 1) };
    },
  },
  formula: (symbols, options) => {
    const { constant, rowMin, rowMax } = symbols;
    const { lossAggMode } = options;
    const ratio = ratioOf(symbols, options);
    const range = clipRangeOf(options);
    const clipped = clippedTo(symbols, ratio, range);
    const policy = options.useCispo ? reinforced(symbols, clipped) : surrogate(symbols, ratio, range).loss;
    const perToken = limited(symbols, policy, options.ratioClipC).loss;
    const importance = importanceOf(symbols, options);
    const corrected = options.useImportanceSamplingCorrection ? perToken.mul(importance.weight) : perToken;

    const beta = options.referencePolicyKlPenalty;
    const kl = beta === 0 ? constant(0) : klPenalty(symbols, options);
    const share = options.positiveExampleNllWeight;
    const likelihood = share === 0 ? constant(0) : positiveLoss(symbols);
    const divided = aggregated(symbols, corrected.add(kl.mul(beta)), lossAggMode, {}).loss;
    const loss = divided.add(likelihood.mul(share));
    const none = constant(0).div(0);
    const smallest = minOfFilled(symbols, rowMin(ratio), none);
    const largest = maxOfFilled(symbols, rowMax(ratio), none);
    return {
      loss,
      metrics: {
        pg_loss: lossMetric(symbols, loss),
        probs_ratio: { token: ratio },
        probs_ratio_clamped: { token: clipped },
        probs_ratio_min: { batch: smallest },
        probs_ratio_max: { batch: largest },
        probs_ratio_clamped_min: { batch: clippedTo(symbols, smallest, range) },
        probs_ratio_clamped_max: { batch: clippedTo(symbols, largest, range) },
        kl_penalty: aggregated(symbols, kl, lossAggMode, {}).metrics.pg_loss,
        ...mismatchMetrics(symbols, options),
        sampling_importance_ratio: importance.mean,
        is_oob_ratio: importance.outside,
        positive_nll_loss: share === 0 ? { token: 0 } : lossMetric(symbols, likelihood),
      },
      // Rows without tokens count among the rows whose weights are averaged or bounded. Their weight is 1.
      allRows:
        options.sequenceLevelImportanceRatios || options.truncatedImportanceSamplingType === 'seq-mask-tis',
    };
  },
}) {}

const REJECTION = {
  rejectionLevel: choice(['token', 'sequence'], {
    help: 'what is judged by rejectionMetric: tokens or rows; nothing if absent, and tokens then have no weights',
  }),
  rejectionAction: choice(['mask', 'clamp'], {
    default: 'mask',
    needs: { clamp: { rejectionMetric: ['ratio'] } },
    help: 'what happens out of bounds: tokens are rejected, or their weights are limited to the bounds',
  }),
  rejectionMetric: choice(['ratio', 'kl_k1', 'kl_k2', 'kl_k3'], {
    default: 'ratio',
    help: 'the ratio of prox_logprob to old_logprob, or an estimate of their KL divergence',
  }),
  rejectionAgg: choice(['sum', 'mean', 'max'], {
    default: 'sum',
    help: "how a row's value comes from those of its tokens; the log-ratios for the metric ratio",
  }),
  rejectionLower: number({
    typical: [-0.3, 0.97],
    help: 'the lower bound of rejectionMetric; none if absent',
  }),
  rejectionUpper: number({
    default: 5,
    nullable: true,
    typical: [1.05, 5],
    help: 'the upper bound of rejectionMetric; null for none',
  }),
};

/** Decoupled PPO, as in AReaL and RLinf: old_logprob is of the behaviour policy, and the ratio is to prox_logprob. */
export class DecoupledPPOLossFn extends policyLoss({
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
    importanceSamplingLevel: choice(['token', 'sequence'], {
      default: 'token',
      help: "the ratio of each token, or the geometric mean of its row's; the latter also averages advantages",
    }),
    ...REJECTION,
    rejectedInDenominator: flag({
      default: true,
      help: 'divide by the number of all unmasked tokens; otherwise, by that of the tokens which are not rejected',
    }),
  },
  metrics: {
    pg_loss: LOSS,
    importance_weight: RATIO,
    approx_kl: NATS,
    clip_ratio: FRACTION,
    dual_clip_ratio: FRACTION,
    behave_imp_weight: { ...RATIO, when: `with rejection, ${IN_ONE_CALL}` },
    behave_approx_kl: { ...NATS, when: `with rejection, ${IN_ONE_CALL}` },
    filtered_fraction: { ...FRACTION, when: 'with rejection' },
  },
  numerics: OVERFLOWING,
  formula: (symbols, options) => {
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
    const ppo = surrogate(symbols, ratio, rangeOf(options), { A: advantage });
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
}) {}

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
  const { exp, select, constant, rowSum, rowMean, rowMax } = symbols;
  const { rejectionLevel, rejectionMetric, rejectionLower: low, rejectionUpper: high } = options;
  if (rejectionLevel === undefined) return undefined;
  const statistics = {
    ratio: () => log,
    kl_k1: () => log,
    kl_k2: () => ESTIMATES.k2(symbols, log),
    kl_k3: () => ESTIMATES.k3(symbols, log.neg()),
  };
  const isRatio = rejectionMetric === 'ratio';
  const isPerRow = rejectionLevel === 'sequence';
  const ofRow = { sum: rowSum, mean: rowMean, max: rowMax }[options.rejectionAgg];
  const statistic = statistics[rejectionMetric]();
  const judged = isPerRow ? ofRow(statistic) : statistic;
  const isInside = within(symbols, isRatio ? exp(judged) : judged, { low, high });
  const weight = exp(isPerRow && isRatio ? rowMean(log) : log);
  if (options.rejectionAction === 'mask') return { kept: isInside, weight, isFiltered: isInside.not() };
  const limit = select(isInside, weight, clamped(symbols, weight, { low, high }));
  return { kept: constant(1), weight: limit, isFiltered: limit.ne(weight) };
}

/** SkyRL's rollout_is: ℓ = −sg(ρ)·A·logprob, or 0 where the ratio ρ to the sampler is outside the range. */
export class RolloutISLossFn extends policyLoss({
  name: 'rollout_is',
  summary: 'ℓ = −sg(ρ)·A·logprob where the ratio ρ to the sampler is within the range, and 0 elsewhere',
  source: ['SkyRL'],
  reads: ['rollout_logprob', 'action_mask', 'advantages'],
  options: { ...clipRange(0.2, 0.28), ...MEANS },
  metrics: { pg_clipfrac: FRACTION, pg_loss: LOSS },
  numerics: {
    range: 'logprob − rollout_logprob from −20 to 20',
    outside: 'the difference is clipped to ±20',
  },
  formula: (symbols, options) => {
    const { lp, rollout, exp, select, sg } = symbols;
    const ratio = sg(exp(limitedLog(symbols, lp.sub(rollout))));
    const [low, high] = rangeOf(options);
    const isInside = ratio.gt(low).and(ratio.lt(high));
    const perToken = reinforced(symbols, select(isInside, ratio, 0));
    return aggregated(symbols, perToken, options.lossAggMode, { pg_clipfrac: { token: isInside.not() } });
  },
}) {}
