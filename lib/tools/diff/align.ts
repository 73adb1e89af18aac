// Pairs the rows of two dumps, by their ids or by their positions.
import { LossError } from '../../base/errors.js';
import { describePlace } from '../rollouts/index.js';
import type { DumpRow } from './rows.js';

/** A row that both dumps have, or only one of them. */
export type Aligned =
  | { a: DumpRow; b: DumpRow }
  | { a: DumpRow; b?: undefined }
  | { a?: undefined; b: DumpRow };

/** Returns what a row has in common with its partner: a text of its ids, or its position. */
export type KeyOf = (row: DumpRow) => string | number;

/** Aligns rows by position. */
export const byPosition: KeyOf = ({ index }) => index;

/** Aligns rows by the values of some columns. */
export function byColumns(names: readonly string[]): KeyOf {
  return (row) =>
    JSON.stringify(
      names.map((name) => {
        const value = row.ids[name];
        if (value !== undefined && value !== null) return String(value);
        throw new LossError('ERR_MISSING_INPUT', {
          at: describePlace(row.place),
          key: name,
          expected: 'a value in every row, to align the rows by it',
          received: 'none',
        });
      }),
    );
}

// Rows wait in memory for their partners. This many values take about a gigabyte.
const MAX_WAITING = 2 ** 28;

/** The rows of one dump whose partners have not been read yet. Rows with equal keys are paired in their order. */
class Waiting {
  size = 0;
  readonly #rows = new Map<string | number, DumpRow[]>();

  add(key: string | number, row: DumpRow): void {
    const rows = this.#rows.get(key);
    if (rows) rows.push(row);
    else this.#rows.set(key, [row]);
    this.size += row.size;
    if (this.size > MAX_WAITING)
      throw new LossError('ERR_OUT_OF_MEMORY', {
        at: describePlace(row.place),
        expected: `at most ${MAX_WAITING} values in rows whose partners come later`,
        received: 'more',
        hint: 'Sort both dumps by the same columns',
      });
  }

  take(key: string | number): DumpRow | undefined {
    const rows = this.#rows.get(key);
    const row = rows?.shift();
    if (!row) return undefined;
    if (rows!.length === 0) this.#rows.delete(key);
    this.size -= row.size;
    return row;
  }

  *rest(): Generator<DumpRow> {
    for (const rows of this.#rows.values()) yield* rows;
  }
}

/**
 * Yields all rows of two dumps: first the pairs, as soon as both rows are read, then the rows without a partner. The
 * dumps are read in turns, so if their rows are in a similar order, few rows are in memory.
 */
export async function* align(
  a: AsyncIterator<DumpRow>,
  b: AsyncIterator<DumpRow>,
  keyOf: KeyOf,
): AsyncGenerator<Aligned> {
  const [waitingA, waitingB] = [new Waiting(), new Waiting()];
  let [openA, openB] = [true, true];
  while (openA || openB) {
    if (openA) {
      const { done, value: row } = await a.next();
      if (done) openA = false;
      else {
        const key = keyOf(row);
        const partner = waitingB.take(key);
        if (partner) yield { a: row, b: partner };
        else waitingA.add(key, row);
      }
    }
    if (openB) {
      const { done, value: row } = await b.next();
      if (done) openB = false;
      else {
        const key = keyOf(row);
        const partner = waitingA.take(key);
        if (partner) yield { a: partner, b: row };
        else waitingB.add(key, row);
      }
    }
  }
  for (const row of waitingA.rest()) yield { a: row };
  for (const row of waitingB.rest()) yield { b: row };
}
