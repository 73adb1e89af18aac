// The losses of TRL's other trainers.
import { integer, like, number } from '../base/option.js';
import { ACCUMULATION, PROCESSES } from './divisors.js';
import { BETA, ESTIMATES, KL_METRIC, klTerm } from './kl-terms.js';
import { isTopEntropy, TOP_ENTROPY, topEntropyNeeds } from './order-statistics.js';
import { policyLoss } from './policy-loss.js';
import { RATIO_KEYS } from './policy-loss-declaration.js';
import { limitedLog } from './statistics.js';
import { outsideOf, surrogate } from './surrogate.js';
import {
  CLIP_METRICS,
  CLIP_NUMERICS,
  CLIP_RANGE,
  clipMetrics,
  clipped,
  FAMILY,
  ratioOf,
} from './trl-family.js';
import { ENTROPY_METRIC, entropyMetric } from './trl-terms.js';
import { FRACTION, IN_ONE_CALL, NATS, RATIO } from './units.js';

/** GMPO as in TRL: the loss is that of a row. */
export class TRLGMPOLossFn extends policyLoss({
  name: 'trl/gmpo',
  summary: 'the loss of a row is −A·exp(mean d′), d′ = min(ln r, ε_h) where A > 0, max(ln r, −ε) elsewhere',
  details: [
    'If the batch has one advantage per row, a row without tokens adds −A/B to the loss.',
    'If it has one per token, that of a row is the mean over its tokens.',
  ],
  source: ['arXiv 2507.20673', 'TRL'],
  reads: [...RATIO_KEYS, 'ref_logprob', 'entropy'],
  optional: FAMILY.optional,
  perRow: FAMILY.perRow,
  ofRows: true,
  options: {
    epsilon: like(CLIP_RANGE.epsilon, { default: 0.4, help: 'log-ratios are clipped to at least −this' }),
    epsilonHigh: like(CLIP_RANGE.epsilonHigh, { help: 'log-ratios are clipped to at most this' }),
    ...TOP_ENTROPY,
    ...BETA,
    gradientAccumulationSteps: like(ACCUMULATION.gradientAccumulationSteps, {
      help: 'the loss is divided by this number of accumulation steps',
    }),
  },
  metrics: { ...CLIP_METRICS, ...KL_METRIC, ...ENTROPY_METRIC },
  numerics: {
    range: 'mean log-ratios of rows up to 88.7',
    outside: 'the log-ratio is not clipped above where A < 0: the gradient overflows',
    overflows: 'for A < 0',
  },
  formula: (symbols, options, has) => {
    const { A, d, rows, exp, min, max, rowMean, rowSum, select } = symbols;
    const { epsilon, epsilonHigh, beta, gradientAccumulationSteps } = options;
    const clippedLogRatio = select(A.gt(0), min(d, epsilonHigh), max(d, -epsilon));
    const isTop = isTopEntropy(symbols, options);
    const meanLogRatio = isTop
      ? rowSum(select(isTop, clippedLogRatio, 0)).div(max(rowSum(isTop), 1))
      : rowMean(clippedLogRatio);
    const ofRow = rowMean(A).neg().mul(exp(meanLogRatio));
    const kl = klTerm(symbols, options);
    const penalized = kl ? ofRow.add(rowMean(kl).mul(beta)) : ofRow;
    return {
      rowLoss: penalized.div(rows.mul(gradientAccumulationSteps)),
      metrics: {
        ...clipMetrics(symbols, outsideOf(d, A, [-epsilon, epsilonHigh]), false),
        kl: kl && { token: kl },
        ...entropyMetric(symbols, has),
      },
      allRows: true,
    };
  },
  needs: topEntropyNeeds,
}) {}

/** Asynchronous GRPO as in TRL: the clipped surrogate without a dual clip, averaged over the tokens of a micro-batch. */
export class TRLAsyncGRPOLossFn extends policyLoss({
  name: 'trl/async_grpo',
  summary: 'ℓ = −min(r·A, clip(r)·A), the mean over the tokens of all processes',
  source: ['arXiv 2402.03300', 'TRL'],
  reads: [...RATIO_KEYS, 'entropy'],
  optional: ['entropy'],
  options: {
    ...CLIP_RANGE,
    globalNTokens: integer({
      atLeast: 0,
      typical: [0, 200],
      help: 'the number of unmasked tokens of all processes; that of the batch if absent',
    }),
    numProcesses: like(PROCESSES.numProcesses, {
      help: 'the loss is multiplied by this number of processes',
    }),
    gradientAccumulationSteps: like(ACCUMULATION.gradientAccumulationSteps, {
      help: 'the loss is divided by this number of accumulation steps',
    }),
  },
  metrics: {
    ratio: RATIO,
    kl: NATS,
    ...CLIP_METRICS,
    'clip_ratio/low_min': FRACTION,
    'clip_ratio/high_max': FRACTION,
    ...ENTROPY_METRIC,
  },
  numerics: CLIP_NUMERICS,
  formula: (symbols, options, has) => {
    const { r, d, tokens, constant, max } = symbols;
    const { globalNTokens, numProcesses, gradientAccumulationSteps } = options;
    const { loss, metrics } = clipped(symbols, ratioOf(symbols, 'token'), { ...options, delta: undefined });
    const divisor = max(globalNTokens ?? tokens, numProcesses).mul(gradientAccumulationSteps);
    return {
      loss: loss.mul(constant(numProcesses).div(divisor)),
      metrics: {
        ratio: { token: r },
        kl: { token: ESTIMATES.k3(symbols, d) },
        ...metrics,
        // TRL takes these over processes, of which there is one.
        'clip_ratio/low_min': metrics['clip_ratio/low_mean'],
        'clip_ratio/high_max': metrics['clip_ratio/high_mean'],
        ...entropyMetric(symbols, has),
      },
    };
  },
}) {}

