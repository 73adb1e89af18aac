// Adds sets of rows (single rows or pairs) to parts. On request, it skips every set that contains a bad row.
import { LossError } from '../../base/errors.js';
import type { PartBuilder, RolloutPart } from './part-builder.js';
import { describePlace, errorAt, type FileRow, type Place } from './source.js';

/** A function that is called for each skipped row, with the reason and the row's place. */
export type OnBadRow = (error: LossError, place: Place) => void;

/** Adds sets of rows to parts. All rows of a set are in the same part, or all are skipped. */
export class RowSets {
  /** The number of bad rows found so far. */
  bad = 0;
  firstBad: LossError | undefined;
  readonly #builder: PartBuilder;
  readonly #onBadRow: OnBadRow | undefined;

  /**
   * @param onBadRow is called for each skipped row. Without it, no row is skipped, and the error of a bad row is
   * thrown.
   */
  constructor(builder: PartBuilder, onBadRow: OnBadRow | undefined) {
    this.#builder = builder;
    this.#onBadRow = onBadRow;
  }

  /** Adds a set. Returns the current part if the set no longer fits into it. */
  add(rows: readonly FileRow[]): RolloutPart | undefined {
    const isBad = rows.map((row) => !this.#tryAdd(row));
    const bad = rows[isBad.indexOf(true)];
    if (!bad) return this.#builder.endSet();
    this.#builder.dropSet();
    for (const [i, { place }] of rows.entries())
      if (!isBad[i])
        this.#onBadRow?.(
          errorAt(place, 'ERR_INVALID_INPUT', {
            expected: 'a good row as the other half of its pair',
            received: `a bad one (${describePlace(bad.place)})`,
          }),
          place,
        );
    return undefined;
  }

  /** Calls `act`, which reads rows. After many bad rows, the errors of further ones get no stack traces. */
  read<T>(act: () => T): T {
    if (this.bad < TRACED_ERRORS) return act();
    const { stackTraceLimit } = Error;
    Error.stackTraceLimit = 0;
    try {
      return act();
    } finally {
      Error.stackTraceLimit = stackTraceLimit;
    }
  }

  #tryAdd(row: FileRow): boolean {
    try {
      this.read(() => this.#builder.add(row));
      return true;
    } catch (error) {
      if (!this.#onBadRow || !(error instanceof LossError) || error.code === 'ERR_OUT_OF_MEMORY') throw error;
      this.bad++;
      this.#builder.skipped++;
      this.firstBad ??= error;
      this.#onBadRow(error, row.place);
      return false;
    }
  }
}

// Only this many errors of skipped rows get a stack trace, because tracing takes longer than anything else about a row.
const TRACED_ERRORS = 100;
