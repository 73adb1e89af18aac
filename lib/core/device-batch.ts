// Batches that reside on a device.
import type { NativeResident } from '../../binding.js';
import { cudaIndex } from './device.js';
import { describeValue, LossError } from './errors.js';
import type { Layout } from './layout.js';
import { native } from './native.js';

/**
 * A batch whose columns reside on a CUDA device until it is disposed of (`using`, or dispose()). Every compute()
 * accepts it instead of a host batch and runs on its device; gradients come back as host arrays. {@link upload} creates
 * it.
 */
export class DeviceBatch implements Disposable {
  /** 'cuda:0', … */
  readonly device: string;
  /** [B, T]; T is the length of the longest row if rows are packed. */
  readonly shape: readonly [number, number];
  /** The host batch's `step`: the trainer's step number. */
  readonly step: unknown;
  readonly #index: number;
  readonly #layout: Layout;
  readonly #columns: ReadonlySet<string>;
  #resident: NativeResident | undefined;

  /** @internal */
  constructor(
    index: number,
    layout: Layout,
    columns: ReadonlySet<string>,
    step: unknown,
    resident: NativeResident,
  ) {
    this.device = `cuda:${index}`;
    this.shape = [layout.rows, layout.rowLength];
    this.step = step;
    this.#index = index;
    this.#layout = layout;
    this.#columns = columns;
    this.#resident = resident;
  }

  /** Whether dispose() has been called. */
  get disposed(): boolean {
    return this.#resident === undefined;
  }

  /** Frees the device memory as soon as no running call uses it. The batch cannot be used afterwards. */
  dispose(): void {
    if (this.#resident) native.release(this.#resident);
    this.#resident = undefined;
  }

  /** Calls dispose(); for `using`. */
  [Symbol.dispose](): void {
    this.dispose();
  }

  /** Returns whether it has a column, by Trinity's name. */
  has(column: string): boolean {
    return this.#columns.has(column);
  }

  /**
   * Returns the native batch.
   * @internal
   * @throws LossError `ERR_INVALID_INPUT` after dispose(), or if `device` names another device.
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
