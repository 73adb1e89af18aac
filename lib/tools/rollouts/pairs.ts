// Brings the two rows of each pair together, the chosen one first.
import type { LossErrorCode, MessageText } from '../../base/errors.js';
import type { ColumnNames } from './column-names.js';
import { idOf } from './columns.js';
import { type OpenedRow, opened, raise } from './halves.js';
import {
  type DetailsAtPlace,
  describePlace,
  errorAt,
  type FileRow,
  type Place,
  type ReadSettings,
  type RowValues,
} from './source.js';
import { isList } from './values.js';

type Id = number | string;

/**
 * Makes pairs of rows. Rows with a pair_id may come in any order. Without one, the first row forms a pair with the second,
 * the third with the fourth, and so on. Where the rows of a pair have a flag `chosen` or `label`, the row with true is the
 * chosen one; otherwise it is the first.
 */
export class RowPairs {
  readonly #names: ColumnNames;
  readonly #maxTokens: number;
  readonly #warn: ReadSettings['warn'];
  // Whether rows have ids, which the first row that is well-formed decides.
  #hasIds: boolean | undefined;
  // Without ids, the first row of a pair.
  #first: OpenedRow | undefined;
  // With ids, the rows without a partner so far, and the places of the complete pairs.
  readonly #open = new Map<Id, OpenedRow>();
  readonly #complete = new Map<Id, readonly [Place, Place]>();
  #openTokens = 0;

  /**
   * @param maxTokens the largest number of tokens in rows that wait for their partners.
   * @param warn is called for each pair whose rows do not seem to be one.
   */
  constructor(names: ColumnNames, maxTokens: number, warn: ReadSettings['warn']) {
    this.#names = names;
    this.#maxTokens = maxTokens;
    this.#warn = warn;
  }

