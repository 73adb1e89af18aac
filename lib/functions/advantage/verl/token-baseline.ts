// What verl's two functions with a baseline per token have in common.

/** The details of both functions. */
export const TOKEN_BASELINE = [
  'The baseline is Σ W·G / (Σ W + ε) over the rows of the group, where G is the reward to go of unmasked tokens.',
  'W sums 1 − 2·exp(old_logprob) + sum_pi_squared over the unmasked tokens up to this one, times the square of rollout_is_weights if the batch has them.',
  "A group's only row has baseline 0. Returns are G.",
] as const;

/** The declaration that both functions share, except for their names and formulas. */
export const OF_TOKENS = {
  source: ['arXiv 2602.07078', 'verl'],
  reads: ['token_level_rewards', 'old_logprob', 'sum_pi_squared', 'group_ids', 'action_mask'],
  optional: ['rollout_is_weights'],
  perRow: false,
  returns: true,
  comparesTokens: true,
  options: {
    handleZeroTail: {
      type: 'boolean',
      default: true,
      help: 'give the longest row of a group no baseline beyond the end of the second longest',
    },
    epsilon: {
      type: 'number',
      default: 1e-8,
      above: 0,
      typical: [1e-8, 1e-3],
      help: 'added to the sum of the weights',
    },
  },
  metrics: {},
  numerics: {
    range: 'finite rewards; sum_pi_squared of at least exp(2·old_logprob)',
    outside:
      'rewards that are not finite: ERR_INVALID_INPUT; a sum of weights near −ε: results without meaning',
  },
} as const;
