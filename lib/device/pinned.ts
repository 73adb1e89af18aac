// Page-locked host memory, which devices read and write without staging.
import { constants } from 'node:buffer';
import { fromNative } from '../base/abortable.js';
import { describeValue, guarded, guardedAsync, LossError } from '../base/errors.js';
import { isArrayBuffer } from '../base/kinds.js';
import { cuda } from '../base/native.js';
import { requireCuda } from './device.js';

/**
 * Allocates page-locked memory on the host. Uploads, updates and calls on a CUDA device recognise arrays in it, as
 * columns and as gradients, and copy them directly instead of through buffers of their own. The results have the same
 * bits. The memory suits every device of the machine, and the CPU.
 *
 * The device reads and writes the memory while a call is in progress, so leave the arrays alone until the call's promise
 * settles. The ArrayBuffer cannot be transferred to another thread. The memory is freed by {@link freePinned}, or when
 * JavaScript collects the buffer, but never while a call uses it. Page-locked memory cannot be
 * swapped out, and allocating it is slow, so allocate it once, before the training loop.
 *
 * @param bytes the number of bytes, such as 4·B·T for a Float32Array. The memory has any content.
 * @param device the name of the device for which it is allocated: 'cuda' (the first one, the default), 'cuda:0', ….
 * @returns a promise that rejects with LossError `ERR_DEVICE_UNAVAILABLE`, `ERR_INVALID_INPUT` or `ERR_OUT_OF_MEMORY`.
 */
export function allocPinned(bytes: number, device = 'cuda'): Promise<ArrayBuffer> {
  return guardedAsync(async () => {
    const index = requireCuda('allocPinned', device, 'The CPU needs no page-locked memory');
    if (!Number.isInteger(bytes) || bytes < 0 || bytes > constants.MAX_LENGTH)
      throw new LossError('ERR_INVALID_INPUT', {
        at: 'allocPinned',
        key: 'bytes',
        expected: `a whole number from 0 to ${constants.MAX_LENGTH}`,
        received: describeValue(bytes),
      });
    if (bytes === 0) return new ArrayBuffer(0);
    try {
      return await cuda.allocPinned(index, bytes);
    } catch (error) {
      throw fromNative(error);
    }
  });
}

/**
 * Frees page-locked memory without waiting for JavaScript to collect it. The buffer is detached: arrays on it have no
 * elements any more. Calls in progress keep the memory until they end; this function does not wait for them. It does
 * nothing if the buffer is empty or was freed already.
 * @param buffer an ArrayBuffer of {@link allocPinned}.
 * @throws LossError `ERR_INVALID_INPUT` if it is not one.
 */
export function freePinned(buffer: ArrayBuffer): void {
  guarded(() => {
    const isBuffer = isArrayBuffer(buffer);
    if (isBuffer && buffer.byteLength === 0) return;
    if (!isBuffer || !cuda.freePinned(buffer))
      throw new LossError('ERR_INVALID_INPUT', {
        at: 'freePinned',
        key: 'buffer',
        expected: 'an ArrayBuffer of allocPinned()',
        received: isBuffer ? 'another ArrayBuffer' : describeValue(buffer),
      });
  });
}
