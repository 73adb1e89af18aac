// Compares two dumps of the same training step, row by row and token by token.
import { describeValue, LossError } from '../../base/errors.js';
import { ColumnNames } from '../rollouts/column-names.js';
import { COLUMNS } from '../rollouts/columns.js';
import { expandFiles, type Place, type RolloutColumn, type StreamOptions } from '../rollouts/index.js';
import { align, byColumns, byPosition, type KeyOf } from './align.js';
import { ColumnComparison, type ColumnDifference } from './compare-column.js';
import { type DumpRow, rowsOf } from './rows.js';

export type { ColumnDifference, ValueDifference } from './compare-column.js';

/** Options of {@link diffDumps}. */
export interface DiffOptions {
  /** The columns, as named in the files, that identify a row. The default is task_id and run_id if both dumps have them. */
  by?: readonly string[];
  /** Values are equal if they differ by at most this; 0 by default. */
  tolerance?: number;
  /** How to read the files. */
  read?: Omit<StreamOptions, 'columns' | 'keep' | 'pairs'>;
}

/** Some rows that only one dump has. */
export interface MissingRows {
  count: number;
  /** The places of the first few. */
  first: Place[];
}

/** The differences between two dumps. */
export interface DumpDiff {
  /** The columns by which the rows were aligned; 'position' if it was their order. */
  alignedBy: readonly string[] | 'position';
  /** The number of rows in both dumps. */
  rows: number;
  onlyInA: MissingRows;
  onlyInB: MissingRows;
  /** The columns that only one of the dumps has. */
  columnsOnlyInA: string[];
  columnsOnlyInB: string[];
  /** The length of the rows, and every column that both dumps have. */
  columns: ColumnDifference[];
  /** Whether the dumps have the same rows, and no value differs by more than the tolerance. */
  equal: boolean;
}

/** The capacity of a part of each dump, in tokens. Rows are compared one by one, so small parts suffice. */
const PART_TOKENS = 2 ** 17;

/** The largest number of places of rows that only one dump has. */
const PLACES = 5;

/**
 * Compares two dumps of the same step. Memory holds a part of each dump, and the rows whose partners come later in the
 * other dump.
 * @param a the names of the files of the first dump, or glob patterns.
 * @param b the same for the second dump.
 * @throws LossError if the files cannot be read, `ERR_MISSING_INPUT` if a row lacks a value of `by`, `ERR_INVALID_OPTION`
 * for a bad tolerance, and `ERR_OUT_OF_MEMORY` if the order of the rows differs so much that too many have to wait.
 */
export async function diffDumps(
  a: readonly string[],
  b: readonly string[],
  { by, tolerance = 0, read = {} }: DiffOptions = {},
): Promise<DumpDiff> {
  if (!(tolerance >= 0))
    throw new LossError('ERR_INVALID_OPTION', {
      option: 'tolerance',
      expected: 'a number of at least 0',
      received: describeValue(tolerance),
    });
  const names = new ColumnNames(undefined, read.rename, read.backend);
  const candidates = by ?? [...names.of('task_id'), ...names.of('run_id')];
  const options = { maxTokens: PART_TOKENS, logprobs: 'optional' as const, ...read };
  const sides = [a, b].map(
    async (files) => new Peeked(rowsOf(await expandFiles(files), candidates, options)),
  );
  const [rowsA, rowsB] = (await Promise.all(sides)) as [Peeked, Peeked];
  try {
    const alignedBy = by ?? (await idsOf(rowsA, rowsB, names));
    return await compared(rowsA, rowsB, alignedBy, tolerance);
  } finally {
    await rowsA.return();
    await rowsB.return();
  }
}

/** Returns the names of the two id columns if the first rows of both dumps have them. */
async function idsOf(a: Peeked, b: Peeked, names: ColumnNames): Promise<readonly string[] | 'position'> {
  const firsts = [await a.peek(), await b.peek()];
  const found = (['task_id', 'run_id'] as const).flatMap(
    (column) =>
      names
        .of(column)
        .find((name) => firsts.every((row) => row?.ids[name] !== undefined && row.ids[name] !== null)) ?? [],
  );
  return found.length === 2 ? found : 'position';
}

async function compared(
  a: Peeked,
  b: Peeked,
  alignedBy: readonly string[] | 'position',
  tolerance: number,
): Promise<DumpDiff> {
  const keyOf: KeyOf = alignedBy === 'position' ? byPosition : byColumns(alignedBy);
  const comparisons = new Map<string, ColumnComparison>();
  const comparison = (column: string) => {
    const known = comparisons.get(column) ?? new ColumnComparison(column, tolerance);
    comparisons.set(column, known);
    return known;
  };
  const seen = { a: new Set<RolloutColumn>(), b: new Set<RolloutColumn>() };
  const only: { a: DumpRow[]; b: DumpRow[] } = { a: [], b: [] };
  const counts = { a: 0, b: 0 };
  let rows = 0;
  for await (const pair of align(a, b, keyOf)) {
    for (const side of ['a', 'b'] as const) {
      const row = pair[side];
      for (const column of row?.columns.keys() ?? []) seen[side].add(column);
      if (row && !pair[side === 'a' ? 'b' : 'a'] && counts[side]++ < PLACES) only[side].push(row);
    }
    if (!pair.a || !pair.b) continue;
    rows++;
    comparison('length').add(pair.a, pair.b, [pair.a.length], [pair.b.length], false);
    for (const [column, values] of pair.a.columns) {
      const others = pair.b.columns.get(column);
      if (others) comparison(column).add(pair.a, pair.b, values, others, COLUMNS[column].per !== 'row');
    }
  }
  const missing = (side: 'a' | 'b'): MissingRows => ({
    count: counts[side],
    first: only[side].map(({ place }) => place),
  });
  const columns = [...comparisons.values()].map(({ result }) => result);
  return {
    alignedBy,
    rows,
    onlyInA: missing('a'),
    onlyInB: missing('b'),
    columnsOnlyInA: [...seen.a].filter((column) => !seen.b.has(column)),
    columnsOnlyInB: [...seen.b].filter((column) => !seen.a.has(column)),
    columns,
    equal: counts.a + counts.b === 0 && columns.every(({ differing }) => differing === 0),
  };
}

/** Rows whose first one can be looked at before they are read. */
class Peeked implements AsyncIterator<DumpRow> {
  readonly #rows: AsyncGenerator<DumpRow>;
  #first: IteratorResult<DumpRow> | undefined;

  constructor(rows: AsyncGenerator<DumpRow>) {
    this.#rows = rows;
  }

  async peek(): Promise<DumpRow | undefined> {
    this.#first ??= await this.#rows.next();
    return this.#first.done ? undefined : this.#first.value;
  }

  async next(): Promise<IteratorResult<DumpRow>> {
    const first = this.#first;
    this.#first = undefined;
    return first ?? this.#rows.next();
  }

  /** Closes the files. */
  async return(): Promise<IteratorResult<DumpRow>> {
    return this.#rows.return(undefined);
  }
}
