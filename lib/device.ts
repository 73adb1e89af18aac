// The devices that compute, and how much of this machine they may use.
import { describeValue, LossError } from './errors.js';
import { native } from './native.js';

/** A device that losses can be computed on. */
export interface Device {
  /** What `device` options take: 'cpu'. */
  name: string;
  /** Cores that the machine has. */
  cores: number;
  /** Threads that compute at once, all calls together. */
  threads: number;
  /** The instruction set in use: avx512, avx2, sse4 or neon. `POLICY_LOSS_ISA` chooses another at load. */
  isa: string;
}

/** The devices of this machine. */
export function devices(): Device[] {
  return [{ name: 'cpu', ...native.cpu() }];
}

/**
 * Lets at most so many threads compute at once, all calls of the process together. Results do not depend on it.
 * @throws LossError `ERR_INVALID_OPTION`
 */
export function setThreads(threads: number): void {
  if (!Number.isInteger(threads) || threads < 1 || threads > 4096)
    throw new LossError('ERR_INVALID_OPTION', `threads: expected 1 to 4096, not ${describeValue(threads)}`);
  native.setThreads(threads);
}

/** @throws LossError `ERR_DEVICE_UNAVAILABLE` for any device but the CPU. */
export function checkHostDevice(device: string | undefined): void {
  if (device === undefined || device === 'cpu') return;
  throw new LossError(
    'ERR_DEVICE_UNAVAILABLE',
    `device ${describeValue(device)} is not there: expected one of ${devices().map((d) => d.name)}`,
  );
}
