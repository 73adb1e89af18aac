// The rows as the checks see them: the values of unmasked tokens, by the names of the files' columns.
import { COLUMNS } from '../rollouts/columns.js';
import type { RolloutColumn, RolloutPart } from '../rollouts/index.js';

type Values = Float32Array;

/** A row of a dump. */
export class Row {
  /** The mask of all tokens of the row. */
  readonly mask: Uint8Array;
  /** The number of unmasked tokens. */
  readonly tokens: number;
  readonly #part: RolloutPart;
  readonly #row: number;
  readonly #start: number;
  readonly #end: number;
  readonly #read = new Map<RolloutColumn, Values | undefined>();

  /** @param row the index of the row in its part. */
  constructor(part: RolloutPart, row: number) {
    this.#part = part;
    this.#row = row;
    const { cuSeqlens, actionMask } = part.batch;
    [this.#start, this.#end] = [cuSeqlens[row]!, cuSeqlens[row + 1]!];
    this.mask = actionMask.subarray(this.#start, this.#end);
    let tokens = 0;
    for (const m of this.mask) if (m !== 0) tokens++;
    this.tokens = tokens;
  }

  /** Returns the values of the unmasked tokens in a column; undefined if the dump lacks the column. */
  values(column: RolloutColumn): Values | undefined {
    if (!this.#read.has(column)) this.#read.set(column, this.#unmasked(column));
    return this.#read.get(column);
  }

  /** Returns the values of the first of these columns that the dump has. */
  firstOf(...columns: readonly RolloutColumn[]): Values | undefined {
    for (const column of columns) {
      const values = this.values(column);
      if (values) return values;
    }
    return undefined;
  }

  /** Returns the row's number in a column of numbers or ids; undefined if the dump lacks the column. */
  number(column: RolloutColumn): number | undefined {
    return columnOf(this.#part, column)?.[this.#row];
  }

  #unmasked(column: RolloutColumn): Values | undefined {
    const all = columnOf(this.#part, column);
    if (!all) return undefined;
    const values = all.subarray(this.#start, this.#end) as Values;
    return this.tokens === values.length ? values : values.filter((_, t) => this.mask[t] !== 0);
  }
}

/** Returns the array of a column in a part; undefined if the part lacks the column. */
export function columnOf(part: RolloutPart, column: RolloutColumn): Float32Array | Float64Array | undefined {
  return part.batch[COLUMNS[column].key] as Float32Array | undefined;
}

/**
 * Returns a[t] − b[t + lag] for each token that has both.
 * @param lag by how many tokens the second column is ahead: −1, 0 or 1.
 */
export function differences(a: Values, b: Values, lag = 0): Float64Array {
  const result = new Float64Array(Math.max(a.length - Math.abs(lag), 0));
  const from = Math.max(0, -lag);
  for (let t = 0; t < result.length; t++) result[t] = a[t + from]! - b[t + from + lag]!;
  return result;
}

/** Returns the absolute values of some numbers. */
export function sizesOf(values: Float64Array): Float64Array {
  const result = new Float64Array(values.length);
  for (let t = 0; t < values.length; t++) result[t] = Math.abs(values[t]!);
  return result;
}

/** Returns whether two columns of a row have equal values. */
export function equal(a: Values, b: Values): boolean {
  for (let t = 0; t < a.length; t++) if (a[t] !== b[t]) return false;
  return true;
}
