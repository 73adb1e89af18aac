// Declarations of options that several advantage functions have.

/**
 * The option `gamma`: the discount factor γ, by which a reward counts less with each token that it lies further ahead.
 */
export const GAMMA = {
  type: 'number',
  default: 1,
  atLeast: 0,
  atMost: 1,
  typical: [0.9, 1],
  help: 'γ, the discount of a reward per token',
} as const;

/** The option `lam`: the factor λ, by which later differences δ of values count less. */
export const LAM = {
  type: 'number',
  default: 1,
  atLeast: 0,
  atMost: 1,
  typical: [0, 1],
  help: 'λ, the discount of later differences δ',
} as const;

/** The option `epsilon`, which keeps the division by a standard deviation finite. */
export const EPSILON = {
  type: 'number',
  default: 1e-6,
  atLeast: 0,
  typical: [1e-6, 0.1],
  help: 'added to the standard deviation',
} as const;

/** The option `seed`, which makes random draws repeatable. */
export const SEED = {
  type: 'integer',
  default: 0,
  listed: false,
  atLeast: 0,
  help: 'seed of the random draws',
} as const;
