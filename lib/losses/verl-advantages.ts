// verl's advantage functions.
import { LossError } from '../base/errors.js';
import { flag, list, number } from '../base/option.js';
import { nativeOptions } from '../base/options.js';
import { advantage } from './advantage-fn.js';
import { EPSILON, FINITE_REWARDS, GAE, GAMMA } from './advantage-options.js';

/** Details of every function of a row's sum of rewards. */
const ROW_REWARD = [
  'R is the sum of the rewards of all tokens of the row, masked ones included.',
  'If the batch has one reward per row instead, it counts as the reward of the last unmasked token.',
] as const;

/** The declaration that these functions share, except for their names, options and formulas. */
const OF_ROW_REWARDS = {
  reads: ['token_level_rewards', 'group_ids', 'action_mask'],
  perRow: true,
  readsMasked: true,
  metrics: {},
  numerics: FINITE_REWARDS,
} as const;

/** The details of functions that whiten over the tokens of the batch. */
const WHITENED =
  'Whitening is over the unmasked tokens of the batch. verl refuses batches with fewer than two such tokens; here their advantages are 0.';

/** The options of functions that can divide by the standard deviation of the group's rewards. */
const NORMALISED = {
  epsilon: EPSILON,
  normAdvByStdInGrpo: flag({
    default: true,
    help: "divide by the standard deviation of the group's rewards",
  }),
};

/** GAE as in verl: masked tokens neither add to the estimate of the tokens before them nor discount it. */
export class VerlGAEAdvantageFn extends advantage({
  name: 'verl/gae',
  summary: 'generalised advantage estimate, whitened; skips masked tokens',
  details: [
    'a_t = δ_t + γ·λ·a_{t+1} with δ_t = R_t + γ·V_{t+1} − V_t, where t + 1 is the next unmasked token.',
    'A masked token has the a of the next unmasked token. Returns are a + V, at masked tokens too.',
    WHITENED,
  ],
  source: ['arXiv 1506.02438', 'verl'],
  ...GAE,
}) {}

/** REINFORCE++ as in verl: the discounted rewards to go of the unmasked tokens, whitened. */
export class VerlREINFORCEPlusPlusAdvantageFn extends advantage({
  name: 'verl/reinforce_plus_plus',
  summary: 'discounted reward to go, whitened; skips masked tokens',
  details: [
    'A masked token neither adds its reward nor discounts the later ones. Its advantage and its return are 0.',
    'Returns are the rewards to go.',
    WHITENED,
  ],
  source: ['arXiv 2501.03262', 'verl'],
  reads: ['token_level_rewards', 'action_mask'],
  perRow: false,
  returns: true,
  whitens: true,
  options: { gamma: GAMMA },
  metrics: {},
  numerics: FINITE_REWARDS,
}) {}

/** REINFORCE++ with a baseline: a row's reward minus the mean reward of its group, whitened over the batch. */
export class VerlREINFORCEPlusPlusBaselineAdvantageFn extends advantage({
  name: 'verl/reinforce_plus_plus_baseline',
  ...OF_ROW_REWARDS,
  summary: 'R − mean of the group, whitened',
  details: [...ROW_REWARD, 'A group of one row has mean 0.', WHITENED],
  source: ['arXiv 2501.03262', 'verl'],
  whitens: true,
  options: {},
}) {}

/** GRPO as in verl: a row's reward minus the mean of its group, divided by the standard deviation or (Dr. GRPO) not. */
export class VerlGRPOVectorizedAdvantageFn extends advantage({
  name: 'verl/grpo_vectorized',
  ...OF_ROW_REWARDS,
  summary: '(R − mean) / (std + ε) within the group',
  details: [
    ...ROW_REWARD,
    'A group of one row counts as mean 0 and standard deviation 1.',
    'Without the division by the standard deviation, this is Dr. GRPO.',
  ],
  source: ['arXiv 2402.03300', 'arXiv 2503.20783', 'verl'],
  options: NORMALISED,
}) {}

/** Pass@k advantages: the best row of a group gets its distance from the second best row; the others get 0. */
export class VerlGRPOPassKAdvantageFn extends advantage({
  name: 'verl/grpo_passk',
  ...OF_ROW_REWARDS,
  summary: '(R − second largest R) / (std + ε) for the best row of the group, 0 for others',
  details: [
    ...ROW_REWARD,
    'If several rows of a group are best, all get 0. verl refuses a group of one row; here it gets 0.',
  ],
  source: ['arXiv 2503.19595', 'verl'],
  options: NORMALISED,
}) {}

/** RLOO as in verl's vectorised form: a row's reward minus the mean reward of the other rows in its group. */
export class VerlRLOOVectorizedAdvantageFn extends advantage({
  name: 'verl/rloo_vectorized',
  ...OF_ROW_REWARDS,
  summary: "R − mean of the group's other rows; a group's only row gets 0",
  details: ROW_REWARD,
  source: ['arXiv 2402.14740', 'verl'],
  options: {},
}) {}

