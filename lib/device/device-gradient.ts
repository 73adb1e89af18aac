// Gradients that stay in the memory of a CUDA device.

// Declares Disposable and Symbol.dispose for programs whose target does not include them.
/// <reference lib="esnext.disposable" preserve="true" />

import type { NativeDeviceArray } from '../../binding.js';
import { fromNative } from '../base/abortable.js';
import { guardedAsync, LossError } from '../base/errors.js';
import { cuda } from '../base/native.js';
import { resultArray } from '../base/result-arrays.js';
import type { Layout } from '../batch/layout.js';

// The gradients of this thread whose memory was exported and not freed, by their handles in hexadecimal digits. CUDA does
// not open memory of the process itself, so a call on such a handle reads the gradient.
const exported = new Map<string, WeakRef<DeviceGradient>>();
const collected = new FinalizationRegistry<string>((handle) => {
  if (!exported.get(handle)?.deref()) exported.delete(handle);
});

const digits = (handle: Uint8Array) => Buffer.from(handle).toString('hex');

/**
 * A gradient in the memory of a CUDA device. A call returns one if its option `grad` is `'device'`. Pass it as `grad` of
 * a later call on the same device, with a batch of the same shape, to overwrite it instead of allocating memory.
 *
 * The values are complete when the call has returned or its promise has resolved, so every stream of the process may
 * read them. They stay until a call overwrites them, or until dispose(). A gradient that is dropped without dispose() is
 * freed when JavaScript collects it, which may be late, because JavaScript does not know how much device memory it
 * holds.
 */
export class DeviceGradient implements Disposable {
  /** The device's name: 'cuda:0', 'cuda:1', …. */
  readonly device: string;
  /** The type of the values. */
  readonly dtype: 'float32' = 'float32';
  /** [B, T] for padded rows; [tokens] for packed rows, which lie one after another. */
  readonly shape: readonly [number, number] | readonly [number];
  readonly #index: number;
  readonly #length: number;
  readonly #shareable: boolean;
  #native: NativeDeviceArray | undefined;
  // The handle of the exported memory in hexadecimal digits; undefined before ipcHandle().
  #handle: string | undefined;

  /** @internal The memory is allocated by the first call that writes the gradient. */
  constructor(index: number, layout: Layout, shareable: boolean) {
    this.device = `cuda:${index}`;
    this.shape = shapeOf(layout);
    this.#index = index;
    this.#length = layout.tokens;
    this.#shareable = shareable;
    this.#native = cuda.deviceArray(index, layout.tokens, shareable);
  }

  /**
   * The address of the first value on the device. The values lie one after another, in the order of the tokens. It is 0n
   * if the batch has no tokens.
   * @throws LossError `ERR_INVALID_INPUT` if the gradient was disposed of.
   */
  get pointer(): bigint {
    return cuda.deviceArrayAddress(this.#held());
  }

  /** Whether the gradient was disposed of. */
  get disposed(): boolean {
    return this.#native === undefined;
  }

  /**
   * Copies the values to the host, after all calls that were made before.
   * @returns a promise of the gradient. It rejects with LossError `ERR_INVALID_INPUT` if the gradient was disposed of,
   * `ERR_OUT_OF_MEMORY` or `ERR_DEVICE_UNAVAILABLE`.
   */
  toHost(): Promise<Float32Array> {
    return guardedAsync(async () => {
      const held = this.#held();
      const out = resultArray(`a gradient of ${this.#length} values`, this.#length);
      try {
        await cuda.readDeviceArray(held, out);
      } catch (error) {
        throw fromNative(error);
      }
      return out;
    });
  }

  /**
   * Exports the memory of a gradient that was requested with `grad: 'shareable'`, so that another process can open it with
   * cudaIpcOpenMemHandle(), or pass it to this package as an {@link IpcColumn}. The gradient must not be disposed of, nor
   * overwritten by a call, while the other process uses it.
   * @returns a promise of the 64 bytes of a cudaIpcMemHandle_t. It rejects with LossError `ERR_INVALID_INPUT` if the
   * gradient was disposed of, is empty, or was requested with `grad: 'device'`; `ERR_DEVICE_UNAVAILABLE` if CUDA cannot
   * export memory on this machine.
   */
  ipcHandle(): Promise<Uint8Array> {
    return guardedAsync(async () => {
      const held = this.#held();
      if (!this.#shareable || this.#length === 0)
        throw new LossError('ERR_INVALID_INPUT', {
          at: `gradient on ${this.device}`,
          expected: 'one with shareable memory',
          received: this.#shareable ? 'one without values' : 'one with other memory',
          hint: "Request it with grad: 'shareable'",
        });
      try {
        const handle = await cuda.exportDeviceArray(held);
        if (this.#native === held && !this.#handle) {
          this.#handle = digits(handle);
          exported.set(this.#handle, new WeakRef(this));
          collected.register(this, this.#handle);
        }
        return handle;
      } catch (error) {
        throw fromNative(error);
      }
    });
  }

  /** @internal Returns the gradient of this thread whose memory has this handle and was not disposed of. */
  static withHandle(handle: Uint8Array): DeviceGradient | undefined {
    return exported.get(digits(handle))?.deref();
  }

  /**
   * Disposes of the gradient, whose pointer must not be used afterwards. Its device memory is freed as soon as no running
   * call uses it. Does not wait for that. Calls of this process that begin later do not accept its {@link ipcHandle}.
   */
  dispose(): void {
    if (this.#native) cuda.releaseDeviceArray(this.#native);
    this.#native = undefined;
    if (this.#handle) exported.delete(this.#handle);
    this.#handle = undefined;
  }

  /** Calls dispose(), so that a gradient can be declared with `using`. */
  [Symbol.dispose](): void {
    this.dispose();
  }

  /**
   * @internal Returns the native array.
   * @throws LossError `ERR_INVALID_INPUT` if the gradient was disposed of.
   */
  array(): NativeDeviceArray {
    return this.#held();
  }

  /**
   * @internal Checks that a call on a device can overwrite the gradient.
   * @param key the name of the option.
   * @throws LossError `ERR_INVALID_INPUT`, `ERR_SHAPE_MISMATCH`
   */
  check(key: string, index: number, layout: Layout): void {
    this.#held();
    if (index !== this.#index)
      throw new LossError('ERR_INVALID_INPUT', {
        key,
        expected: `a gradient on cuda:${index}, which computes the call`,
        received: `one on ${this.device}`,
      });
    const shape = shapeOf(layout);
    if (`${shape}` !== `${this.shape}`)
      throw new LossError('ERR_SHAPE_MISMATCH', {
        key,
        expected: `a gradient of shape [${shape.join(', ')}]`,
        received: `[${this.shape.join(', ')}]`,
      });
  }

  #held(): NativeDeviceArray {
    if (this.#native === undefined)
      throw new LossError('ERR_INVALID_INPUT', {
        at: `gradient on ${this.device}`,
        expected: 'a gradient in memory',
        received: 'one that was disposed of',
      });
    return this.#native;
  }
}

function shapeOf({
  rows,
  rowLength,
  tokens,
  offsets,
}: Layout): readonly [number, number] | readonly [number] {
  return offsets ? [tokens] : [rows, rowLength];
}
