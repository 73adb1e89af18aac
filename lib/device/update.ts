// Reads the new values of columns that DeviceBatch.update() sends to a device.
import type { NativeAdvantageBatch, NativeBatch } from '../../binding.js';
import type { AbortSignalLike } from '../base/abortable.js';
import { describeValue, LossError } from '../base/errors.js';
import type { Steps } from '../base/steps.js';
import type { Batch } from '../batch/batch.js';
import { ADVANTAGE_COLUMNS, COLUMNS, inputRow } from '../batch/columns.js';
import { findHeld, PER_ROW, readFloats } from '../batch/convert.js';
import { emptyAdvantageBatch, emptyBatch } from '../batch/empty-batch.js';
import type { KeyMapper } from '../batch/key-mapper.js';
import type { Layout } from '../batch/layout.js';
import type { FloatColumn } from '../batch/values.js';
import { isDeviceColumn, type OnDevice, setDeviceColumn } from './device-column.js';

/**
 * New values for float columns of a {@link DeviceBatch}, under the same keys as in a {@link Batch}. Each has the shape
 * [B, T] of the batch, or as many values as tokens if the rows are packed. `advantages` and the other columns that
 * upload() accepts with one value per row may have the shape [B]. A column may be in memory of the batch's device: a {@link
 * DeviceColumn} or an {@link IpcColumn}.
 */
export type ColumnUpdate = {
  [K in keyof Batch as FloatColumn extends NonNullable<Batch[K]>
    ? Exclude<K, 'tokenLevelScores' | 'token_level_scores'>
    : never]?: Batch[K] | OnDevice;
};

/** The options of {@link DeviceBatch.update}. */
export interface UpdateOptions {
  /** The training framework whose key names the columns may have, in addition to Trinity-RFT's; 'verl' by default. */
  backend?: string;
  /**
   * A stream of the device of the batch: a cudaStream_t as a number, such as PyTorch's `stream.cuda_stream`, or
   * 0n for the default stream. The call's work on the device waits for the work that is on the stream when it begins, so
   * the caller need not synchronize the stream that writes the columns in memory of the device.
   */
  stream?: bigint;
  /**
   * A signal that ends the update early when it is aborted. The update then rejects with `ERR_ABORTED`, and the batch
   * keeps its values.
   */
  signal?: AbortSignalLike;
}

/** Columns that were checked and converted for native code. */
export interface ConvertedUpdate {
  loss: NativeBatch;
  /** The columns that only advantage functions read. Undefined if there are none. */
  advantage: NativeAdvantageBatch | undefined;
  /** For each column, by its Trinity-RFT name, whether it has one value per row. */
  perRow: ReadonlyMap<string, boolean>;
}

const ONLY_FOR_ADVANTAGES = ADVANTAGE_COLUMNS.filter(
  (name) => !(COLUMNS as readonly string[]).includes(name),
);

/**
 * Checks and converts columns, in slices. All are looked up in the first slice, with their arrays.
 * @param layout the layout of the batch on the device.
 * @param device the index of the device.
 * @throws LossError `ERR_INVALID_INPUT` if there is no column, if a key does not name a float column, or if a column
 * has a wrong type or element; `ERR_SHAPE_MISMATCH` if it has a wrong length.
 */
export function* readUpdate(
  columns: ColumnUpdate,
  layout: Layout,
  mapper: KeyMapper,
  device: number,
): Steps<ConvertedUpdate> {
  if (
    columns === null ||
    typeof columns !== 'object' ||
    Array.isArray(columns) ||
    ArrayBuffer.isView(columns)
  )
    throw new LossError('ERR_INVALID_INPUT', {
      at: 'update',
      expected: 'an object of columns',
      received: describeValue(columns),
    });
  const names = [...COLUMNS, ...ONLY_FOR_ADVANTAGES];
  checkKeys(columns, new Set(names.flatMap((name) => mapper.keys(name))));
  const given = names.flatMap((name) => {
    const found = findHeld(columns, mapper.keys(name));
    return found ? [{ name, ...found }] : [];
  });
  if (given.length === 0)
    throw new LossError('ERR_INVALID_INPUT', {
      at: 'update',
      expected: 'at least one float column, such as logprob',
      received: 'none',
    });
  const loss = emptyBatch(layout);
  const advantage = emptyAdvantageBatch(layout);
  const perRow = new Map<string, boolean>();
  for (const { name, key, value } of given) {
    const slot = (COLUMNS as readonly string[]).indexOf(name);
    const mayBePerRow = inputRow(name).per === 'either';
    const [into, at] =
      slot >= 0 ? [loss, slot] : [advantage, (ADVANTAGE_COLUMNS as readonly string[]).indexOf(name)];
    if (isDeviceColumn(value)) setDeviceColumn(into, at, key, value, layout, mayBePerRow, device);
    else {
      const column = yield* readFloats(key, value, layout, mayBePerRow);
      into.data[at] = column.data;
      into.dtypes[at] = column.dtype;
    }
    perRow.set(name, (into.dtypes[at]! & PER_ROW) !== 0);
  }
  const isForAdvantages = given.some(({ name }) => !(COLUMNS as readonly string[]).includes(name));
  return { loss, advantage: isForAdvantages ? advantage : undefined, perRow };
}

function checkKeys(columns: object, known: ReadonlySet<string>): void {
  for (const [key, value] of Object.entries(columns))
    if (value !== undefined && value !== null && !known.has(key))
      throw new LossError('ERR_INVALID_INPUT', {
        at: 'update',
        key,
        expected: 'the key of a float column, such as logprob',
        received: 'another key',
        hint: 'To change a mask, the shape or numbers of rows, upload the batch again',
      });
}
