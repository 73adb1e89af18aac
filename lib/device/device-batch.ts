// Batches that were copied to a device and stay there.

// Declares Disposable and Symbol.dispose for programs whose target does not include them.
/// <reference lib="esnext.disposable" preserve="true" />

import type { NativeResident } from '../../binding.js';
import { describeValue, LossError } from '../base/errors.js';
import { cuda } from '../base/native.js';
import { type Steps, takeLater, takeNative } from '../base/steps.js';
import { KeyMapper } from '../batch/key-mapper.js';
import type { Layout } from '../batch/layout.js';
import { cudaIndex } from './device.js';
import { checkStream } from './stream.js';
import { type ColumnUpdate, type ConvertedUpdate, readUpdate, type UpdateOptions } from './update.js';

/**
 * The values of a batch on a device. They never change: an update makes new ones. So a call that consists of several
 * native calls reads the same values in all of them.
 */
export class ResidentValues {
  /** The index of the device. */
  readonly device: number;
  readonly native: NativeResident;
  readonly columns: ReadonlySet<string>;
  readonly perRow: ReadonlySet<string>;
  #users = 0;
  #isDropped = false;

  /**
   * @param columns the names of all inputs that the batch has.
   * @param perRow the names of the columns that have one value per row although they could have one per token.
   */
  constructor(
    device: number,
    resident: NativeResident,
    columns: ReadonlySet<string>,
    perRow: ReadonlySet<string>,
  ) {
    this.device = device;
    this.native = resident;
    this.columns = columns;
    this.perRow = perRow;
  }

