// verl's distillation loss, the losses that choose tokens by their covariances, and those of verl's recipes.

import { choice, flag, integer, number } from '../base/option.js';
import type { Expression, ProgramSymbols } from '../program/expression.js';
import { lossMetric } from '../program/loss-program.js';
import { CLIP_RATIO, CORRECTED_KEYS, corrected, dualClipped, verlRange } from './corrected-loss.js';
import { clampedTo } from './corrections.js';
import { VERL_AGGREGATION, verlWeight } from './divisors.js';
import { VERL_ESTIMATES } from './kl-terms.js';
import { isAmongSmallest } from './order-statistics.js';
import { policyLoss } from './policy-loss.js';
import { RATIO_KEYS } from './policy-loss-declaration.js';
import { CORRECTION_METRICS } from './rollout-correction.js';
import { ROLLOUT_CORRECTION } from './rollout-weights.js';
import { meanOfBatch, meanOfRow } from './statistics.js';
import { surrogate } from './surrogate.js';
import { FRACTION, IN_ONE_CALL, LOSS, NATS, RATIO } from './units.js';

const BY_POLICY_GRADIENT = 'with use_policy_gradient';

/** Distillation as in verl: the loss is an estimate x of the divergence from the teacher, or PPO with A = −x. */
export class VerlDistillationLossFn extends policyLoss({
  name: 'verl/distillation',
  summary: 'ℓ = x, an estimate of the divergence from the teacher, or PPO with A = −x',
  details: [
    'The estimates are those of the KL functions; kl is k1, mse is k2, and k3 is low_var_kl. abs_loss, loss_min and loss_max are of the estimate before loss_max_clamp.',
    'PPO is that of verl/vanilla, with clip_ratio_c = 3.',
  ],
  source: ['arXiv 2306.13649', 'verl'],
  reads: ['old_logprob', 'teacher_logprob', 'action_mask'],
  options: {
    lossMode: choice(['k1', 'k2', 'k3', 'abs', 'low_var_kl', 'kl', 'mse'], {
      default: 'k3',
      needs: { k1: { usePolicyGradient: [true] } },
      help: 'the estimate of the divergence',
    }),
    usePolicyGradient: flag({
      default: false,
      help: 'whether the estimate is the negative advantage of PPO instead of the loss',
    }),
    lossMaxClamp: number({
      default: 10,
      nullable: true,
      above: 0,
      typical: [0.5, 10],
      help: 'the estimate is clipped to this size; null for no limit',
    }),
    ...CLIP_RATIO,
    ...VERL_AGGREGATION,
  },
  metrics: {
    'distillation/abs_loss': NATS,
    'distillation/loss_min': { ...NATS, when: IN_ONE_CALL },
    'distillation/loss_max': { ...NATS, when: IN_ONE_CALL },
    'distillation/pg_clipfrac': { ...FRACTION, when: BY_POLICY_GRADIENT },
    'distillation/pg_clipfrac_lower': { ...FRACTION, when: BY_POLICY_GRADIENT },
    'distillation/ppo_kl': { ...NATS, when: BY_POLICY_GRADIENT },
    'distillation/loss': LOSS,
  },
  numerics: {
    range: 'logprobs that differ by at most 20 from each other',
    outside: 'k3 and low_var_kl are clipped to 10, and the estimate to loss_max_clamp',
  },
  formula: (symbols, options) => {
    const { lp, teacher, abs, sg, rowMin, rowMax, rowsMin, rowsMax } = symbols;
    const estimate = VERL_ESTIMATES[options.lossMode](symbols, teacher.sub(lp));
    const x = clampedTo(symbols, estimate, options.lossMaxClamp);
    const ppo = options.usePolicyGradient
      ? dualClipped(symbols, sg(x).neg(), { ...options, clipRatioC: 3 })
      : undefined;
    const loss = (ppo?.perToken ?? x).mul(verlWeight(symbols, options));
    return {
      loss,
      metrics: {
        'distillation/abs_loss': { token: abs(estimate) },
        // Rows without tokens take no part in a loss of tokens.
        'distillation/loss_min': { batch: rowsMin(rowMin(estimate)) },
        'distillation/loss_max': { batch: rowsMax(rowMax(estimate)) },
        'distillation/pg_clipfrac': ppo?.metrics.pg_clipfrac,
        'distillation/pg_clipfrac_lower': ppo?.metrics.pg_clipfrac_lower,
        'distillation/ppo_kl': ppo?.metrics.ppo_kl,
        'distillation/loss': lossMetric(symbols, loss),
      },
    };
  },
}) {}

