/** Valid arguments of the functions that compute from logits, for the targets of the boundary fuzzer. */
import type { Anything } from './odd-values.js';

const ROWS = 2;
const VOCABULARY = 3;

/** Returns the options of logprobs() for two rows of three logits. */
export const ofRows = (): Anything => ({
  shape: [ROWS, VOCABULARY],
  targets: new Int32Array([1, -100]),
  temperature: new Float64Array([0.5, 2]),
  softcap: 30,
  support: { tokenIds: new Int32Array([1, 2, 0]), offsets: new Int32Array([0, 2, 3]) },
  rowStride: VOCABULARY,
  device: 'cpu',
  entropy: true,
});

/** Returns the options of logprobsBackward() for the same rows. */
export const rowsAndGradients = (): Anything => ({
  ...ofRows(),
  gradLogprob: new Float64Array(ROWS),
  gradEntropy: new Float32Array(ROWS),
  logsumexp: new Float64Array(ROWS),
  entropy: new Float32Array(ROWS),
  out: new Float32Array(ROWS * VOCABULARY),
});

/** Returns what a batch has in place of log-probabilities, with two logits per token. */
export const logitsOfTokens = (tokens: number): Anything => ({
  logits: new Float32Array(2 * tokens),
  targets: new Int32Array(tokens),
  vocabulary: 2,
  temperature: 0.5,
  softcap: 30,
  support: {
    tokenIds: new Int32Array(tokens),
    offsets: Int32Array.from({ length: tokens + 1 }, (_, i) => i),
  },
  rowStride: 2,
});
