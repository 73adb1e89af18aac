// Streams of CUDA that belong to the caller.
import { describeValue, LossError } from '../base/errors.js';

// CUDA's handle of the default stream of the calling thread. Calls run on threads of their own.
const PER_THREAD = 2n;

/**
 * Checks the option `stream` of a call.
 * @param device the index of the device that computes the call, or undefined for the CPU.
 * @throws LossError `ERR_INVALID_INPUT`
 */
export function checkStream(stream: bigint | undefined, device: number | undefined): void {
  if (stream === undefined) return;
  const refuse = (expected: string, received: string) => {
    throw new LossError('ERR_INVALID_INPUT', { option: 'stream', expected, received });
  };
  if (typeof stream !== 'bigint' || stream < 0n || stream >= 2n ** 64n)
    refuse('a cudaStream_t as a bigint', describeValue(stream));
  if (stream === PER_THREAD) refuse('a stream that every thread can name', 'cudaStreamPerThread');
  if (device === undefined) refuse('no stream, because the CPU computes the call', describeValue(stream));
}