  /**
   * Adds a row. Returns the sets that it completes: a pair, or a row that can have no partner. Reading such a row throws the
   * reason.
   */
  add(given: FileRow): FileRow[][] {
    const row = opened(given);
    const { values } = row;
    const id = values && this.#idIn(values);
    if (values) this.#hasIds ??= id !== undefined;
    const isInOrder = !this.#hasIds && id === undefined;
    if (isInOrder && given.side !== 'chosen') return this.#addInOrder(row);
    const first = this.#first;
    this.#first = undefined;
    return [
      ...(first ? [[isInOrder ? withoutPartner(first) : first.row]] : []),
      ...(isInOrder ? this.#addInOrder(row) : this.#addById(row, id)),
    ];
  }

  /**
   * Returns the rows that have no partner, each as a set.
   * @param hint what to do about them, for error messages.
   */
  end(hint?: MessageText): FileRow[][] {
    const name = this.#names.pairId;
    if (this.#first) return [[this.#first.row]];
    return [...this.#open].map(([id, { row }]) => [
      failing(row, 'ERR_SHAPE_MISMATCH', {
        key: name,
        expected: `two rows with ${name} ${shown(id)}`,
        received: 'one',
        hint,
      }),
    ]);
  }

  #idIn(values: Readonly<RowValues>): unknown {
    return values[this.#names.pairId] ?? undefined;
  }

  #addInOrder(row: OpenedRow): FileRow[][] {
    const first = this.#first;
    this.#first = first ? undefined : row;
    return first ? [this.#pairOf(first, row)] : [];
  }

  #addById({ row, values }: OpenedRow, given: unknown): FileRow[][] {
    if (!values) return [[row]];
    const key = this.#names.pairId;
    if (given === undefined || !this.#hasIds)
      return [
        [
          failing(row, 'ERR_MISSING_INPUT', {
            key,
            expected: 'an id in every row or in none',
            received: this.#hasIds
              ? 'none here, but one in rows before'
              : 'one here, but none in rows before',
          }),
        ],
      ];
    let id: Id;
    try {
      id = idOf(given, (code, details) => errorAt(row.place, code, { key, ...details }));
    } catch (error) {
      return [[{ ...row, read: () => raise(error) }]];
    }
    const complete = this.#complete.get(id);
    if (complete)
      return [
        [
          failing(row, 'ERR_SHAPE_MISMATCH', {
            key,
            expected: `two rows with ${key} ${shown(id)}`,
            received: `a third one, after ${complete.map(describePlace).join(' and ')}`,
          }),
        ],
      ];
    const first = this.#open.get(id);
    if (!first) {
      this.#open.set(id, { row, values });
      this.#openTokens += tokensOf(values);
      if (this.#openTokens > this.#maxTokens) throw this.#tooFarApart();
      return [];
    }
    this.#open.delete(id);
    this.#openTokens -= tokensOf(first.values!);
    this.#complete.set(id, [first.row.place, row.place]);
    return [this.#pairOf(first, { row, values })];
  }

  #tooFarApart() {
    const [[id, { row }]] = this.#open as unknown as [[Id, OpenedRow]];
    return errorAt(row.place, 'ERR_OUT_OF_MEMORY', {
      key: this.#names.pairId,
      expected: `the other row of ${shown(id)} before rows with ${this.#maxTokens} tokens wait for theirs`,
      received: 'none',
      hint: (spell) => `Sort the rows by their pairs, or raise ${spell('batchTokens')}`,
    });
  }

  /** Returns the rows of a pair, the chosen one first. */
  #pairOf(a: OpenedRow, b: OpenedRow): FileRow[] {
    if (!a.values || !b.values) return [a.row, b.row];
    this.#check(a.values, b.values, a.row.place, b.row.place);
    for (const name of this.#names.chosenFlags) {
      const [isA, isB] = [flagOf(a.values[name]), flagOf(b.values[name])];
      if (isA === undefined || isB === undefined) continue;
      if (isA !== isB) return isA ? [a.row, b.row] : [b.row, a.row];
      // The same number in both rows is no flag, but for example the answer to the prompt.
      if (![a.values[name], b.values[name]].some(isTrueOrFalse)) continue;
      const details = {
        key: name,
        expected: 'true in one row of a pair, and false in the other',
        received: `${isA} here and in ${describePlace(a.row.place)}`,
      };
      return [a.row, failing(b.row, 'ERR_INVALID_INPUT', details)];
    }
    return [a.row, b.row];
  }

  /** Warns if the rows of a pair answer different prompts. */
  #check(a: Readonly<RowValues>, b: Readonly<RowValues>, first: Place, place: Place): void {
    for (const key of this.#names.promptNames) {
      const [one, other] = [a[key] ?? undefined, b[key] ?? undefined];
      if (one === undefined || other === undefined || JSON.stringify(one) === JSON.stringify(other)) continue;
      this.#warn(
        place,
        {
          key,
          expected: `the same as in ${describePlace(first)}, because the loss takes these two rows for a pair`,
          received: 'another',
        },
        `Rows must alternate (chosen, rejected, …), or have a column pair_id`,
      );
      return;
    }
  }
}

/** Returns an id as messages show it. */
function shown(id: Id): string {
  return typeof id === 'string' ? `'${id}'` : String(id);
}

/** Returns a row whose reading fails. */
function failing(row: FileRow, code: LossErrorCode, details: DetailsAtPlace): FileRow {
  return { ...row, read: () => raise(errorAt(row.place, code, details)) };
}

/** Returns a row before one that holds a whole pair, whose responses belong together. */
function withoutPartner({ row, values }: OpenedRow): FileRow {
  if (!values) return row;
  const details = {
    expected: 'the other row of its pair after it',
    received: 'a row that holds a whole pair',
  };
  return failing(row, 'ERR_SHAPE_MISMATCH', details);
}

/** Returns the length of a row's longest list, at least 1. */
function tokensOf(values: Readonly<RowValues>): number {
  return Object.values(values).reduce<number>(
    (most, value) => (isList(value) ? Math.max(most, value.length) : most),
    1,
  );
}

function isTrueOrFalse(value: unknown): boolean {
  return ['true', 'false'].includes(String(value).toLowerCase());
}

/** Returns a flag, also from a format that only has numbers or text; undefined for another value. */
function flagOf(value: unknown): boolean | undefined {
  const text = String(value).toLowerCase();
  return ['true', '1'].includes(text) ? true : ['false', '0'].includes(text) ? false : undefined;
}
