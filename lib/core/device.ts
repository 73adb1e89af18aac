// The devices that compute, and how much of this machine they may use.
import type { NativeCudaDevices } from '../../binding.js';
import { describeValue, LossError } from './errors.js';
import { native } from './native.js';

/** The CPU, as a device. */
export interface CpuDevice {
  /** What `device` options take. */
  name: 'cpu';
  /** It always is. */
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
  /** It can be used. */
  available: true;
  /** The maker's name of it. */
  description: string;
  /** In bytes. */
  memory: number;
  /** Such as '9.0'. */
  computeCapability: string;
}

/** Why there is no CUDA device, or why one cannot be used. */
export interface CudaObstacle {
  /**
   * - `built-without-cuda`: this build of the package has no CUDA kernels.
   * - `no-driver`: the machine has no NVIDIA driver.
   * - `old-driver`: its driver knows CUDA up to `driverVersion`, and this build needs `requiredVersion`.
   * - `no-device`: there is a driver, and no device that this process may see.
   * - `old-device`: the device's compute capability is below `requiredCapability`.
   * - `failed`: the driver failed; the message has its words.
   */
  code: 'built-without-cuda' | 'no-driver' | 'old-driver' | 'no-device' | 'old-device' | 'failed';
  /** The same in words, with the numbers. */
  message: string;
  /** The newest version of CUDA that the driver knows, such as '12.4'. Absent where there is no driver. */
  driverVersion?: string;
  /** The version of CUDA that this build is of, and that a driver must know at least. Absent in builds without CUDA. */
  requiredVersion?: string;
  /** Of an old device: its own, such as '7.5'. */
  computeCapability?: string;
  /** Of an old device: what this build has code for at least. */
  requiredCapability?: string;
}

/** What stands in the list where there is no CUDA device, and for each that cannot be used. */
export interface NoCudaDevice {
  /** 'cuda' where there is none at all, else the device's name. */
  name: string;
  /** It cannot be used. */
  available: false;
  /** Why not. */
  reason: CudaObstacle;
  /** The maker's name of it, where there is one. */
  description?: string;
}

/** A device, or the reason that there is none of its kind. */
export type Device = CpuDevice | CudaDevice | NoCudaDevice;

// Devices neither come nor go while a process runs, and asking for their properties is slow.
let cuda: (CudaDevice | NoCudaDevice)[] | undefined;

/** The devices of this machine: the CPU, then each CUDA device, or one entry that says why there is none. */
export function devices(): [CpuDevice, ...(CudaDevice | NoCudaDevice)[]] {
  return [{ name: 'cpu', available: true, ...native.cpu() }, ...structuredClone(gpus())];
}

function gpus(): (CudaDevice | NoCudaDevice)[] {
  cuda ??= cudaDevices(native.cudaDevices());
  return cuda;
}

function cudaDevices(found: NativeCudaDevices): (CudaDevice | NoCudaDevice)[] {
  const versions = {
    ...(found.driverVersion > 0 && { driverVersion: versionOf(found.driverVersion) }),
    ...(found.buildVersion > 0 && { requiredVersion: versionOf(found.buildVersion) }),
  };
  if (found.obstacle !== undefined) {
    const message =
      found.obstacle === 'old-driver'
        ? `the NVIDIA driver knows CUDA up to ${versions.driverVersion}, and this build of policy-loss needs ` +
          `${versions.requiredVersion}; a newer driver would do`
        : found.message!;
    return [{ name: 'cuda', available: false, reason: { code: found.obstacle, message, ...versions } }];
  }
  return found.devices.map(({ index, description, memory, capability, leastCapability }) => {
    const name = `cuda:${index}`;
    const computeCapability = (capability / 10).toFixed(1);
    if (capability >= leastCapability)
      return { name, available: true, description, memory, computeCapability };
    const requiredCapability = (leastCapability / 10).toFixed(1);
    const message = `${description} has compute capability ${computeCapability}, and this build of policy-loss needs ${requiredCapability}`;
    return {
      name,
      available: false,
      description,
      reason: { code: 'old-device', message, ...versions, computeCapability, requiredCapability },
    };
  });
}

function versionOf(number: number): string {
  return `${Math.floor(number / 1000)}.${Math.floor((number % 1000) / 10)}`;
}

/**
 * Lets at most so many threads compute at once, all calls of the process together, or copy to devices and back. Results
 * do not depend on it.
 * @throws LossError `ERR_INVALID_OPTION`
 */
export function setThreads(threads: number): void {
  if (!Number.isInteger(threads) || threads < 1 || threads > 4096)
    throw new LossError('ERR_INVALID_OPTION', `threads: expected 1 to 4096, not ${describeValue(threads)}`);
  native.setThreads(threads);
}

/**
 * The index of a CUDA device by its name ('cuda' is the first one that can be used); undefined for the CPU.
 * @throws LossError `ERR_DEVICE_UNAVAILABLE` with the devices there are, and why there is no CUDA device; its cause is
 * the {@link CudaObstacle}.
 */
export function cudaIndex(device: string | undefined): number | undefined {
  if (device === undefined || device === 'cpu') return undefined;
  const usable = gpus().filter((d) => d.available);
  const found = usable.find((d) => device === 'cuda' || d.name === device);
  if (found) return Number(found.name.slice('cuda:'.length));
  const unusable = gpus().filter((d) => !d.available);
  const named = unusable.find((d) => d.name === device);
  const { name, reason } = named ?? unusable[0] ?? {};
  throw new LossError(
    'ERR_DEVICE_UNAVAILABLE',
    `device ${describeValue(device)} is not there: expected one of ${['cpu', ...usable.map((d) => d.name)].join(', ')}` +
      (reason ? `; there is no ${named && name !== 'cuda' ? name : 'CUDA device'}: ${reason.message}` : ''),
    { cause: reason },
  );
}
