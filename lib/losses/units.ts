// The units of metrics that many functions have, and the condition of metrics that need the whole batch.

/** The metric is a loss. */
export const LOSS = { unit: 'loss' };
/** The metric is a fraction of the tokens. */
export const FRACTION = { unit: 'fraction of tokens' };
/** The metric is a fraction of the pairs of rows. */
export const FRACTION_OF_PAIRS = { unit: 'fraction of pairs' };
/** The metric is a mean of log-probabilities, of differences between them, or of entropies. */
export const NATS = { unit: 'nats per token' };
/** The metric is a ratio of probabilities. */
export const RATIO = { unit: 'ratio' };

/** The condition of a metric that the result of a part of a batch lacks. */
export const IN_ONE_CALL = 'when the whole batch is computed in one call';
