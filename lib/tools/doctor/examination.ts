// Runs all checks on the parts of a dump, in one pass and in bounded memory.
import type { Place, RolloutColumn, RolloutPart } from '../rollouts/index.js';
import type { Check, Evidence, Examiner, Need, Numbers, Outcome, Severity } from './check.js';
import { CHECKS } from './checks/index.js';
import { columnsOf, measureRows, type RowSink, runnable } from './measure.js';
import { RowTable } from './row-table.js';

/** A fault that a check has found. */
export interface Finding {
  /** The name of the check. */
  id: string;
  severity: Severity;
  /** The fault, as a statement about the dump. */
  title: string;
  /** What the fault means for training. */
  meaning: string;
  /** What to try. */
  advice: string;
  /** Numbers that show the fault, rounded to 6 significant digits. Log-probabilities and their differences are in nats. */
  evidence: Record<string, number>;
  rows: FindingRows;
}

/** The rows that show a fault. */
export interface FindingRows {
  /** The number of these rows. It is the number of all rows if the fault concerns all rows together. */
  count: number;
  /** The places of the first few of them. Empty if the fault concerns all rows together. */
  first: Place[];
  /** The files that have such rows, with the number of the rows in each. Empty if the fault concerns all rows together. */
  files: { file: string; rows: number }[];
}

/** Whether a check could run. */
export interface CheckRun {
  name: string;
  /** Whether the dump has the columns that the check needs. */
  ran: boolean;
  /** The columns that the check needs. Where one of several is enough, they are joined by ' or '. */
  needs: string[];
  /** The needs that the dump does not meet. */
  missing: string[];
  /** The numbers that the check measured, whether or not it reports a finding; absent if it did not run. */
  evidence?: Record<string, number>;
}

/** The findings about a dump. */
export interface Diagnosis {
  /** The findings, the most serious ones first. */
  findings: Finding[];
  /** All checks, with those that could not run because columns are missing. */
  checks: CheckRun[];
  rows: number;
  /** The number of unmasked tokens. */
  tokens: number;
}

/** The largest number of places that a finding lists. */
const PLACES = 5;

const SEVERITIES: readonly Severity[] = ['error', 'warning', 'info'];

/**
 * An examination of a dump. Call `add()` for every part, then `finish()`. Rows that were measured elsewhere can be replayed
 * into it instead; see MeasuredRows.
 */
export class Examination implements RowSink {
  #tokens = 0;
  readonly #table = new RowTable();
  readonly #examiners = new Map<Check, Examiner>();
  // The columns that the dump has.
  readonly #columns = new Set<RolloutColumn>();
  #outcomes = new Map<Check, Outcome>();

  /** Adds a part of the rows. The parts must be added in order. */
  add(part: RolloutPart): void {
    measureRows(part, this);
  }

  beginPart(columns: readonly RolloutColumn[], tokens: number): void {
    for (const column of columns) this.#columns.add(column);
    for (const check of runnable(columns))
      if (!this.#examiners.has(check)) this.#examiners.set(check, check.start(this.#table));
    this.#tokens += tokens;
  }

  row(place: Place, group: number, run: number): void {
    this.#table.add(place, group, run);
  }

  measured(check: Check, numbers: Numbers): void {
    this.#examiners.get(check)!.add(numbers, this.#table.length - 1);
  }

  /** Returns the findings. Must be called once, after the last part. */
  finish(): Diagnosis {
    for (const [check, examiner] of this.#examiners) this.#outcomes.set(check, examiner.finish());
    const findings = CHECKS.flatMap((check) => {
      const outcome = this.#outcomes.get(check);
      return outcome?.severity ? [this.#findingOf(check, outcome, outcome.severity)] : [];
    });
    return {
      findings: SEVERITIES.flatMap((severity) => findings.filter((finding) => finding.severity === severity)),
      checks: CHECKS.map((check) => this.#runOf(check)),
      rows: this.#table.length,
      tokens: this.#tokens,
    };
  }

  /**
   * Returns whether a row shows a fault that was found. A fault of all rows together is shown by none. Must be called
   * after finish().
   * @param id the name of the check.
   * @param row the index of the row among all rows.
   */
  shows(id: string, row: number): boolean {
    for (const [check, { severity, rows }] of this.#outcomes)
      if (check.name === id) return severity !== undefined && rows?.has(row) === true;
    return false;
  }

  #findingOf(
    { name, title, meaning, advice }: Check,
    { evidence, rows }: Outcome,
    severity: Severity,
  ): Finding {
    const found: FindingRows = { count: rows?.size ?? this.#table.length, first: [], files: [] };
    const files = new Map<string, number>();
    if (rows)
      for (let index = 0; index < this.#table.length; index++) {
        if (!rows.has(index)) continue;
        if (found.first.length < PLACES) found.first.push(this.#table.placeOf(index));
        const file = this.#table.fileOf(index);
        files.set(file, (files.get(file) ?? 0) + 1);
      }
    found.files = [...files].map(([file, rows]) => ({ file, rows }));
    return { id: name, severity, title, meaning, advice, evidence: rounded(evidence), rows: found };
  }

  #runOf(check: Check): CheckRun {
    const outcome = this.#outcomes.get(check);
    const missing = check.needs.filter(
      (need) => !columnsOf(need).some((column) => this.#columns.has(column)),
    );
    return {
      name: check.name,
      ran: outcome !== undefined,
      needs: check.needs.map(textOf),
      missing: outcome ? [] : missing.map(textOf),
      ...(outcome && { evidence: rounded(outcome.evidence) }),
    };
  }
}

/** Returns a need as text, such as 'old_logprobs or logprobs'. */
export function textOf(need: Need): string {
  return columnsOf(need).join(' or ');
}

const DIGITS = 6;

/** Returns the numbers that are known, rounded. A number that cannot be computed, for lack of tokens, is left out. */
function rounded(evidence: Evidence): Record<string, number> {
  const known = Object.entries(evidence).filter(
    (entry): entry is [string, number] => entry[1] !== undefined && Number.isFinite(entry[1]),
  );
  return Object.fromEntries(known.map(([name, x]) => [name, Number(x.toPrecision(DIGITS))]));
}
