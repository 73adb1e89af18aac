// Compares one column of two dumps.
import { ExactSum } from '../../base/exact-sum.js';
import type { Place } from '../rollouts/index.js';
import type { DumpRow } from './rows.js';

/** A value that differs between two dumps. */
export interface ValueDifference {
  /** The place of the row in each dump. */
  placeA: Place;
  placeB: Place;
  /** The index of the token within the row; absent for a value of the whole row. */
  token?: number;
  a: number;
  b: number;
}

/** The differences between two dumps in one column. */
export interface ColumnDifference {
  /** The name of the column, or 'length' for the number of tokens in a row. */
  column: string;
  /** The number of values that both dumps have. Values that are masked in both dumps are not compared. */
  compared: number;
  /** The number of values that differ by more than the tolerance. */
  differing: number;
  /** The number of rows that have such values. */
  rows: number;
  /** The mean of |a − b| over the compared values; Infinity if a value is finite in only one dump. */
  meanAbs: number;
  /** The largest |a − b|. */
  maxAbs: number;
  /** The value with the largest |a − b|, the first one of several; absent if no value differs. */
  largest?: ValueDifference;
  /** The first value that differs, in the order of dump A; absent if no value differs. */
  first?: ValueDifference;
}

/** Compares a column, row by row. */
export class ColumnComparison {
  #compared = 0;
  #differing = 0;
  #rows = 0;
  #maxAbs = 0;
  readonly #sum = new ExactSum();
  #infinite = false;
  // The differences with the index of their row in dump A.
  #largest: { row: number; value: ValueDifference } | undefined;
  #first: { row: number; value: ValueDifference } | undefined;
  readonly #column: string;
  readonly #tolerance: number;

  constructor(column: string, tolerance: number) {
    this.#column = column;
    this.#tolerance = tolerance;
  }

  /**
   * Compares the values of a pair of rows.
   * @param perToken whether these are values of tokens. Then those that are masked in both rows are left out.
   */
  add(
    a: DumpRow,
    b: DumpRow,
    valuesA: ArrayLike<number>,
    valuesB: ArrayLike<number>,
    perToken: boolean,
  ): void {
    const before = this.#differing;
    let sum = 0;
    for (let t = 0; t < Math.min(valuesA.length, valuesB.length); t++) {
      if (perToken && a.mask[t] === 0 && b.mask[t] === 0) continue;
      this.#compared++;
      const [x, y] = [valuesA[t]!, valuesB[t]!];
      const size = distance(x, y);
      if (Number.isFinite(size)) sum += size;
      else this.#infinite = true;
      if (size <= this.#tolerance) continue;
      this.#differing++;
      const value = () => ({ placeA: a.place, placeB: b.place, ...(perToken && { token: t }), a: x, b: y });
      // Within a row, only the first token can be the first one, and only a larger difference the largest one.
      if (!this.#first || a.index < this.#first.row) this.#first = { row: a.index, value: value() };
      if (size > this.#maxAbs || (size === this.#maxAbs && a.index < this.#largest!.row)) {
        this.#maxAbs = size;
        this.#largest = { row: a.index, value: value() };
      }
    }
    this.#sum.add(sum);
    if (this.#differing > before) this.#rows++;
  }

  get result(): ColumnDifference {
    return {
      column: this.#column,
      compared: this.#compared,
      differing: this.#differing,
      rows: this.#rows,
      meanAbs: this.#infinite
        ? Number.POSITIVE_INFINITY
        : this.#compared === 0
          ? 0
          : this.#sum.value / this.#compared,
      maxAbs: this.#maxAbs,
      ...(this.#largest && { largest: this.#largest.value }),
      ...(this.#first && { first: this.#first.value }),
    };
  }
}

/** Returns |x − y|. It is 0 for two equal infinities or two NaN, and Infinity if only one of the two is finite. */
function distance(x: number, y: number): number {
  if (Object.is(x, y) || x === y) return 0;
  const size = Math.abs(x - y);
  return Number.isNaN(size) ? Number.POSITIVE_INFINITY : size;
}
