// Options of advantage functions, and how they behave outside the range of their inputs.
import { choice, integer, number } from '../base/option.js';
import { type CheckedOptions, nativeOptions, type PassedOptions } from '../base/options.js';

/** The option `gamma`: the discount factor γ, by which a reward counts less with each token that it lies further ahead. */
export const GAMMA = number({
  default: 1,
  atLeast: 0,
  atMost: 1,
  typical: [0.9, 1],
  help: 'γ, the discount of a reward per token',
});

/** The option `lam`: the factor λ, by which later differences δ of values count less. */
export const LAM = number({
  default: 1,
  atLeast: 0,
  atMost: 1,
  typical: [0, 1],
  help: 'λ, the discount of later differences δ',
});

/** The option `epsilon`, which keeps the division by a standard deviation finite. */
export const EPSILON = number({
  default: 1e-6,
  atLeast: 0,
  typical: [1e-6, 0.1],
  help: 'added to the standard deviation',
});

/** The option `seed`, which makes random draws repeatable. */
export const SEED = integer({ default: 0, listed: false, atLeast: 0, help: 'seed of the random draws' });

/** The options that control how rewards are normalised. GRPO and step-wise GRPO share them. */
export const NORMALISATION = {
  epsilon: EPSILON,
  stdThreshold: number({
    trinity: null,
    atLeast: 0,
    typical: [0, 1.2],
    help: 'drop groups with one reward, and groups whose rewards have a standard deviation of at most this',
  }),
  stdCalLevel: choice(['group', 'batch'], {
    default: 'group',
    help: "compute the standard deviation over the group's rewards, or over the batch's",
  }),
};

/** The options that control how rewards are normalised, as a caller passes them. */
export type NormalisationOptions = PassedOptions<typeof NORMALISATION>;

/** The rewards from which the standard deviation is computed: those of the group, or those of the whole batch. */
export type StdCalLevel = NonNullable<NormalisationOptions['stdCalLevel']>;

/** Converts the options for native code, where NaN stands for an absent threshold. */
export function nativeNormalisation(options: CheckedOptions<typeof NORMALISATION>) {
  return nativeOptions(NORMALISATION, { ...options, stdThreshold: options.stdThreshold ?? Number.NaN });
}

/** The numerics of functions whose results may overflow. */
export const FINITE_REWARDS = {
  range: 'finite rewards',
  outside: 'not finite: ERR_INVALID_INPUT; results beyond 3.4e38 are Infinity',
};

/** The numerics of functions that compare the rewards of a group. */
export const GROUP_REWARDS = {
  range: 'finite rewards',
  outside: 'not finite: ERR_INVALID_INPUT; a group of equal rewards has advantages 0',
};

/** The common part of the statements of generalised advantage estimates. */
export const GAE = {
  reads: ['token_level_rewards', 'values', 'action_mask'],
  perRow: false,
  returns: true,
  readsMasked: true,
  whitens: true,
  options: { gamma: GAMMA, lam: LAM },
  metrics: {},
  numerics: { ...FINITE_REWARDS, range: 'finite rewards and values' },
} as const;
