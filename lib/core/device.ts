// The devices of this machine, and the number of threads that may compute.
import type { NativeCudaDevices } from '../../binding.js';
import { describeValue, LossError } from './errors.js';
import { native } from './native.js';

/** The CPU, as a device. */
export interface CpuDevice {
  /** The name for `device` options. */
  name: 'cpu';
  /** The CPU is always available. */
  available: true;
  /** The machine's cores. */
  cores: number;
  /** The most threads that compute at once, over all calls together. */
  threads: number;
  /**
   * The instruction set in use: avx512, avx2, sse4 or neon. The environment variable `POLICY_LOSS_ISA` selects another
   * at load.
   */
  isa: string;
}

/** A GPU. */
export interface CudaDevice {
  /** The name for `device` options: 'cuda:0', 'cuda:1', …. */
  name: string;
  /** It can be used. */
  available: true;
  /** The model's name. */
  description: string;
  /** Its memory in bytes. */
  memory: number;
  /** The compute capability, such as '9.0'. */
  computeCapability: string;
}

/** Why there is no CUDA device, or why one cannot be used. */
export interface CudaObstacle {
  /**
   * - `built-without-cuda`: this build of the package has no CUDA kernels.
   * - `no-driver`: the machine has no NVIDIA driver.
   * - `old-driver`: the driver supports CUDA up to `driverVersion`, but this build needs `requiredVersion`.
   * - `no-device`: the driver shows no device to this process.
   * - `old-device`: the device's compute capability is below `requiredCapability`.
   * - `failed`: the driver failed; the message quotes it.
   */
  code: 'built-without-cuda' | 'no-driver' | 'old-driver' | 'no-device' | 'old-device' | 'failed';
  /** The reason in words, with the versions. */
  message: string;
  /** The newest CUDA version that the driver supports, such as '12.4'; absent without a driver. */
  driverVersion?: string;
  /** The CUDA version that this build needs; absent in builds without CUDA. */
  requiredVersion?: string;
  /** The compute capability of an old device, such as '7.5'. */
  computeCapability?: string;
  /** The smallest compute capability that this build supports; present for an old device. */
  requiredCapability?: string;
}

/** A CUDA device that cannot be used, or the reason that none exists. */
export interface NoCudaDevice {
  /** The device's name; 'cuda' if no device exists. */
  name: string;
  /** It cannot be used. */
  available: false;
  /** Why not. */
  reason: CudaObstacle;
  /** The model's name, if the device exists. */
  description?: string;
}

/** A device, or the reason that no device of its kind can be used. */
export type Device = CpuDevice | CudaDevice | NoCudaDevice;

// Cached, because devices do not change while a process runs and querying them is slow.
let cuda: (CudaDevice | NoCudaDevice)[] | undefined;

/** Lists the devices of this machine: the CPU, then each CUDA device, or one entry that says why none exists. */
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
        ? `the NVIDIA driver supports CUDA up to ${versions.driverVersion}, but this build of policy-loss needs ` +
          `${versions.requiredVersion}; install a newer driver`
        : found.message!;
    return [{ name: 'cuda', available: false, reason: { code: found.obstacle, message, ...versions } }];
  }
  return found.devices.map(({ index, description, memory, capability, leastCapability }) => {
    const name = `cuda:${index}`;
    const computeCapability = (capability / 10).toFixed(1);
    if (capability >= leastCapability)
      return { name, available: true, description, memory, computeCapability };
    const requiredCapability = (leastCapability / 10).toFixed(1);
    const message = `${description} has compute capability ${computeCapability}, but this build of policy-loss needs ${requiredCapability}`;
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
 * Limits the number of threads that compute, or copy to and from devices, at once over all calls of the process.
 * Results do not depend on it.
 * @throws LossError `ERR_INVALID_OPTION`
 */
export function setThreads(threads: number): void {
  if (!Number.isInteger(threads) || threads < 1 || threads > 4096)
    throw new LossError('ERR_INVALID_OPTION', {
      option: 'threads',
      expected: 'a whole number from 1 to 4096',
      received: describeValue(threads),
    });
  native.setThreads(threads);
}

/**
 * Returns the index of a CUDA device by its name ('cuda' means the first usable one), or undefined for the CPU.
 * @throws LossError `ERR_DEVICE_UNAVAILABLE` with the existing devices and the reason; its cause is the
 * {@link CudaObstacle}.
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
    {
      option: 'device',
      expected: `one of ${['cpu', ...usable.map((d) => d.name)].join(', ')}`,
      received: describeValue(device),
      hint: reason && `${named && name !== 'cuda' ? name : 'CUDA'} is unavailable: ${reason.message}`,
    },
    { cause: reason },
  );
}
