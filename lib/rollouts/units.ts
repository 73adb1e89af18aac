// Rows by ones or pairs on their way into parts, and what becomes of them where one is bad.
import { LossError } from '../core/errors.js';
import type { PartBuilder, RolloutPart } from './part-builder.js';
import { at, describePlace, type FileRow, type Place } from './source.js';

/** Adds rows to parts by units of so many, which stay together and are left out together. */
export class Units {
  /** Rows that were bad. */
  bad = 0;
  firstBad: LossError | undefined;
  readonly #builder: PartBuilder;
  readonly #size: number;
  readonly #onBadRow: ((error: LossError) => void) | undefined;
  #unit: { place: Place; bad: boolean }[] = [];

  /** @param onBadRow absent: a bad row ends it all. */
  constructor(builder: PartBuilder, size: number, onBadRow: ((error: LossError) => void) | undefined) {
    this.#builder = builder;
    this.#size = size;
    this.#onBadRow = onBadRow;
  }

  /** @returns a part that had no more room. */
  add(row: FileRow): RolloutPart | undefined {
    this.#unit.push({ place: row.place, bad: !this.#added(row) });
    return this.#unit.length === this.#size ? this.end() : undefined;
  }

  /** Ends the unit at hand. @returns a part that had no more room for it. */
  end(): RolloutPart | undefined {
    const unit = this.#unit;
    this.#unit = [];
    const bad = unit.find((row) => row.bad);
    if (!bad) return unit.length > 0 ? this.#builder.endUnit() : undefined;
    this.#builder.dropUnit();
    for (const { place } of unit.filter((row) => !row.bad))
      this.#onBadRow?.(
        at(
          place,
          'ERR_INVALID_INPUT',
          `is left out with the other row of its pair, ${describePlace(bad.place)}`,
        ),
      );
    return undefined;
  }

  #added(row: FileRow): boolean {
    try {
      this.#builder.add(row);
      return true;
    } catch (error) {
      if (!this.#onBadRow || !(error instanceof LossError) || error.code === 'ERR_OUT_OF_MEMORY') throw error;
      this.bad++;
      this.firstBad ??= error;
      this.#onBadRow(error);
      return false;
    }
  }
}
