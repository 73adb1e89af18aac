// What the columns are called in the files: by their own names, as the user says, or as a training framework calls
// them.
import { LossError, unknownName } from '../core/errors.js';
import { KeyMapper } from '../core/key-mapper.js';
import { toCamelCase, toSnakeCase } from '../core/options.js';
import { COLUMNS, columnOfKey, type RolloutColumn } from './columns.js';

const ALL = Object.keys(COLUMNS) as RolloutColumn[];

/** Which columns are read, and under which names a file may have them. */
export class ColumnNames {
  /** Those that are read, logprobs and action_mask first. */
  readonly columns: readonly RolloutColumn[];
  /** Further columns, by their names in the files. */
  readonly keep: readonly string[];
  readonly #renamed = new Map<RolloutColumn, string>();
  readonly #mapper: KeyMapper | undefined;

  /**
   * @param rename by the column's name or its key in batches.
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
        throw new LossError(
          'ERR_INVALID_OPTION',
          `column ${column}: expected one name for it, and ${this.#renamed.get(column)} and ${theirs} came`,
        );
      this.#renamed.set(column, theirs);
    }
  }

  /** Whether the user says what the column is called, and so that it is there. */
  isRenamed(column: RolloutColumn): boolean {
    return this.#renamed.has(column);
  }

  /** The names that a column may have in a file, the one that messages use first. */
  of(column: RolloutColumn): readonly string[] {
    const renamed = this.#renamed.get(column);
    if (renamed !== undefined) return [renamed];
    return this.#mapper ? [column, this.#mapper.fromTrinity(toSnakeCase(COLUMNS[column].key))] : [column];
  }

  /** The names that it may have in a file of tensors: its keys in batches, too. */
  inTensors(column: RolloutColumn): readonly string[] {
    const names = this.of(column);
    if (this.isRenamed(column)) return names;
    const { key } = COLUMNS[column];
    return [...new Set([...names, toSnakeCase(key), key])];
  }

  /** The column that a file has under a name; undefined: none that is read. */
  columnOf(name: string): RolloutColumn | undefined {
    return this.columns.find((column) => this.of(column).includes(name));
  }

  /** The column as messages name it: as in the file, and what it is to be. */
  describe(column: RolloutColumn): string {
    const renamed = this.#renamed.get(column);
    return renamed === undefined || renamed === column ? column : `${renamed} (${column})`;
  }
}