/** FlowRL as in verl's recipe: the weighted square of log_z + mean(logprob) − β·mean(A) − mean(ref_logprob). */
export class VerlFlowRLLossFn extends policyLoss({
  name: 'verl/flowrl',
  summary: 'a row’s loss is w·(log_z + mean(logprob − β·A − ref_logprob))²',
  details: [
    'w = min(exp(Σ ln r), 10) is constant for the gradient. The loss is the mean over all rows.',
    'The paper clips w to a range around 1; verl clips it at 10 only.',
  ],
  source: ['arXiv 2509.15207', 'verl'],
  reads: ['old_logprob', 'ref_logprob', 'action_mask', 'advantages', 'log_z'],
  ofRows: true,
  options: {
    flowrlBetaCoef: number({
      default: 15,
      atLeast: 0,
      typical: [1, 15],
      help: 'β, the coefficient of the reward',
    }),
  },
  metrics: {
    log_prob: NATS,
    old_log_prob: NATS,
    ref_log_prob: NATS,
    log_reward: { unit: 'advantage' },
    log_z: { unit: 'nats' },
    importance_weight: RATIO,
    final_loss: LOSS,
    ppo_kl: NATS,
    ref_kl: NATS,
  },
  numerics: { range: 'any finite inputs', outside: 'the importance weight is at most 10' },
  formula: (symbols, { flowrlBetaCoef }) => {
    const { lp, old, ref, A, d, logZ, rows, rowSum, exp, min, square, sg } = symbols;
    const reward = meanOfRow(symbols, A).mul(flowrlBetaCoef);
    const error = logZ.add(meanOfRow(symbols, lp)).sub(reward).sub(meanOfRow(symbols, ref));
    const weight = sg(min(exp(rowSum(d)), 10));
    const ofRow = weight.mul(square(error));
    return {
      rowLoss: ofRow.div(rows),
      metrics: {
        log_prob: { token: lp },
        old_log_prob: { token: old },
        ref_log_prob: { token: ref },
        log_reward: { token: A },
        log_z: { row: logZ },
        importance_weight: { row: weight },
        final_loss: { row: ofRow },
        ppo_kl: { token: d.neg() },
        ref_kl: { token: ref.sub(lp) },
      },
      allRows: true,
    };
  },
}) {}

/** SPPO (self-play preference optimization) as in verl's recipe: the square of Σ ln r − η·reward. */
export class VerlSelfPlaySPPOLossFn extends policyLoss({
  name: 'verl/self_play_sppo',
  summary: 'a row’s loss is (Σ ln r − η·reward)²',
  details: [
    'The loss is the mean over the rows with unmasked tokens, and the metrics are means over all rows.',
    'rewards are centred preferences. The paper centres them for each prompt, verl for the batch.',
  ],
  source: ['arXiv 2405.00675', 'verl'],
  unlike: { sppo: 'another method: Self-Play Preference Optimization' },
  reads: ['old_logprob', 'action_mask', 'rewards'],
  ofRows: true,
  options: {
    sppoEta: number({ default: 1, atLeast: 0, typical: [0.1, 10], help: 'η, the coefficient of the reward' }),
  },
  metrics: { log_ratio_mean: { unit: 'nats' }, preference_mean: { unit: 'nats' }, pg_loss: LOSS },
  numerics: {
    range: 'any finite inputs',
    outside: 'nothing is clipped',
    /** The log-ratio and the reward cancel each other. */
    cancels: ({ logprob, oldLogprob }) => ({
      value: (logprob - oldLogprob) ** 2,
      gradient: 2 * Math.abs(logprob - oldLogprob),
    }),
  },
  formula: ({ d, n, rewards, rows, rowSum, rowsSum, square, select }, { sppoEta }) => {
    const logRatio = rowSum(d);
    const preference = rewards.mul(sppoEta);
    const hasTokens = n.gt(0);
    const rowLoss = select(hasTokens, square(logRatio.sub(preference)), 0).div(rowsSum(hasTokens).add(1e-8));
    return {
      rowLoss,
      metrics: {
        log_ratio_mean: { row: logRatio },
        preference_mean: { row: preference },
        pg_loss: { row: rowLoss.mul(rows) },
      },
      allRows: true,
    };
  },
}) {}

/**
 * Returns a token's term of the covariance of advantages and log-probabilities, as a constant for the gradient.
 * @param mean returns the mean over the tokens of the batch.
 */
function covariance({ A, lp, sg }: ProgramSymbols, mean: (x: Expression) => Expression): Expression {
  return sg(A.sub(mean(A)).mul(lp.sub(mean(lp))));
}

