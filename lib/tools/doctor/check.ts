// What a check is. Each check looks for one fault of a dump. It is declared as data, and the command line, the pages and
// the documentation's table are derived from its declaration.
import { INPUT_NAMES, inputRow } from '../../batch/columns.js';
import type { RolloutColumn } from '../rollouts/index.js';
import type { Row } from './row.js';
import type { RowSet, RowTable } from './row-table.js';

/**
 * How serious a finding is. An error makes the loss wrong or not a number. A warning is unusual in healthy training. An
 * info is worth knowing, but often intended.
 */
export type Severity = 'error' | 'warning' | 'info';

/** A column that a check needs, or columns of which it needs one. */
export type Need = RolloutColumn | readonly RolloutColumn[];

/** Numbers that show what a check has found, by names such as meanDifference. Absent numbers are undefined. */
export type Evidence = Readonly<Record<string, number | undefined>>;

/** The result of a check. */
export interface Outcome {
  /** How serious the fault is; undefined if the dump does not have it. */
  severity?: Severity | undefined;
  evidence: Evidence;
  /** The rows that show the fault; undefined if the fault concerns all rows together. */
  rows?: RowSet | undefined;
}

/** Examines the rows of a dump, one after another, by what was measured of each. */
export interface Examiner {
  /**
   * Adds a row.
   * @param numbers what the check has measured of the row.
   * @param index the index of the row among all rows.
   */
  add(numbers: Numbers, index: number): void;
  /** Called once, after the last row. The evidence is rounded afterwards. */
  finish(): Outcome;
}

/** The numbers that a check has measured of one row. A check measures equally many of each row. */
export type Numbers = ArrayLike<number>;

/** A check: what it looks for, what it needs, what its finding means, and how it examines rows. */
export interface Check {
  /** The name of the check and of its finding. */
  name: string;
  /** The fault, as a statement about the dump. */
  title: string;
  needs: readonly Need[];
  /** What the fault means for training, in one or two sentences. */
  meaning: string;
  /** What to try. */
  advice: string;
  /** When the check reports the fault, with the reason for the threshold. */
  rule: string;
  /**
   * Measures a row that has the columns that the check needs. Rows can be measured anywhere, in any order. Returns
   * undefined for a row that does not matter to the check.
   */
  measure(row: Row): number[] | undefined;
  /** @param rows the table of rows; a row is in it before the examiner gets it. */
  start(rows: RowTable): Examiner;
}

/** The columns with one number per token. */
export const TOKEN_COLUMNS: readonly RolloutColumn[] = INPUT_NAMES.flatMap((name) => {
  const { type, file } = inputRow(name);
  return type === 'floats' && file ? [file] : [];
});

/** The columns with one number per row. */
export const NUMBER_COLUMNS: readonly RolloutColumn[] = INPUT_NAMES.flatMap((name) => {
  const { type, file } = inputRow(name);
  return type === 'numbers' && file ? [file] : [];
});

/** The columns with log-probabilities. */
export const LOGPROB_COLUMNS = TOKEN_COLUMNS.filter((column) => column.endsWith('logprobs'));

/** Checks look at a single row's statistics only if it has this many tokens. Shorter rows are too noisy. */
export const LONG_ENOUGH = 8;
