// Lists the devices of this machine, and sets how many threads may compute at the same time.
import type { NativeCudaDevices } from '../../binding.js';
import { describeValue, LossError } from '../base/errors.js';
import { cuda, native } from '../base/native.js';

/** Describes the CPU, which is one of the devices. */
export interface CpuDevice {
  /** The name that `device` options accept. */
  name: 'cpu';
  /** Always true. */
  available: true;
  /** The number of the machine's cores. */
  cores: number;
  /**
   * The maximum number of threads that compute at the same time, over all calls of the process; see {@link setThreads}.
   */
  threads: number;
  /**
   * The instruction set in use: avx512, avx2, sse4 or neon. To use another one, set the environment variable
   * `POLICY_LOSS_ISA` before the package is loaded.
   */
  isa: string;
}

/** Describes a GPU that can be used. */
export interface CudaDevice {
  /** The name that `device` options accept: 'cuda:0', 'cuda:1', …. */
  name: string;
  /** Always true. A GPU that cannot be used is a {@link NoCudaDevice}. */
  available: true;
  /** The name of the GPU's model. */
  description: string;
  /** The size of the GPU's memory in bytes. */
  memory: number;
  /** The GPU's compute capability, such as '9.0'. */
  computeCapability: string;
  /**
   * The oldest NVIDIA driver for Linux that runs this build of the package, as the first part of its version, such as
   * '525'. Absent on other systems, and if the package does not know the driver of its CUDA version.
   */
  requiredDriver?: string;
}

/** The reason that no CUDA device exists, or that one cannot be used. */
export interface CudaObstacle {
  /**
   * What the reason is:
   * - `built-without-cuda`: this build of the package has no CUDA kernels.
   * - `no-driver`: the machine has no NVIDIA driver.
   * - `old-driver`: the driver supports CUDA only up to `driverVersion`, but this build needs `requiredVersion`.
   * - `no-device`: the driver does not show any device to this process.
   * - `old-device`: the device's compute capability is below `requiredCapability`.
   * - `failed`: the driver failed; `message` quotes its error.
   */
  code: 'built-without-cuda' | 'no-driver' | 'old-driver' | 'no-device' | 'old-device' | 'failed';
  /** The reason as text for people, including the versions. */
  message: string;
  /** The newest CUDA version that the driver supports, such as '12.4'; absent if the machine has no driver. */
  driverVersion?: string;
  /**
   * The CUDA version that the driver must support for this build of the package; absent if it was built without CUDA.
   */
  requiredVersion?: string;
  /** The same as {@link CudaDevice.requiredDriver}. Also absent if the package was built without CUDA. */
  requiredDriver?: string;
  /** The device's compute capability, such as '7.5'. Present only if it is too low. */
  computeCapability?: string;
  /** The lowest compute capability that this build supports. Present only if the device's is too low. */
  requiredCapability?: string;
}

/** Describes a CUDA device that cannot be used, or explains why the machine has no CUDA device. */
export interface NoCudaDevice {
  /** The device's name, such as 'cuda:0'; 'cuda' if the machine has no CUDA device. */
  name: string;
  /** Always false. */
  available: false;
  /** The reason that the device cannot be used, or that none exists. */
  reason: CudaObstacle;
  /** The name of the device's model; absent if the machine has no CUDA device. */
  description?: string;
}

// The first part of the version of the oldest NVIDIA driver for Linux that supports a CUDA version. The versions are
// those that a build can need: the first version with each major number, and those with which the package can be built.
const DRIVERS: Readonly<Record<string, string>> = {
  '12.0': '525',
  '12.4': '550',
  '12.5': '555',
  '12.6': '560',
  '12.8': '570',
  '12.9': '575',
  '13.0': '580',
};

/** A device, or an explanation why a device cannot be used. */
export type Device = CpuDevice | CudaDevice | NoCudaDevice;

// Caches the CUDA devices, because they do not change while a process runs and querying them is slow.
let found: (CudaDevice | NoCudaDevice)[] | undefined;