/** Clip-Cov as in verl: drawn tokens with a large covariance have neither a loss nor a gradient. */
export class VerlClipCovLossFn extends policyLoss({
  name: 'verl/clip_cov',
  summary: 'PPO, in which random tokens with a covariance between clip_cov_lb and clip_cov_ub have ℓ = 0',
  details: [
    'The covariance of a token is (A − mean A)·(logprob − mean logprob), with the means of the batch.',
    'Clipped tokens are not drawn. Drawn ones count in the aggregation.',
    'The draw depends on the seed, and on the rows and positions of the tokens.',
    'If the batch has clip_cov_keys, the tokens with the smallest keys are taken instead.',
  ],
  source: ['arXiv 2505.22617', 'verl'],
  reads: [...CORRECTED_KEYS, 'clip_cov_keys'],
  optional: ['clip_cov_keys'],
  options: {
    ...CLIP_RATIO,
    clipCovRatio: number({
      default: 2e-4,
      above: 0,
      typical: [0.05, 0.5],
      help: 'the fraction of the tokens that are drawn; at least one is',
    }),
    clipCovLb: number({
      default: 1,
      typical: [-0.5, 1],
      help: 'tokens are drawn among those with a covariance above this',
    }),
    clipCovUb: number({
      default: 5,
      typical: [0.8, 5],
      help: 'tokens are drawn among those with a covariance below this',
    }),
    seed: integer({
      default: 0,
      atLeast: 0,
      help: 'the seed of the random draw; give each step another one',
    }),
    ...VERL_AGGREGATION,
    ...ROLLOUT_CORRECTION,
  },
  metrics: { pg_clipfrac: FRACTION, ppo_kl: NATS, pg_loss: LOSS, ...CORRECTION_METRICS },
  numerics: {
    range: 'logprob − old_logprob up to 88.7',
    outside: 'the ratio is not clipped where A < 0: it overflows',
    overflows: 'for A < 0',
  },
  formula: (symbols, options, has) =>
    corrected(symbols, options, (kept) => {
      const { d, r, clipCovKeys, max, select, tokens, draw } = kept;
      const ppo = surrogate(kept, r, verlRange(options));
      const cov = covariance(kept, (x) => meanOfBatch(kept, x));
      const isBetween = cov.gt(options.clipCovLb).and(cov.lt(options.clipCovUb));
      const isCandidate = isBetween.and(ppo.plain.le(ppo.bounded));
      const keys = has('clip_cov_keys') ? clipCovKeys : draw(options.seed);
      const ranked = select(isCandidate, keys, Number.MAX_VALUE);
      const count = max(tokens.mul(options.clipCovRatio), 1);
      const isDrawn = isCandidate.and(isAmongSmallest(kept, ranked, count));
      return {
        perToken: select(isDrawn, 0, ppo.loss),
        metrics: { pg_clipfrac: { token: isDrawn }, ppo_kl: { token: d.neg() } },
      };
    }),
}) {}

/** KL-Cov as in verl: nothing is clipped, and the tokens with the largest covariances are held by a KL penalty. */
export class VerlKLCovLossFn extends policyLoss({
  name: 'verl/kl_cov',
  summary: 'ℓ = −A·r, plus ppo_kl_coef·|ln r| for the tokens with the largest covariances',
  details: [
    'The covariance of a token is (A − mean A)·(logprob − mean logprob), with the means of the batch.',
    'At least one token is penalized. Of tokens with equal covariances, the first ones are.',
  ],
  source: ['arXiv 2505.22617', 'verl'],
  reads: CORRECTED_KEYS,
  options: {
    klCovRatio: number({
      default: 2e-4,
      above: 0,
      atMost: 1,
      typical: [0.05, 0.5],
      help: 'the fraction of the tokens that are penalized',
    }),
    ppoKlCoef: number({ default: 0.1, atLeast: 0, typical: [0.01, 1], help: 'the factor of the penalty' }),
    ...VERL_AGGREGATION,
    ...ROLLOUT_CORRECTION,
  },
  metrics: { ppo_kl: NATS, pg_loss: LOSS, ...CORRECTION_METRICS },
  numerics: {
    range: 'logprob − old_logprob up to 88.7',
    outside: 'the ratio is not clipped: it overflows',
    overflows: 'always',
    /** The policy gradient and the penalty of the default options cancel each other. */
    cancels: ({ logprob, oldLogprob, advantage }) => ({
      value: Math.abs(advantage) * Math.exp(logprob - oldLogprob) + 0.1 * Math.abs(logprob - oldLogprob),
      gradient: Math.abs(advantage) * Math.exp(logprob - oldLogprob) + 0.1,
    }),
  },
  formula: (symbols, options) =>
    corrected(symbols, options, (kept) => {
      const { A, d, r, abs, max, select, tokens, batchMean } = kept;
      const falling = covariance(kept, batchMean).neg();
      const isPenalized = isAmongSmallest(kept, falling, max(tokens.mul(options.klCovRatio), 1));
      const perToken = A.neg()
        .mul(r)
        .add(select(isPenalized, abs(d).mul(options.ppoKlCoef), 0));
      return { perToken, metrics: { ppo_kl: { token: abs(d) } } };
    }),
}) {}