const ROWS = { unit: 'fraction of rows' };

/** The loss of TRL's RLOO trainer. */
export class TRLRLOOLossFn extends policyLoss({
  name: 'trl/rloo',
  summary: 'the loss of a row is −min(r·A, clip(r)·A), r is the product of the ratios of its tokens',
  details: [
    'If the batch has one advantage per row, a row without tokens adds −A/B to the loss.',
    'If it has one per token, that of a row is the mean over its tokens.',
  ],
  source: ['arXiv 2402.14740', 'TRL'],
  reads: RATIO_KEYS,
  perRow: ['advantages'],
  ofRows: true,
  options: CLIP_RANGE,
  metrics: {
    'clip_ratio/low_mean': ROWS,
    'clip_ratio/high_mean': ROWS,
    'clip_ratio/region_mean': ROWS,
    'clip_ratio/low_min': { ...ROWS, when: IN_ONE_CALL },
    'clip_ratio/high_max': { ...ROWS, when: IN_ONE_CALL },
  },
  numerics: {
    range: 'log-ratios of rows, which are sums over their tokens, up to 88.7',
    outside: 'the ratio is not clipped where A < 0: the gradient overflows',
    overflows: 'for A < 0',
    exponentiatesRowSums: true,
  },
  formula: (symbols, { epsilon, epsilonHigh }) => {
    const { d, rows, exp, rowMean, rowSum } = symbols;
    const A = rowMean(symbols.A);
    const ratio = exp(rowSum(d));
    const range = [1 - epsilon, 1 + epsilonHigh] as const;
    return {
      rowLoss: surrogate(symbols, ratio, range, { A }).loss.div(rows),
      metrics: clipMetrics(symbols, outsideOf(ratio, A, range), true),
      allRows: true,
    };
  },
}) {}

/** A*-PO as in TRL. Rows without tokens count; their implicit reward is 0. */
export class TRLA2POLossFn extends policyLoss({
  name: 'trl/a2po',
  summary: 'the loss of a row is (β₂·Σ(logprob − ref_logprob) − (rewards − v_star))²',
  source: ['arXiv 2505.20686', 'TRL'],
  reads: ['ref_logprob', 'action_mask', 'rewards', 'v_star'],
  ofRows: true,
  options: {
    beta2: number({
      default: 1e-3,
      typical: [1e-3, 0.5],
      help: 'β₂, the coefficient of the log-ratio in the implicit reward',
    }),
  },
  metrics: { implicit_reward: { unit: 'reward' }, advantage: { unit: 'reward' } },
  numerics: { range: 'any finite logprobs and rewards', outside: 'nothing is clipped' },
  formula: ({ lp, ref, rewards, vStar, rows, rowSum, square }, { beta2 }) => {
    const implicit = rowSum(lp.sub(ref)).mul(beta2);
    const advantage = rewards.sub(vStar);
    return {
      rowLoss: square(implicit.sub(advantage)).div(rows),
      metrics: { implicit_reward: { row: implicit }, advantage: { row: advantage } },
      allRows: true,
    };
  },
}) {}

const NASH_BETA = 0.1;

/** Nash-MD as in TRL: `probability` is that of the row being preferred to a sample of the mixture of policies. */
export class TRLNashMDLossFn extends policyLoss({
  name: 'trl/nash_md',
  summary: 'ℓ = (β·sg(logprob − ref_logprob) − (probability − ½))·logprob, summed over each row',
  source: ['arXiv 2312.00886', 'TRL'],
  reads: ['ref_logprob', 'action_mask', 'probability'],
  options: {
    beta: number({ default: NASH_BETA, atLeast: 0, typical: [0, 1], help: 'β, the coefficient of the KL' }),
  },
  metrics: { 'loss/score': { unit: 'nats per row' }, 'loss/kl': { unit: 'nats per row' } },
  numerics: {
    range: 'any finite logprobs',
    outside: 'nothing is clipped',
    /** The KL term and the preference cancel each other. This is the KL term. */
    cancels: ({ logprob, refLogprob }) => {
      const gradient = NASH_BETA * Math.abs(logprob - refLogprob);
      return { value: gradient * Math.abs(logprob), gradient };
    },
  },
  formula: ({ lp, ref, probability, rows, rowSum, sg }, { beta }) => {
    const logRatio = lp.sub(ref);
    const preference = probability.sub(0.5);
    return {
      loss: sg(logRatio).mul(beta).sub(preference).mul(lp).div(rows),
      metrics: { 'loss/score': { row: preference.mul(rowSum(lp)) }, 'loss/kl': { row: rowSum(logRatio) } },
    };
  },
}) {}