  /** Takes steps and keeps the values on the device until the last one, even if they are dropped meanwhile. */
  *takeResident<T>(steps: Steps<T>): Steps<T> {
    this.#users++;
    try {
      return yield* steps;
    } finally {
      this.#users--;
      if (this.#isDropped) this.drop();
    }
  }

  /** Frees the device memory as soon as no call uses it. Does not wait for that. */
  drop(): void {
    this.#isDropped = true;
    if (this.#users === 0) cuda.release(this.native);
  }

  /** Returns these values with some columns replaced by those that were uploaded to `resident`. */
  with(resident: NativeResident, { perRow }: ConvertedUpdate): ResidentValues {
    const kept = [...this.perRow].filter((name) => !perRow.has(name));
    const added = [...perRow].filter(([, isPerRow]) => isPerRow).map(([name]) => name);
    return new ResidentValues(
      this.device,
      resident,
      new Set([...this.columns, ...perRow.keys()]),
      new Set([...kept, ...added]),
    );
  }
}

/**
 * A batch whose columns stay on a CUDA device until the batch is disposed of, by `using` or dispose(). {@link upload}
 * creates it. Every compute() accepts it instead of a host batch and then runs on the batch's device. Gradients are
 * returned as host arrays, unless a call asks for them on the device. {@link DeviceBatch.update} replaces columns, such as
 * the log-probabilities of each epoch.
 */
export class DeviceBatch implements Disposable {
  /** The device's name: 'cuda:0', 'cuda:1', …. */
  readonly device: string;
  /** The shape [B, T]: B rows of T tokens. For packed rows, T is the length of the longest row. */
  readonly shape: readonly [number, number];
  /** The trainer's step number, as given in the host batch's `step`. */
  readonly step: unknown;
  readonly #layout: Layout;
  #values: ResidentValues | undefined;
  #isUpdating = false;
  readonly #hadAttentionMask: boolean;

  /**
   * @param hadAttentionMask whether the host batch has attention_mask, which is not copied.
   * @internal
   */
  constructor(layout: Layout, values: ResidentValues, step: unknown, hadAttentionMask: boolean) {
    this.device = `cuda:${values.device}`;
    this.shape = [layout.rows, layout.rowLength];
    this.step = step;
    this.#layout = layout;
    this.#values = values;
    this.#hadAttentionMask = hadAttentionMask;
  }

  /**
   * Checks that a loss which would read attention_mask computes the same without it.
   * @throws LossError `ERR_INVALID_INPUT` if the host batch has this mask.
   * @internal
   */
  checkAttention(): void {
    if (!this.#hadAttentionMask) return;
    throw new LossError('ERR_INVALID_INPUT', {
      key: 'attention_mask',
      expected: 'a batch in host memory, because this mask is not copied to a device',
      received: `a batch on ${this.device}`,
    });
  }

  /** Whether the batch was disposed of. */
  get disposed(): boolean {
    return this.#values === undefined;
  }

  /**
   * Gives the batch new values of float columns, whether it had these columns or not. Copies only them to the device;
   * everything else stays there. A column may also get another dtype, or one value per row instead of one per token.
   *
   * Calls that began before the update read the old values until they end, and the update does not wait for them. Calls
   * on the batch are refused until the promise settles, so `await` it. If it rejects, the batch keeps all old values.
   * The device needs memory for the old and the new values of the given columns at the same time.
   *
   * @param columns the new values, in nats where they are log-probabilities or entropies. See {@link ColumnUpdate} for
   * their shapes.
   * @returns a promise that rejects with LossError `ERR_INVALID_INPUT` or `ERR_SHAPE_MISMATCH` if a column is invalid, if
   * a key does not name a float column, if the batch was disposed of, or if another update is under way;
   * `ERR_OUT_OF_MEMORY`, `ERR_DEVICE_UNAVAILABLE` or `ERR_ABORTED`.
   */
  update(columns: ColumnUpdate, options?: UpdateOptions): Promise<void> {
    return takeLater(this.#update(columns, options), options);
  }

  *#update(columns: ColumnUpdate, options: UpdateOptions | undefined): Steps<void> {
    const { backend = 'verl', stream } = options ?? {};
    const mapper = KeyMapper.get(backend);
    const { values: before, layout } = this.resident(undefined);
    checkStream(stream, before.device);
    this.#isUpdating = true;
    try {
      const read = yield* readUpdate(columns, layout, mapper, before.device);
      const resident = this.#held().native; // throws if the batch was disposed of in the meantime
      const call = { resident, batch: read.loss, inputs: read.advantage, stream };
      const made = yield* takeNative((abort) => cuda.update({ ...call, abort }));
      const after = before.with(made, read);
      if (this.#values !== before) {
        after.drop();
        throw this.#disposedError();
      }
      before.drop();
      this.#values = after;
    } finally {
      this.#isUpdating = false;
    }
  }

  /**
   * Disposes of the batch, which cannot be used afterwards. Its device memory is freed as soon as no running call uses
   * it. Does not wait for that.
   */
  dispose(): void {
    this.#values?.drop();
    this.#values = undefined;
  }

  /** Calls dispose(), so that a batch can be declared with `using`. */
  [Symbol.dispose](): void {
    this.dispose();
  }

  /** Returns whether the batch has a column with this Trinity-RFT name. */
  has(column: string): boolean {
    return this.#values?.columns.has(column) ?? false;
  }

  /**
   * Returns the values of the batch and its layout.
   * @internal
   * @throws LossError `ERR_INVALID_INPUT` if the batch was disposed of, if update() is under way, or if `device` names a
   * device other than the batch's.
   */
  resident(device: string | undefined): { values: ResidentValues; layout: Layout } {
    const held = this.#held();
    if (this.#isUpdating)
      throw new LossError('ERR_INVALID_INPUT', {
        at: `batch on ${this.device}`,
        expected: 'a call after update() has ended',
        received: 'one while it is under way',
        hint: 'Await update() before the next call on the batch',
      });
    if (device !== undefined && (device === 'cpu' || cudaIndex(device) !== held.device))
      throw new LossError('ERR_INVALID_INPUT', {
        option: 'device',
        expected: `${this.device}, which holds the batch, or no device`,
        received: describeValue(device),
      });
    return { values: held, layout: this.#layout };
  }

  #held(): ResidentValues {
    if (this.#values === undefined) throw this.#disposedError();
    return this.#values;
  }

  #disposedError(): LossError {
    return new LossError('ERR_INVALID_INPUT', {
      at: `batch on ${this.device}`,
      expected: 'a batch in memory',
      received: 'one that was disposed of',
    });
  }
}
