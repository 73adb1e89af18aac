// Maps columns to their names in the files: their own names, the user's names, or a training framework's names.
import { LossError, unknownName } from '../core/errors.js';
import { KeyMapper } from '../core/key-mapper.js';
import { toCamelCase, toSnakeCase } from '../core/options.js';
import { COLUMNS, columnOfKey, type RolloutColumn } from './columns.js';

const ALL = Object.keys(COLUMNS) as RolloutColumn[];

/** The columns to read, and the names that files may use for them. */
export class ColumnNames {
  /** The columns to read; logprobs and action_mask come first. */
  readonly columns: readonly RolloutColumn[];
  /** Further columns to copy into each part's `kept`, by their names in the files. */
  readonly keep: readonly string[];
  readonly #renamed = new Map<RolloutColumn, string>();
  readonly #mapper: KeyMapper | undefined;

  /**
   * @param rename the user's names, by a column's name or by its batch key.
   * @param backend a training framework whose names are accepted too.
   * @throws LossError `ERR_UNKNOWN_NAME`, `ERR_INVALID_OPTION`
   */
  constructor(
    columns: readonly RolloutColumn[] = ALL,
    rename: Readonly<Record<string, string>> = {},
    backend?: string,
    keep: readonly string[] = [],
  ) {
    this.columns = [...new Set<RolloutColumn>(['logprobs', 'action_mask', ...columns])];
    this.keep = keep;
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
  }

  /** Returns whether the user named the column, which makes it required. */
  isRenamed(column: RolloutColumn): boolean {
    return this.#renamed.has(column);
  }

  /** Returns the names that a column may have in a file. Messages show the first. */
  of(column: RolloutColumn): readonly [string, ...string[]] {
    const renamed = this.#renamed.get(column);
    if (renamed !== undefined) return [renamed];
    return this.#mapper ? [column, this.#mapper.fromTrinity(toSnakeCase(COLUMNS[column].key))] : [column];
  }

  /** Returns the names that a column may have in a file of tensors, which include its batch keys. */
  inTensors(column: RolloutColumn): readonly string[] {
    const names = this.of(column);
    if (this.isRenamed(column)) return names;
    const { key } = COLUMNS[column];
    return [...new Set([...names, toSnakeCase(key), key])];
  }

  /** Returns the column that a name in a file stands for; undefined if the file's column is not read. */
  columnOf(name: string): RolloutColumn | undefined {
    return this.columns.find((column) => this.of(column).includes(name));
  }
}
