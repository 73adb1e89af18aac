// What verl's advantage functions over groups of rows have in common.
import { EPSILON } from '../options.js';

/** Details of every function of a row's sum of rewards. */
export const ROW_REWARD = [
  'R is the sum of the rewards of all tokens of the row, masked ones included.',
  'If the batch has one reward per row instead, it counts as the reward of the last unmasked token.',
] as const;

/** The declaration that these functions share, except for their names, options and formulas. */
export const OF_ROW_REWARDS = {
  reads: ['token_level_rewards', 'group_ids', 'action_mask'],
  perRow: true,
  readsMasked: true,
  metrics: {},
} as const;

/** The numerics that these functions declare. */
export const FINITE_REWARDS = {
  range: 'finite rewards',
  outside: 'not finite: ERR_INVALID_INPUT; results beyond 3.4e38 are Infinity',
} as const;

/** The details of functions that whiten over the tokens of the batch. */
export const WHITENED =
  'Whitening is over the unmasked tokens of the batch. verl refuses batches with fewer than two such tokens; here their advantages are 0.';

/** The options of functions that can divide by the standard deviation of the group's rewards. */
export const NORMALISED = {
  epsilon: EPSILON,
  normAdvByStdInGrpo: {
    type: 'boolean',
    default: true,
    help: "divide by the standard deviation of the group's rewards",
  },
} as const;
