// Batches that lie on a device.
import type { NativeResident } from '../../binding.js';
import type { Layout } from './batch.js';
import { cudaIndex } from './device.js';
import { describeValue, LossError } from './errors.js';
import { native } from './native.js';

/**
 * A batch whose columns lie on a CUDA device and stay there until it is disposed of (`using`, or dispose()).
 * compute() and its like take it in the place of a host batch and compute it where it lies; gradients come back as
 * arrays of the host. Made by {@link upload}.
 */
export class DeviceBatch implements Disposable {
  /** 'cuda:0', … */
  readonly device: string;
  /** [B, T]; of packed rows T is the longest one's length. */
  readonly shape: readonly [number, number];
  /** The trainer's step, as the host batch had it. */
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
    this.shape = [layout.rows, layout.columns];
    this.step = step;
    this.#index = index;
    this.#layout = layout;
    this.#columns = columns;
    this.#resident = resident;
  }

  /** Whether its memory has been freed. */
  get disposed(): boolean {
    return this.#resident === undefined;
  }

  /** Frees the device's memory, once no call that is under way uses it. Calls after this are errors. */
  dispose(): void {
    if (this.#resident) native.release(this.#resident);
    this.#resident = undefined;
  }

  /** dispose(), for `using`. */
  [Symbol.dispose](): void {
    this.dispose();
  }

  /** Whether it has a column, under Trinity's name. */
  has(column: string): boolean {
    return this.#columns.has(column);
  }

  /**
   * What native code needs of it.
   * @internal
   * @throws LossError `ERR_INVALID_INPUT` after dispose(), or where another device is asked for.
   */
  resident(device: string | undefined): { native: NativeResident; layout: Layout } {
    if (this.#resident === undefined)
      throw new LossError(
        'ERR_INVALID_INPUT',
        `the batch on ${this.device} was disposed of: expected one that was not`,
      );
    if (device !== undefined && (device === 'cpu' || cudaIndex(device) !== this.#index))
      throw new LossError(
        'ERR_INVALID_INPUT',
        `device: expected ${this.device}, where the batch lies, or none, not ${describeValue(device)}`,
      );
    return { native: this.#resident, layout: this.#layout };
  }
}
