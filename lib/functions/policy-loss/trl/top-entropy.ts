// The option of TRL's losses that leaves out tokens with a low entropy.

/** The option, of which no value but its default can be computed. */
export const TOP_ENTROPY = {
  topEntropyQuantile: {
    type: 'number',
    default: 1,
    atLeast: 1,
    atMost: 1,
    help: 'the fraction of the tokens, those with the highest entropies, that the loss is computed from; it can only be 1',
  },
} as const;
