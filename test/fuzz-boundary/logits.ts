/** Valid arguments of the functions that compute from logits, for the targets of the boundary fuzzer. */
import type { Anything } from './odd-values.js';

const ROWS = 2;
export const VOCABULARY = 3;

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

/** Returns hidden states of four numbers per token, and the head of a vocabulary, in place of log-probabilities. */
export const hiddenOfTokens = (tokens: number): Anything => ({
  hidden: new Float32Array(4 * tokens).fill(0.5),
  weight: new Float32Array(4 * VOCABULARY).fill(0.25),
  bias: { data: new Uint16Array(VOCABULARY), dtype: 'bfloat16' },
  targets: new Int32Array(tokens),
  temperature: 0.5,
  softcap: 30,
});

/** Returns the logits of a student and of a teacher, in all forms in which losses take them. */
export const teacherOfTokens = (tokens: number): Anything => ({
  logits: new Float32Array(VOCABULARY * tokens),
  probs: new Float32Array(VOCABULARY * tokens).fill(1 / VOCABULARY),
  targets: new Int32Array(tokens),
  teacherLogits: { data: new Uint16Array(VOCABULARY * tokens), dtype: 'bfloat16' },
  teacherProbs: new Float32Array(VOCABULARY * tokens).fill(1 / VOCABULARY),
  refLogits: new Float32Array(VOCABULARY * tokens),
  teacherTopkIds: Int32Array.from({ length: 2 * tokens }, (_, i) => i % 2),
  teacherTopkLogprobs: new Float32Array(2 * tokens).fill(-1),
  distillMask: new Uint8Array(tokens).fill(1),
  selfDistillationMask: [1, 0],
});