/**
 * Lists the devices of this machine: first the CPU, then each CUDA device. If the machine has no CUDA device, one entry
 * gives the reason.
 */
export function devices(): [CpuDevice, ...(CudaDevice | NoCudaDevice)[]] {
  return [{ name: 'cpu', available: true, ...native.cpu() }, ...structuredClone(gpus())];
}

/** Returns the indices of the CUDA devices that can be used. */
export function cudaIndices(): number[] {
  return gpus()
    .filter((d) => d.available)
    .map((d) => indexOf(d.name));
}

function indexOf(name: string): number {
  return Number(name.slice('cuda:'.length));
}

function gpus(): (CudaDevice | NoCudaDevice)[] {
  found ??= cudaDevices(cuda.cudaDevices());
  return found;
}

function cudaDevices(found: NativeCudaDevices): (CudaDevice | NoCudaDevice)[] {
  const versions = {
    ...(found.driverVersion > 0 && { driverVersion: versionOf(found.driverVersion) }),
    ...(found.requiredVersion > 0 && { requiredVersion: versionOf(found.requiredVersion) }),
  };
  const driver = process.platform === 'linux' ? DRIVERS[versions.requiredVersion ?? ''] : undefined;
  const required = { ...(driver !== undefined && { requiredDriver: driver }) };
  if (found.obstacle !== undefined) {
    const message =
      found.obstacle === 'old-driver'
        ? `the NVIDIA driver supports CUDA up to ${versions.driverVersion}, but this build of policy-loss needs ` +
          `${versions.requiredVersion}; install ${driver ? `driver ${driver} or newer` : 'a newer driver'}`
        : found.message!;
    const reason = { code: found.obstacle, message, ...versions, ...required };
    return [{ name: 'cuda', available: false, reason }];
  }
  return found.devices.map(({ index, description, memory, capability, leastCapability }) => {
    const name = `cuda:${index}`;
    const computeCapability = (capability / 10).toFixed(1);
    if (capability >= leastCapability)
      return { name, available: true, description, memory, computeCapability, ...required };
    const requiredCapability = (leastCapability / 10).toFixed(1);
    const message = `${description} has compute capability ${computeCapability}, but this build of policy-loss needs ${requiredCapability}`;
    return {
      name,
      available: false,
      description,
      reason: {
        code: 'old-device',
        message,
        ...versions,
        ...required,
        computeCapability,
        requiredCapability,
      },
    };
  });
}

function versionOf(number: number): string {
  return `${Math.floor(number / 1000)}.${Math.floor((number % 1000) / 10)}`;
}

/**
 * Limits how many threads compute, or copy to and from devices, at the same time. The limit applies to all calls of the
 * process together. It does not change any result.
 * @throws LossError `ERR_INVALID_OPTION` if `threads` is not a whole number from 1 to 4096.
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
 * Returns the index of the CUDA device with the given name, for a function that the CPU does not have.
 * @param at the function's name, for error messages.
 * @param hint what holds for the CPU.
 * @throws LossError `ERR_DEVICE_UNAVAILABLE` as cudaIndex() does, and if the name is that of the CPU.
 */
export function requireCuda(at: string, device: string | undefined, hint?: string): number {
  const index = cudaIndex(device);
  if (index !== undefined) return index;
  throw new LossError('ERR_DEVICE_UNAVAILABLE', {
    at,
    option: 'device',
    expected: 'a CUDA device',
    received: describeValue(device),
    hint,
  });
}

/**
 * Returns the index of the CUDA device with the given name, or undefined for the CPU. The name 'cuda' means the first
 * CUDA device that can be used.
 * @throws LossError `ERR_DEVICE_UNAVAILABLE` if the device does not exist or cannot be used. The message lists the
 * usable devices and gives the reason. The error's `cause` is a {@link CudaObstacle}.
 */
export function cudaIndex(device: string | undefined): number | undefined {
  if (device === undefined || device === 'cpu') return undefined;
  const usable = gpus().filter((d) => d.available);
  const found = usable.find((d) => device === 'cuda' || d.name === device);
  if (found) return indexOf(found.name);
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
