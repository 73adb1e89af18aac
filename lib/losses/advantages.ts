// Trinity-RFT's advantage functions.
import { choice, flag, integer, number } from '../base/option.js';
import { advantage, groupMetrics } from './advantage-fn.js';
import {
  EPSILON,
  FINITE_REWARDS,
  GAE,
  GAMMA,
  GROUP_REWARDS,
  NORMALISATION,
  nativeNormalisation,
  SEED,
} from './advantage-options.js';
import type { OptionsOf } from './statement.js';

const GROUPS = ['rewards', 'group_ids', 'action_mask'] as const;

/**
 * PPO's advantage of a token: the generalised advantage estimate, from rewards and a critic's values, whitened over the
 * batch.
 */
export class PPOAdvantageFn extends advantage({
  name: 'ppo',
  summary: 'generalised advantage estimate, whitened',
  details: [
    'a_t = δ_t + γ·λ·a_{t+1} with δ_t = R_t + γ·V_{t+1} − V_t, whitened over the unmasked tokens of the batch.',
    'As in the source, masked tokens take part: their rewards and values count for the tokens before them, and they get advantages too.',
    'Returns are a + V.',
  ],
  source: ['arXiv 1506.02438', 'Trinity-RFT'],
  ...GAE,
}) {}

/**
 * GRPO's advantage of a row: its reward minus the mean reward of its group, divided by the rewards' standard deviation.
 */
export class GRPOGroupedAdvantage extends advantage({
  name: 'grpo',
  summary: '(R − mean) / (std + ε) within the group',
  details: [
    'A group of one row counts as mean 0 and standard deviation 1, so the advantage is R / (1 + ε).',
    "With the batch's standard deviation, it is R / (std + ε).",
    'The reward of a row without unmasked tokens counts in its group; in rloo, which reads rewards per token, it does not.',
  ],
  source: ['arXiv 2402.03300', 'arXiv 2508.08221', 'arXiv 2506.02355', 'Trinity-RFT'],
  reads: GROUPS,
  perRow: true,
  options: {
    ...NORMALISATION,
    duplicateExperiences: flag({
      default: false,
      random: true,
      help: 'for each group that the threshold drops, count one randomly drawn kept group once more',
    }),
    rankPenalty: number({
      trinity: null,
      atLeast: 0,
      typical: [0, 0.9],
      help: "for the group's mean and standard deviation, reduce each reward by up to this fraction, the more the likelier the answer is within its group; reads old_logprob",
    }),
    seed: SEED,
  },
  metrics: { ...groupMetrics('reward', 'reward_mean', 'reward_std'), filtered_count: { unit: 'rows' } },
  numerics: GROUP_REWARDS,
  variant: (options) => {
    const { stdThreshold, duplicateExperiences, rankPenalty = 0, seed } = options;
    return {
      options: {
        ...nativeNormalisation(options),
        duplicate_experiences: duplicateExperiences,
        rank_penalty: rankPenalty,
      },
      ...(rankPenalty > 0 && { inputs: ['rewards', 'group_ids', 'old_logprob'] }),
      drops: stdThreshold !== undefined || duplicateExperiences,
      duplicates: duplicateExperiences,
      seed,
    };
  },
}) {}

/** RLOO: a row's advantage is its reward minus the mean reward of the other rows in its group. */
export class RLOOAdvantageFn extends advantage({
  name: 'rloo',
  summary: "R − mean of the group's other rows",
  details: [
    'As in the source, R is the sum of the rewards of all tokens of the row, including masked ones.',
    'If the batch has one reward per row instead, it counts as the reward of the last unmasked token.',
    'A row without unmasked tokens then has R = 0 in its group, whatever its reward is; grpo counts the reward.',
  ],
  source: ['arXiv 2402.14740', 'Trinity-RFT'],
  reads: ['token_level_rewards', 'group_ids', 'action_mask'],
  perRow: true,
  readsMasked: true,
  options: {},
  metrics: {},
  numerics: FINITE_REWARDS,
}) {}

/** REINFORCE: gives every unmasked token of a row the row's reward as its advantage. */
export class REINFORCEGroupAdvantage extends advantage({
  name: 'reinforce',
  summary: 'R',
  source: ['Trinity-RFT'],
  reads: GROUPS,
  perRow: true,
  options: {},
  metrics: groupMetrics('reward', 'reward_mean'),
  numerics: { range: 'finite rewards', outside: 'not finite: ERR_INVALID_INPUT' },
}) {}

/**
 * REINFORCE++. A token's reward to go is the discounted sum of the rewards from this token to the end of the row. The
 * advantages are the rewards to go, whitened to mean 0 and variance 1 over the batch.
 */