/** SDPO as in TRL, where it is computed from the sampled tokens alone. */
export class TRLSDPOSampledTokenLossFn extends policyLoss({
  name: 'trl/sdpo_sampled_token',
  summary:
    'ℓ = sg((logprob − teacher_logprob)·min(r, clip))·logprob, the mean over each row, then over the rows',
  source: ['arXiv 2601.20802', 'TRL'],
  reads: ['old_logprob', 'action_mask', 'teacher_logprob'],
  optional: ['old_logprob'],
  options: {
    distillationIsClip: number({
      default: 2,
      nullable: true,
      above: 0,
      typical: [1, 3],
      help: 'the upper bound on the importance weight, which needs old_logprob; null for no weight',
    }),
  },
  metrics: { 'self_distillation/distillation_loss': { unit: 'loss per token' } },
  numerics: {
    range: 'any finite logprobs',
    outside: 'the log-ratio of the importance weight is limited to 20 nats',
  },
  formula: (symbols, { distillationIsClip }, has) => {
    const { lp, teacher, d, n, rows, exp, max, min, sg } = symbols;
    const cost = lp.sub(teacher);
    const isWeighted = distillationIsClip !== undefined && has('old_logprob');
    const weighted = isWeighted ? cost.mul(min(exp(limitedLog(symbols, d)), distillationIsClip)) : cost;
    const perToken = sg(weighted).mul(lp);
    return {
      loss: perToken.div(rows.mul(max(n, 1))),
      metrics: { 'self_distillation/distillation_loss': { token: perToken } },
    };
  },
}) {}

/** IW-OPD as in TRL: REINFORCE with the log-ratio of the teacher to the sampler as the advantage. */
export class TRLIWOPDLossFn extends policyLoss({
  name: 'trl/iw_opd',
  summary: 'ℓ = −v·a·logprob, where a = teacher_logprob − rollout_logprob, averaged over the tokens',
  details: [
    'v = 1 + γ·(1 − s), where s is the share of Σ|a| of the row that lies before the token.',
    'Without rollout_logprob, the sampler is the current policy.',
  ],
  source: ['arXiv 2606.22600', 'TRL'],
  reads: ['rollout_logprob', 'action_mask', 'teacher_logprob'],
  optional: ['rollout_logprob'],
  options: {
    iwOpdGamma: number({
      default: 0.5,
      atLeast: 0,
      typical: [0, 2],
      help: 'γ, the additional weight of the first token of a row',
    }),
    iwOpdEpsilon: number({
      default: 1e-8,
      above: 0,
      typical: [1e-8, 1e-3],
      help: 'the least divisor of the shares',
    }),
    numItemsInBatch: integer({
      atLeast: 0,
      typical: [1, 200],
      help: 'the sum over the tokens is divided by this; by the number of unmasked tokens if absent',
    }),
  },
  metrics: {
    'iw_opd/mean_advantage': NATS,
    'iw_opd/mean_abs_advantage': NATS,
    'iw_opd/mean_weight': RATIO,
    'iw_opd/min_weight': { ...RATIO, when: IN_ONE_CALL },
    'iw_opd/max_weight': { ...RATIO, when: IN_ONE_CALL },
  },
  numerics: { range: 'any finite logprobs', outside: 'nothing is clipped' },
  formula: (symbols, { iwOpdGamma, iwOpdEpsilon, numItemsInBatch }, has) => {
    const { lp, teacher, rollout, tokens, abs, max, rowSum, prefixSum, constant, sg } = symbols;
    const { rowMin, rowMax, rowsMin, rowsMax } = symbols;
    const advantage = sg(teacher.sub(has('rollout_logprob') ? rollout : lp));
    const size = abs(advantage);
    const before = prefixSum(size, 1).sub(size);
    const share = before.div(max(rowSum(size), iwOpdEpsilon));
    const weight = constant(1).sub(share).mul(iwOpdGamma).add(1);
    const weighted = weight.mul(advantage);
    return {
      loss: weighted
        .neg()
        .mul(lp)
        .div(max(numItemsInBatch ?? tokens, 1)),
      metrics: {
        'iw_opd/mean_advantage': { token: weighted },
        'iw_opd/mean_abs_advantage': { token: size },
        'iw_opd/mean_weight': { token: weight },
        // Rows without tokens take no part in a loss of tokens.
        'iw_opd/min_weight': { batch: rowsMin(rowMin(weight)) },
        'iw_opd/max_weight': { batch: rowsMax(rowMax(weight)) },
      },
    };
  },
}) {}
