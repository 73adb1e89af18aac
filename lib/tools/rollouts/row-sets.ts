// Groups rows into sets (single rows or pairs) and adds the sets to parts. On request, it skips every set that
// contains a bad row.
import { LossError } from '../../base/errors.js';
import type { PartBuilder, RolloutPart } from './part-builder.js';
import { describePlace, errorAt, type FileRow, type Place } from './source.js';

/** A function that is called for each skipped row, with the reason and the row's place. */
export type OnBadRow = (error: LossError, place: Place) => void;

/** Adds rows to parts in sets of a fixed size. All rows of a set are in the same part, or all are skipped. */
export class RowSets {
  /** The number of bad rows found so far. */
  bad = 0;
  firstBad: LossError | undefined;
  readonly #builder: PartBuilder;
  readonly #size: number;
  readonly #onBadRow: OnBadRow | undefined;
  #set: { place: Place; bad: boolean }[] = [];

  /**
   * @param onBadRow is called for each skipped row. Without it, no row is skipped, and the error of a bad row is
   * thrown.
   */
  constructor(builder: PartBuilder, size: number, onBadRow: OnBadRow | undefined) {
    this.#builder = builder;
    this.#size = size;
    this.#onBadRow = onBadRow;
  }

  /** Adds a row. Returns the current part if this row completes a set that no longer fits into it. */
  add(row: FileRow): RolloutPart | undefined {
    this.#set.push({ place: row.place, bad: !this.#tryAdd(row) });
    return this.#set.length === this.#size ? this.end() : undefined;
  }

  /** Ends the current set, even if it is incomplete. Returns the current part if the set no longer fits into it. */
  end(): RolloutPart | undefined {
    const set = this.#set;
    this.#set = [];
    const bad = set.find((row) => row.bad);
    if (!bad) return set.length > 0 ? this.#builder.endSet() : undefined;
    this.#builder.dropSet();
    for (const { place } of set.filter((row) => !row.bad))
      this.#onBadRow?.(
        errorAt(place, 'ERR_INVALID_INPUT', {
          expected: 'a good row as the other half of its pair',
          received: `a bad one (${describePlace(bad.place)})`,
        }),
        place,
      );
    return undefined;
  }

  #tryAdd(row: FileRow): boolean {
    const { stackTraceLimit } = Error;
    if (this.bad >= TRACED_ERRORS) Error.stackTraceLimit = 0;
    try {
      this.#builder.add(row);
      return true;
    } catch (error) {
      if (!this.#onBadRow || !(error instanceof LossError) || error.code === 'ERR_OUT_OF_MEMORY') throw error;
      this.bad++;
      this.#builder.skipped++;
      this.firstBad ??= error;
      this.#onBadRow(error, row.place);
      return false;
    } finally {
      Error.stackTraceLimit = stackTraceLimit;
    }
  }
}

// Only this many errors of skipped rows get a stack trace, because tracing takes longer than anything else about a row.
const TRACED_ERRORS = 100;