/** OPO: a row's reward minus the mean reward of its group, in which every unmasked token counts equally. */
export class VerlOPOAdvantageFn extends advantage({
  name: 'verl/opo',
  ...OF_ROW_REWARDS,
  summary: "R − mean of the group, weighted by the rows' tokens",
  details: [
    ...ROW_REWARD,
    'A group of one row has mean 0. verl gives NaN to a group without unmasked tokens; here it gets 0.',
  ],
  source: ['arXiv 2505.23585', 'verl'],
  options: {},
}) {}

/** GPG: a row's reward minus the mean of its group, divided by the share of the batch's rows that have a reward. */
export class VerlGPGAdvantageFn extends advantage({
  name: 'verl/gpg',
  ...OF_ROW_REWARDS,
  summary: 'α·(R − mean of the group) / f_norm with α = rows / rows of R ≠ 0',
  details: [
    ...ROW_REWARD,
    'A group of one row has mean 0. If no row has R ≠ 0, α is the number of rows.',
    "The paper's α counts the rows of groups whose rewards differ.",
  ],
  source: ['arXiv 2504.02546', 'verl'],
  options: {
    fNorm: number({
      default: 1,
      above: 0,
      typical: [0.5, 4],
      help: 'the number by which advantages are divided',
    }),
  },
}) {}

/** GDPO: the weighted sum of the GRPO advantages of several rewards, whitened over the batch. */
export class VerlGDPOAdvantageFn extends advantage({
  name: 'verl/gdpo',
  ...OF_ROW_REWARDS,
  summary: 'Σ w·(R − mean) / (std + ε) over several rewards, whitened',
  details: [
    'Without gdpo_reward_keys, the only reward is the sum of the rewards of all tokens of the row.',
    'Batches on a device do not have the named rewards; compute a batch from host memory instead.',
    'A group of one row counts as mean 0 and standard deviation 1.',
    WHITENED,
  ],
  source: ['arXiv 2601.05242', 'verl'],
  whitens: true,
  options: {
    ...NORMALISED,
    gdpoRewardKeys: list('text', {
      trinity: null,
      typical: [null],
      help: "the batch's keys with a reward per row, read instead of token_level_rewards",
    }),
    gdpoRewardWeights: list('number', {
      trinity: null,
      typical: [null],
      help: 'the weight of each of these rewards; by default 1',
    }),
  },
  variant: (options) => {
    const { gdpoRewardKeys: keys, gdpoRewardWeights: weights = keys?.map(() => 1) } = options;
    if (weights?.length !== keys?.length)
      throw new LossError('ERR_INVALID_OPTION', {
        option: 'gdpoRewardWeights',
        expected: (spell) =>
          `one number for each of ${spell('gdpoRewardKeys')} (${keys?.length ?? 'absent'})`,
        received: `${weights?.length} numbers`,
      });
    return {
      options: nativeOptions(NORMALISED, options),
      ...(keys && weights && { inputs: ['group_ids'], named: { keys: [...keys], weights: [...weights] } }),
    };
  },
}) {}

/** The details of both functions. */
const TOKEN_BASELINE = [
  'The baseline is Σ W·G / (Σ W + ε) over the rows of the group, where G is the reward to go of unmasked tokens.',
  'W sums 1 − 2·exp(old_logprob) + sum_pi_squared over the unmasked tokens up to this one, times the square of rollout_is_weights if the batch has them.',
  "A group's only row has baseline 0. Returns are G.",
] as const;

/** The declaration that both functions share, except for their names and formulas. */
const OF_TOKENS = {
  source: ['arXiv 2602.07078', 'verl'],
  reads: ['token_level_rewards', 'old_logprob', 'sum_pi_squared', 'group_ids', 'action_mask'],
  optional: ['rollout_is_weights'],
  perRow: false,
  returns: true,
  comparesTokens: true,
  options: {
    handleZeroTail: flag({
      default: true,
      help: 'give the longest row of a group no baseline beyond the end of the second longest',
    }),
    epsilon: number({
      default: 1e-8,
      above: 0,
      typical: [1e-8, 1e-3],
      help: 'added to the sum of the weights',
    }),
  },
  metrics: {},
  numerics: {
    range: 'finite rewards; sum_pi_squared of at least exp(2·old_logprob)',
    outside:
      'rewards that are not finite: ERR_INVALID_INPUT; a sum of weights near −ε: results without meaning',
  },
} as const;

/** The optimal token baseline: a token's reward to go minus a weighted mean of the group's rewards to go at its column. */
export class VerlOptimalTokenBaselineAdvantageFn extends advantage({
  name: 'verl/optimal_token_baseline',
  ...OF_TOKENS,
  summary: 'reward to go − mean of the group at the same column, weighted by gradient energy',
  details: [...TOKEN_BASELINE, 'Columns are compared with numbers of tokens, so masks should be prefixes.'],
}) {}

/** The optimal token baseline for tool-integrated reasoning: the n-th unmasked tokens of a group's rows are compared. */
export class VerlTIROptimalTokenBaselineAdvantageFn extends advantage({
  name: 'verl/tir_optimal_token_baseline',
  ...OF_TOKENS,
  summary: 'reward to go − mean of the group at the n-th unmasked token, weighted by gradient energy',
  details: [...TOKEN_BASELINE, 'Rows without unmasked tokens do not count in their groups.'],
}) {}
