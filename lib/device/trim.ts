// Gives memory that is kept for later calls back to the driver.
import { fromNative } from '../base/abortable.js';
import { guardedAsync } from '../base/errors.js';
import { cuda } from '../base/native.js';
import { cudaIndices, requireCuda } from './device.js';

/**
 * Gives the memory that the package keeps for later calls on a CUDA device back to the driver: device memory that no
 * batch or gradient occupies, and up to 24 MiB of page-locked host memory through which arrays are copied. Other users of
 * the device can then have it. The next calls allocate what they need again, so they take longer.
 *
 * Waits until the calls that are in progress on the device have ended. Does nothing on a device that no call has used.
 *
 * @param device the name of the device: 'cuda', 'cuda:0', …; every CUDA device that can be used if absent.
 * @returns a promise that rejects with LossError `ERR_DEVICE_UNAVAILABLE` if the device does not exist, is the CPU, cannot
 * be used or no longer works.
 */
export function trimDevice(device?: string): Promise<void> {
  return guardedAsync(async () => {
    const indices = device === undefined ? cudaIndices() : [requireCuda('trimDevice', device)];
    try {
      await Promise.all(indices.map((index) => cuda.trim(index)));
    } catch (error) {
      throw fromNative(error);
    }
  });
}
