// Batches that were copied to a device and stay there.

// Declares Disposable and Symbol.dispose for programs whose target does not include them.
/// <reference lib="esnext.disposable" preserve="true" />

import type { NativeResident } from '../../binding.js';
import { cudaIndex } from './device.js';
import { describeValue, LossError } from './errors.js';
import type { Layout } from './layout.js';
import { native } from './native.js';

/**
 * A batch whose columns stay on a CUDA device until the batch is disposed of, by `using` or dispose(). {@link upload}
 * creates it. Every compute() accepts it instead of a host batch and then runs on the batch's device. Gradients are
 * returned as host arrays.
 */
export class DeviceBatch implements Disposable {
  /** The device's name: 'cuda:0', 'cuda:1', …. */
  readonly device: string;
  /** The shape [B, T]: B rows of T tokens. For packed rows, T is the length of the longest row. */
  readonly shape: readonly [number, number];
  /** The trainer's step number, as given in the host batch's `step`. */
  readonly step: unknown;
  readonly #index: number;
  readonly #layout: Layout;
  readonly #columns: ReadonlySet<string>;
  readonly #perRow: ReadonlySet<string>;
  #resident: NativeResident | undefined;

  /** @internal */
  constructor(
    index: number,
    layout: Layout,
    columns: ReadonlySet<string>,
    perRow: ReadonlySet<string>,
    step: unknown,
    resident: NativeResident,
  ) {
    this.device = `cuda:${index}`;
    this.shape = [layout.rows, layout.rowLength];
    this.step = step;
    this.#index = index;
    this.#layout = layout;
    this.#columns = columns;
    this.#perRow = perRow;
    this.#resident = resident;
  }

  /** Whether the batch was disposed of. */
  get disposed(): boolean {
    return this.#resident === undefined;
  }

  /**
   * Disposes of the batch, which cannot be used afterwards. Its device memory is freed as soon as no running call uses
   * it.
   */
  dispose(): void {
    if (this.#resident) native.release(this.#resident);
    this.#resident = undefined;
  }

  /** Calls dispose(), so that a batch can be declared with `using`. */
  [Symbol.dispose](): void {
    this.dispose();
  }

  /** Returns whether the batch has a column with this Trinity-RFT name. */
  has(column: string): boolean {
    return this.#columns.has(column);
  }

  /**
   * Returns whether a column has one value per row although it could have one per token.
   * @internal
   */
  isPerRow(column: string): boolean {
    return this.#perRow.has(column);
  }

  /**
   * Returns the native batch and its layout.
   * @internal
   * @throws LossError `ERR_INVALID_INPUT` if the batch was disposed of, or if `device` names a device other than the
   * batch's.
   */
  resident(device: string | undefined): { native: NativeResident; layout: Layout } {
    if (this.#resident === undefined)
      throw new LossError('ERR_INVALID_INPUT', {
        at: `batch on ${this.device}`,
        expected: 'a batch in memory',
        received: 'one that was disposed of',
      });
    if (device !== undefined && (device === 'cpu' || cudaIndex(device) !== this.#index))
      throw new LossError('ERR_INVALID_INPUT', {
        option: 'device',
        expected: `${this.device}, which holds the batch, or no device`,
        received: describeValue(device),
      });
    return { native: this.#resident, layout: this.#layout };
  }
}
