// Maps each column to the names that it may have in files: either the name that the user gave, or the column's own name
// and the name that a training framework uses.
import { distance } from 'fastest-levenshtein';
import { LossError, unknownName } from '../../base/errors.js';
import { toCamelCase, toSnakeCase } from '../../base/options.js';
import { KeyMapper } from '../../batch/key-mapper.js';
import { COLUMNS, columnOfKey, type RolloutColumn } from './columns.js';

/**
 * Returns advice on a missing column if the file has a column of almost the same name, such as log_probs for logprobs.
 * @param wanted a name that the column may have.
 * @param names the names of the file's columns.
 */
export function adviceOnNear(
  column: RolloutColumn,
  wanted: string,
  names: readonly string[],
): string | undefined {
  if (names.includes(wanted)) return undefined;
  const wantedWord = wordOf(wanted);
  const most = Math.min(Math.floor(wantedWord.length / 4), 2);
  // A longer name is not near, and would take long to compare.
  const near = names
    .filter((name) => name.length < 2 * wanted.length + 8)
    .map((name) => ({ name, distance: distance(wordOf(name), wantedWord) }))
    .sort((a, b) => a.distance - b.distance)[0];
  if (!near || near.distance > most) return undefined;
  return `Did you mean ${near.name}? Then add --column ${column}=${near.name}`;
}

// Columns that can stand in for another one: for the log-probabilities of the current policy, which most trainers do not
// save, and for the values from before an update, which are the current ones until then.
const STAND_INS: Partial<Record<RolloutColumn, { purpose: string; names: readonly string[] }>> = {
  logprobs: {
    purpose: 'at a ratio of 1, as a trainer does first',
    names: ['old_logprobs', 'old_log_probs', 'rollout_logprobs', 'rollout_log_probs'],
  },
  old_values: { purpose: 'as a trainer does at its first update', names: ['values'] },
};

/** Returns advice on a missing column for which another column of the file can stand in. */
export function adviceOnStandIn(column: RolloutColumn, names: readonly string[]): string | undefined {
  const { purpose, names: others } = STAND_INS[column] ?? { names: [] };
  const standIn = others.find((other) => names.includes(other));
  if (standIn === undefined) return undefined;
  return `To evaluate ${purpose}, let ${standIn} stand in: --column ${column}=${standIn}`;
}

/** Returns a name without what only spelling decides: case, and what stands between words. */
function wordOf(name: string): string {
  return name.toLowerCase().replace(/[^a-z0-9]/g, '');
}

const ALL = Object.keys(COLUMNS) as RolloutColumn[];

// In data sets and dumps, columns of these names also hold texts, or masks of other lengths. They are read only for losses
// that need them.
const AMBIGUOUS: ReadonlySet<RolloutColumn> = new Set(['label', 'chosen', 'attention_mask'] as const);
const UNAMBIGUOUS = ALL.filter((column) => !AMBIGUOUS.has(column));

/** The two responses of a pair. */
export const SIDES = ['chosen', 'rejected'] as const;
export type Side = (typeof SIDES)[number];

// Flags that only the chosen row of a pair has.
const CHOSEN_FLAGS = ['chosen', 'label'];

const RENAMABLE = [...ALL, ...SIDES.flatMap((side) => ALL.map((name) => `${side}_${name}`))];

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
  readonly #renamed = new Map<string, string>();
  readonly #mapper: KeyMapper | undefined;

  /**
   * @param rename the names that the user gave to columns. Each key is a column's name or its batch key, or a column's name
   * after chosen_ or rejected_.
   * @param backend a training framework whose names for columns are accepted too.
   * @throws LossError `ERR_UNKNOWN_NAME` for an unknown backend, `ERR_INVALID_OPTION` if `rename` has an unknown
   * column, or two names for one column.
   * @param pairs whether to read what brings the rows of a pair together: ids, flags and prompts.
   */
  constructor(
    columns: readonly RolloutColumn[] = UNAMBIGUOUS,
    rename: Readonly<Record<string, string>> = {},
    backend?: string,
    keep: readonly string[] = [],
    needLogprobs = true,
    pairs = false,
  ) {
    this.columns = [...new Set<RolloutColumn>(['logprobs', 'action_mask', ...columns])];
    this.keep = keep;
    this.needLogprobs = needLogprobs;
    this.#mapper = backend === undefined ? undefined : KeyMapper.get(backend);
    for (const [name, theirs] of Object.entries(rename)) {
      const column = RENAMABLE.find((known) => known === name) ?? columnOfKey(toCamelCase(name));
      if (!column) throw unknownName('ERR_INVALID_OPTION', 'column', name, ALL);
      if (this.#renamed.has(column))
        throw new LossError('ERR_INVALID_OPTION', {
          at: `column ${column}`,
          expected: 'one name',
          received: `${this.#renamed.get(column)} and ${theirs}`,
        });
      this.#renamed.set(column, theirs);
    }
    const others = pairs ? [this.pairId, ...this.chosenFlags, ...this.promptNames] : [];
    const ofSides = SIDES.flatMap((side) => keep.flatMap((name) => this.keptOfSide(side, name)));
    for (const name of [...keep, ...ofSides, ...others]) this.#byName.set(name, undefined);
    for (const column of [...this.columns].reverse())
      for (const name of [...SIDES.flatMap((side) => this.ofSide(side, column)), ...this.of(column)])
        this.#byName.set(name, column);
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

  /** Returns the names that a column of one response may have in a row that holds a pair. Error messages show the first one. */
  ofSide(side: Side, column: RolloutColumn): readonly [string, ...string[]] {
    const renamed = this.#renamed.get(`${side}_${column}`);
    if (renamed !== undefined) return [renamed];
    const [name, ...others] = this.of(column).map((name) => `${side}_${name}`);
    return [name!, ...others, ...(column.startsWith('ref_') ? [column.replace('ref_', `ref_${side}_`)] : [])];
  }

  /** Returns the names that a column to keep may have for one response in a row that holds a pair. */
  keptOfSide(side: Side, name: string): readonly string[] {
    return [`${side}_${name}`, ...(name === 'response' ? [side] : [])];
  }

  /** The name of the column with the ids of pairs. */
  get pairId(): string {
    return this.of('pair_id')[0];
  }

  /** The names of flags that only the chosen row of a pair has. The column `chosen`, which some losses read, is not one. */
  get chosenFlags(): readonly string[] {
    return CHOSEN_FLAGS.filter((name) => name !== 'chosen' || !this.columns.includes(name));
  }

  /** The names of columns that are equal in both rows of a pair. */
  get promptNames(): readonly string[] {
    return [...this.of('task_id'), 'prompt'];
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
