// The devices that compute, and how much of this machine they may use.
import { describeValue, LossError } from './errors.js';
import { native } from './native.js';

/** The CPU, as a device. */
export interface CpuDevice {
  name: 'cpu';
  available: true;
  /** Cores that the machine has. */
  cores: number;
  /** Threads that compute at once, all calls together. */
  threads: number;
  /** The instruction set in use: avx512, avx2, sse4 or neon. `POLICY_LOSS_ISA` chooses another at load. */
  isa: string;
}

/** A GPU. */
export interface CudaDevice {
  /** 'cuda:0', 'cuda:1', …: what `device` options take. */
  name: string;
  available: true;
  /** The maker's name of it. */
  description: string;
  /** In bytes. */
  memory: number;
  /** Such as '9.0'. */
  computeCapability: string;
}

/** What stands in the list where there is no CUDA device. */
export interface NoCudaDevice {
  name: 'cuda';
  available: false;
  /** Why there is none: built without CUDA, no driver, no device. */
  reason: string;
}

/** A device, or the reason that there is none of its kind. */
export type Device = CpuDevice | CudaDevice | NoCudaDevice;

// Devices neither come nor go while a process runs, and asking for their properties is slow.
let cuda: ReturnType<typeof native.cudaDevices> | undefined;

/** The devices of this machine: the CPU, then each CUDA device, or one entry that says why there is none. */
export function devices(): [CpuDevice, ...(CudaDevice | NoCudaDevice)[]] {
  cuda ??= native.cudaDevices();
  const list: ReturnType<typeof devices> = [{ name: 'cpu', available: true, ...native.cpu() }];
  for (const { index, ...about } of cuda.devices)
    list.push({ name: `cuda:${index}`, available: true, ...about });
  if (list.length === 1) list.push({ name: 'cuda', available: false, reason: cuda.reason ?? 'no device' });
  return list;
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

/**
 * The index of a CUDA device by its name ('cuda' is the first one); undefined for the CPU.
 * @throws LossError `ERR_DEVICE_UNAVAILABLE` with the devices there are, and why there is no CUDA device.
 */
export function cudaIndex(device: string | undefined): number | undefined {
  if (device === undefined || device === 'cpu') return undefined;
  const name = device === 'cuda' ? 'cuda:0' : device;
  const all = devices();
  const found = all.find((d) => d.name === name && d.available);
  if (found) return Number(name.slice('cuda:'.length));
  const known = all.filter((d) => d.available).map((d) => d.name);
  const reason = all.find((d) => !d.available);
  throw new LossError(
    'ERR_DEVICE_UNAVAILABLE',
    `device ${describeValue(device)} is not there: expected one of ${known.join(', ')}` +
      (reason ? `; there is no CUDA device: ${(reason as NoCudaDevice).reason}` : ''),
  );
}