/** GVPO as in verl's recipe: the square of a row's implicit reward, less the mean of its group and its advantage. */
export class VerlGVPOLossFn extends policyLoss({
  name: 'verl/gvpo',
  summary: 'a row’s loss is (R − sg(mean of R over the group) − mean(A))²/(2(n − 1)), where R = β·Σ ln r',
  details: [
    'The loss is the sum over the rows. Rows without unmasked tokens are left out.',
    'The paper also differentiates the mean, which changes nothing if advantages are centred in their groups.',
  ],
  source: ['arXiv 2504.19599', 'verl'],
  reads: [...RATIO_KEYS, 'group_ids'],
  ofRows: true,
  options: {
    gvpoBeta: number({
      default: 0.1,
      typical: [0.05, 1],
      help: 'β, the coefficient of the log-ratio in the implicit reward',
    }),
    n: integer({ atLeast: 2, required: true, typical: [2, 8], help: 'the number of rows in each group' }),
  },
  metrics: { pg_loss: LOSS },
  numerics: { range: 'any finite inputs', outside: 'nothing is clipped' },
  formula: ({ A, d, rows, rowSum, rowMean, groupSum, square, sg }, { gvpoBeta, n }) => {
    const reward = rowSum(d).mul(gvpoBeta);
    const error = reward.sub(sg(groupSum(reward).div(n))).sub(rowMean(A));
    const rowLoss = square(error).div(2 * (n - 1));
    return { rowLoss, metrics: { pg_loss: { row: rowLoss.mul(rows) } } };
  },
}) {}

/** Online DPO as in verl's recipe: a loss over pairs of rows, of which the first is preferred to the second. */
export class VerlOnlineDPOLossFn extends policyLoss({
  name: 'verl/online_dpo',
  summary: '−ln σ(β·margin) or (margin − 1/(2β))², averaged over pairs of rows',
  details: [
    "The margin is the chosen row's sum of logprob − ref_logprob minus the rejected row's sum.",
    'Even rows are chosen, and each odd row is the rejected answer to the row before it, unless the batch has pair_ids.',
  ],
  source: ['arXiv 2305.18290', 'arXiv 2310.12036', 'verl'],
  reads: ['ref_logprob', 'action_mask', 'pair_ids'],
  pairs: true,
  options: {
    beta: number({
      above: 0,
      required: true,
      typical: [0.05, 2],
      help: 'β: the margin is multiplied by this; with loss type ipo, the margin is to be 1/(2β)',
    }),
    labelSmoothing: number({
      default: 0,
      atLeast: 0,
      atMost: 1,
      typical: [0, 0.4],
      help: 'the probability that a label is wrong; loss type ipo ignores it',
    }),
    lossType: choice(['sigmoid', 'ipo'], {
      default: 'sigmoid',
      help: 'the loss of a pair: −ln σ(β·margin), or (margin − 1/(2β))²',
    }),
    referenceFree: flag({
      default: false,
      help: 'leave ref_logprob out of the margin; the batch then needs no ref_logprob',
    }),
  },
  metrics: { dpo_loss: LOSS },
  numerics: {
    range: 'any finite logprobs',
    outside: 'margins of any size are linear or 0 with loss type sigmoid, and squared with ipo',
  },
  formula: (
    { lp, ref, placeInPair, rows, rowSum, pairSum, select, square, logsigmoid },
    { beta, labelSmoothing, lossType, referenceFree },
  ) => {
    const ofRow = rowSum(referenceFree ? lp : lp.sub(ref));
    const isChosen = placeInPair.eq(0);
    const margin = pairSum(select(isChosen, ofRow, ofRow.neg()));
    const logit = margin.mul(beta);
    const losses = {
      sigmoid: () =>
        logsigmoid(logit)
          .mul(labelSmoothing - 1)
          .sub(logsigmoid(logit.neg()).mul(labelSmoothing)),
      ipo: () => square(margin.sub(1 / (2 * beta))),
    };
    const rowLoss = select(isChosen, losses[lossType](), 0).div(rows.div(2));
    return { rowLoss, metrics: { dpo_loss: { row: rowLoss.mul(rows) } }, allRows: true };
  },
}) {}
