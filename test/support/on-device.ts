/** The batch with which tests use a CUDA device, real or emulated. */
import assert from 'node:assert/strict';
import { type CudaDevice, devices, type LossErrorCode } from '../../lib/index.js';

export const DEVICE = 'cuda:0';
export const ROWS = 6;
export const TOKENS = 600;

/** Returns a column of the batch. */
export const column = (value: (i: number) => number) =>
  Float32Array.from({ length: TOKENS }, (_, i) => value(i));

/** Returns the batch, in new arrays. It is padded, and a few of its tokens are masked. */
export const makeColumns = () => ({
  shape: [ROWS, TOKENS / ROWS] as const,
  logprob: column((i) => -1 - (i % 7) / 10),
  oldLogprob: column((i) => -1 - (i % 5) / 10),
  refLogprob: column((i) => -1 - (i % 3) / 10),
  entropy: column((i) => (i % 13) / 10),
  advantages: column((i) => (i % 3) - 1),
  actionMask: Uint8Array.from({ length: TOKENS }, (_, i) => (i % 11 === 0 ? 0 : 1)),
});
export const batch = makeColumns();
const { shape: _, ...columns } = batch;
/** The batch as packed rows, of which one is empty. */
export const packed = { ...columns, cuSeqlens: [0, 150, 150, 151, 600] };

/** The CUDA devices that can be used. */
export const gpus = devices().filter((d): d is CudaDevice => d.available && d.name.startsWith('cuda:'));
export const isEmulated = gpus[0]?.description === 'emulated';
/** Whether blocks of the emulated device take turns. Kernels then take five times as long, so tests do less with them. */
export const isInterleaved = process.env.POLICY_LOSS_EMULATION_RESIDENT !== undefined;

/** Asserts that a call rejects with a LossError that has this code and whose message matches. */
export async function rejects(
  work: () => Promise<unknown>,
  code: LossErrorCode,
  message: RegExp,
): Promise<void> {
  await assert.rejects(work, { name: 'LossError', code, message });
}