export class REINFORCEPLUSPLUSAdvantageFn extends advantage({
  name: 'reinforceplusplus',
  summary: 'discounted reward to go, whitened',
  details: [
    'The advantages are whitened over the unmasked tokens of the batch.',
    'As in the source, rewards of masked tokens count for the tokens before them.',
    'Returns are the rewards to go.',
  ],
  source: ['arXiv 2501.03262', 'Trinity-RFT'],
  reads: ['token_level_rewards', 'action_mask'],
  perRow: false,
  returns: true,
  readsMasked: true,
  whitens: true,
  options: { gamma: GAMMA },
  metrics: {},
  numerics: FINITE_REWARDS,
}) {}

/**
 * ReMax. A token's advantage is the sum of the rewards from this token to the end of the row, minus the reward of the
 * greedy answer to the same prompt.
 */
export class REMAXAdvantageFn extends advantage({
  name: 'remax',
  summary: "reward to go − the greedy answer's reward",
  details: ["Only a row's unmasked tokens take part.", 'Returns are the rewards to go.'],
  source: ['arXiv 2310.10505', 'Trinity-RFT'],
  reads: ['token_level_rewards', 'reward_baselines', 'action_mask'],
  perRow: false,
  returns: true,
  options: {},
  metrics: {},
  numerics: { ...FINITE_REWARDS, range: 'finite rewards and baselines' },
}) {}

/**
 * OPMD's advantage of a row: its reward minus the baseline of its group, which is the mean or soft maximum of the
 * rewards.
 */
export class OPMDGroupAdvantage extends advantage({
  name: 'opmd',
  summary: "R − the group's mean or soft maximum",
  details: ['A group of one row has baseline 0.', 'The soft maximum is tau·ln(mean e^(R/tau)).'],
  source: ['arXiv 2505.17826', 'Trinity-RFT'],
  reads: GROUPS,
  perRow: true,
  options: {
    opmdBaseline: choice(['mean', 'logavgexp'], {
      default: 'mean',
      help: "the baseline: the rewards' mean, or their soft maximum",
    }),
    tau: number({
      default: 1,
      above: 0,
      typical: [0.05, 3],
      help: 'temperature of logavgexp, in units of reward',
    }),
  },
  metrics: groupMetrics('reward', 'group_baseline', 'reward_mean'),
  numerics: {
    range:
      'finite rewards; the soft maximum is computed in float64 relative to the largest, so it never overflows',
    outside: 'not finite: ERR_INVALID_INPUT',
    variants: [{ opmd_baseline: 'logavgexp' }],
  },
}) {}

/** The baseline that {@link OPMDGroupAdvantage} subtracts. */
export type OPMDBaseline = NonNullable<OptionsOf<typeof OPMDGroupAdvantage>['opmdBaseline']>;

/**
 * AsymRE's advantage of a row: its reward minus a baseline. The baseline is the mean reward of the row's group plus a
 * shift, which by default is negative.
 */
export class ASYMREGroupAdvantage extends advantage({
  name: 'asymre',
  summary: 'R − (mean + shift) of the group',
  details: [
    'A group of one row has baseline 0.',
    'As in the source, the metric reward_mean is the baseline minus the shift, even for a group of one row.',
  ],
  source: ['arXiv 2506.20520', 'Trinity-RFT'],
  reads: GROUPS,
  perRow: true,
  options: {
    baselineShift: number({
      default: -0.1,
      typical: [-1, 1],
      help: "added to the group's mean reward; below 0, more answers count as good than as bad",
    }),
  },
  metrics: groupMetrics('reward', 'group_baseline', 'reward_mean'),
  numerics: { range: 'finite rewards', outside: 'not finite: ERR_INVALID_INPUT' },
}) {}

/**
 * REC's advantage of a row: its reward minus the mean reward of its group. One option divides it by the standard
 * deviation of the group's rewards. Another balances a group in which most answers are bad (below the mean): the
 * surplus of them, drawn at random, gets the advantage 0.
 */
export class RECGroupedAdvantage extends advantage({
  name: 'rec',
  summary: 'R − mean of the group; surplus bad answers can be dropped',
  source: ['arXiv 2509.24203', 'Trinity-RFT'],
  reads: GROUPS,
  perRow: true,
  options: {
    epsilon: EPSILON,
    stdNormalize: flag({
      default: false,
      help: "divide by the population standard deviation of the group's rewards",
    }),
    drop: choice(['balance'], {
      trinity: null,
      random: true,
      help: 'balance: if most answers are below the mean, draw the surplus at random and give it advantage 0',
    }),
    seed: SEED,
  },
  metrics: {
    ...groupMetrics('fraction of rows', 'drop_balance'),
    ...groupMetrics('reward', 'reward_mean', 'reward_std'),
  },
  numerics: {
    range: 'finite rewards',
    outside: 'not finite: ERR_INVALID_INPUT',
    variants: [{ std_normalize: true }],
  },
  variant: ({ epsilon, stdNormalize, drop = 'none', seed }) => ({
    options: { epsilon, std_normalize: stdNormalize, drop },
    seed,
  }),
}) {}

