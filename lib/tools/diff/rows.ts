// The rows of a dump, one by one, with what aligns them with the rows of another dump.
import { ColumnNames } from '../rollouts/column-names.js';
import { COLUMNS, isIdColumn } from '../rollouts/columns.js';
import { type Place, type RolloutColumn, type StreamOptions, streamRollouts } from '../rollouts/index.js';

/** A row of a dump. Its arrays belong to it. */
export interface DumpRow {
  /** The index of the row among all rows of its dump. */
  index: number;
  place: Place;
  /** The number of tokens, including masked ones. */
  length: number;
  /** The number of values that the row holds in memory. */
  size: number;
  /** Whether each token counts. */
  mask: Uint8Array;
  /** The values of each column that the dump has: one per token, or a single one. */
  columns: Map<RolloutColumn, ArrayLike<number>>;
  /** The row's values of the columns by which rows may be aligned, as they are in the file. */
  ids: Readonly<Record<string, unknown>>;
}

/** The columns that are compared. Ids become numbers that depend on the dump, so they are not. */
const COMPARED = new ColumnNames().columns.filter((column) => !isIdColumn(column));

/**
 * Reads the rows of files.
 * @param ids the names, as in the files, of the columns by which rows may be aligned.
 */
export async function* rowsOf(
  files: readonly string[],
  ids: readonly string[],
  options: StreamOptions,
): AsyncGenerator<DumpRow> {
  let index = 0;
  for await (const { batch, rows, kept, places } of streamRollouts(files, {
    ...options,
    columns: COMPARED,
    keep: ids,
  })) {
    const { cuSeqlens } = batch;
    for (let row = 0; row < rows; row++) {
      const [start, end] = [cuSeqlens[row]!, cuSeqlens[row + 1]!];
      const columns = new Map<RolloutColumn, ArrayLike<number>>();
      for (const column of COMPARED) {
        const { key, per } = COLUMNS[column];
        const values = batch[key] as Float32Array | undefined;
        if (values) columns.set(column, per === 'row' ? [values[row]!] : values.slice(start, end));
      }
      yield {
        index: index++,
        place: places[row]!,
        length: end - start,
        size: columns.size * (end - start),
        mask: columns.get('action_mask') as Uint8Array,
        columns,
        ids: kept[row]!,
      };
    }
  }
}
