// Maps each column to the names that it may have in files: either the name that the user gave, or the column's own name
// and the name that a training framework uses.
import { LossError, unknownName } from '../../base/errors.js';
import { toCamelCase, toSnakeCase } from '../../base/options.js';
import { KeyMapper } from '../../batch/key-mapper.js';
import { COLUMNS, columnOfKey, type RolloutColumn } from './columns.js';

const ALL = Object.keys(COLUMNS) as RolloutColumn[];

/** The columns to read, and the names that they may have in files. */
export class ColumnNames {
  /** The columns to read. The first two are logprobs and action_mask. */
  readonly columns: readonly RolloutColumn[];
  /** Whether every row must have logprobs. */
  readonly needLogprobs: boolean;
  /** Names, as they appear in the files, of additional columns to copy into each part's `kept`. */
  readonly keep: readonly string[];
  // The columns by the names that they may have in files, including the columns to keep, which may be no RolloutColumn.
  readonly #byName = new Map<string, RolloutColumn | undefined>();
  readonly #renamed = new Map<RolloutColumn, string>();
  readonly #mapper: KeyMapper | undefined;

  /**
   * @param rename the names that the user gave to columns. Each key is a column's name or its batch key.
   * @param backend a training framework whose names for columns are accepted too.
   * @throws LossError `ERR_UNKNOWN_NAME` for an unknown backend, `ERR_INVALID_OPTION` if `rename` has an unknown
   * column, or two names for one column.
   */
  constructor(
    columns: readonly RolloutColumn[] = ALL,
    rename: Readonly<Record<string, string>> = {},
    backend?: string,
    keep: readonly string[] = [],
    needLogprobs = true,
  ) {
    this.columns = [...new Set<RolloutColumn>(['logprobs', 'action_mask', ...columns])];
    this.keep = keep;
    this.needLogprobs = needLogprobs;
    this.#mapper = backend === undefined ? undefined : KeyMapper.get(backend);
    for (const [name, theirs] of Object.entries(rename)) {
      const column = ALL.find((known) => known === name) ?? columnOfKey(toCamelCase(name));
      if (!column) throw unknownName('ERR_INVALID_OPTION', 'column', name, ALL);
      if (this.#renamed.has(column))
        throw new LossError('ERR_INVALID_OPTION', {
          at: `column ${column}`,
          expected: 'one name',
          received: `${this.#renamed.get(column)} and ${theirs}`,
        });
      this.#renamed.set(column, theirs);
    }
    for (const name of keep) this.#byName.set(name, undefined);
    for (const column of [...this.columns].reverse())
      for (const name of this.of(column)) this.#byName.set(name, column);
  }

  /** Returns whether the user gave the column a name. Such a column is required in every row. */
  isRenamed(column: RolloutColumn): boolean {
    return this.#renamed.has(column);
  }

  /** Returns the names that a column may have in a file. Error messages show the first one. */
  of(column: RolloutColumn): readonly [string, ...string[]] {
    const renamed = this.#renamed.get(column);
    if (renamed !== undefined) return [renamed];
    return this.#mapper ? [column, this.#mapper.fromTrinity(toSnakeCase(COLUMNS[column].key))] : [column];
  }

  /** Returns the names that a column may have in a file of tensors. These include its batch key, in snake_case too. */
  inTensors(column: RolloutColumn): readonly string[] {
    const names = this.of(column);
    if (this.isRenamed(column)) return names;
    const { key } = COLUMNS[column];
    return [...new Set([...names, toSnakeCase(key), key])];
  }

  /** Returns the column that has this name in a file; undefined if no column to read has it. */
  columnOf(name: string): RolloutColumn | undefined {
    return this.#byName.get(name);
  }

  /** Returns whether a column of this name in a file must be read: it has rollout data, or must be kept. */
  isRead(name: string): boolean {
    return this.#byName.has(name);
  }
}