/**
 * Step-wise GRPO. The reward of a run's last row gives the run's advantage by GRPO's rule. All rows of the run get this
 * advantage.
 */
export class StepWiseGRPOAdvantageFn extends advantage({
  name: 'step_wise_grpo',
  summary: "GRPO's advantage of a run's last reward, for all of its steps",
  details: [
    'A run is several rows (steps).',
    "Its reward is its last row's reward, normalised over the runs of its group.",
  ],
  source: ['Trinity-RFT'],
  reads: ['rewards', 'group_ids', 'run_ids', 'action_mask'],
  perRow: true,
  options: {
    ...NORMALISATION,
    enableStepNorm: flag({ default: false, help: "divide a run's advantage by its number of rows" }),
  },
  metrics: {
    ...groupMetrics('reward', 'reward_mean', 'reward_std'),
    experience_count: { unit: 'rows' },
    filtered_count: { unit: 'rows' },
    skipped_group_ratio: { unit: 'fraction of groups' },
  },
  numerics: GROUP_REWARDS,
  variant: (options) => ({
    options: { ...nativeNormalisation(options), enable_step_norm: options.enableStepNorm },
    drops: options.stdThreshold !== undefined,
  }),
}) {}

/**
 * The advantage of a token for on-policy distillation: its log-probability under the teacher minus that under the
 * policy, times a coefficient.
 */
export class OnPolicyDistillAdvantage extends advantage({
  name: 'on_policy_distill',
  summary: "klCoef·(the teacher's log-probability − the policy's own)",
  source: ['arXiv 2306.13649', 'Trinity-RFT'],
  reads: ['old_logprob', 'teacher_logprob', 'action_mask'],
  perRow: false,
  options: {
    klCoef: number({ default: 1, typical: [0.01, 2], help: 'the difference is multiplied by this' }),
  },
  metrics: {
    'kl/mean': { unit: 'nats per row, mean over rows' },
    'kl/std': { unit: 'nats per row, standard deviation over rows' },
    'advantages/mean': { unit: 'nats per row, mean over rows' },
  },
  numerics: { range: 'any finite logprobs', outside: 'NaN and Infinity pass through' },
}) {}

/**
 * The advantage for distillation. A token's advantage is minus the generalised Jensen-Shannon divergence between policy
 * and teacher at that token.
 */
export class JSDAdvantage extends advantage({
  name: 'jsd',
  summary: '− generalised Jensen-Shannon divergence from the teacher',
  details: [
    'The advantage of an unmasked token is −klCoef·(β·(t − M) + (1 − β)·(s − M)), where s, t and M are its log-probabilities under the policy, the teacher and their mixture.',
    'As in the source, the divergence in brackets is s − t at β = 0 and t − s at β = 1.',
    'As in the source, the tokens are always those that the policy sampled, never the teacher. So with β > 0, a token that the teacher finds unlikely may be rewarded for it.',
  ],
  source: ['arXiv 2306.13649', 'Trinity-RFT'],
  reads: ['old_logprob', 'teacher_logprob', 'action_mask'],
  perRow: false,
  options: {
    lambdaCoef: number({
      default: 0.5,
      atLeast: 0,
      atMost: 1,
      typical: [0, 1],
      help: "the teacher's share β of the mixture; 0 is on-policy distillation",
    }),
    klCoef: number({ default: 1, typical: [0.01, 2], help: 'the divergence is multiplied by this' }),
    temperature: number({
      default: 1,
      above: 0,
      typical: [0.3, 3],
      help: 'log-probabilities are divided by this',
    }),
    chunkSize: integer({
      trinity: null,
      atLeast: 1,
      typical: [1, 512],
      help: 'no effect; accepted because the source computes this many tokens at once',
    }),
  },
  metrics: {
    'jsd/mean': { unit: 'nats per row, mean over rows' },
    'jsd/std': { unit: 'nats per row, standard deviation over rows' },
    'advantages/mean': { unit: 'nats per row, mean over rows' },
  },
  numerics: {
    range: 'any finite logprobs',
    outside:
      'NaN and Infinity pass through; the mixture is computed relative to the larger one, so it never overflows',
    /**
     * The mixture's log-probability M lies between the policy's (s) and the teacher's (t). So the terms that cancel,
     * which contain t − M and s − M, are at most |s − t| in size.
     */
    cancels: ({ oldLogprob, teacherLogprob }) => ({ value: Math.abs(oldLogprob - teacherLogprob) }),
  },
  variant: ({ lambdaCoef, klCoef, temperature }) => ({
    options: { lambda_coef: lambdaCoef, kl_coef: klCoef, temperature },
  }),
}) {}
