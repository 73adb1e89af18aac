// Measures rows: what the checks need to know of each row, in a few numbers.
import type { Place, RolloutColumn, RolloutPart } from '../rollouts/index.js';
import type { Check, Need, Numbers } from './check.js';
import { CHECKS } from './checks/index.js';
import { columnOf, Row } from './row.js';

/** Receives rows as the checks have measured them, in order. */
export interface RowSink {
  /**
   * Begins a part.
   * @param columns the columns of the part, among those that checks need.
   * @param tokens the number of unmasked tokens.
   */
  beginPart(columns: readonly RolloutColumn[], tokens: number): void;
  /**
   * Begins a row.
   * @param group the number of its task_id, and `run` that of its run_id; NaN without ids.
   */
  row(place: Place, group: number, run: number): void;
  /** Receives what a check has measured of the current row. The numbers are valid during the call only. */
  measured(check: Check, numbers: Numbers): void;
}

/** Measures the rows of a part. */
export function measureRows(part: RolloutPart, sink: RowSink): void {
  const columns = NEEDED.filter((column) => columnOf(part, column) !== undefined);
  const checks = runnable(columns);
  sink.beginPart(columns, part.tokens);
  for (let i = 0; i < part.rows; i++) {
    const row = new Row(part, i);
    sink.row(
      part.places[i] ?? { file: '' },
      row.number('task_id') ?? Number.NaN,
      row.number('run_id') ?? Number.NaN,
    );
    for (const check of checks) {
      const numbers = check.measure(row);
      if (numbers) sink.measured(check, numbers);
    }
  }
}

/** The columns that checks need. */
export const NEEDED: readonly RolloutColumn[] = [...new Set(CHECKS.flatMap(({ needs }) => needs).flat())];

/** Returns the checks that rows with some columns have what they need for. */
export function runnable(columns: readonly RolloutColumn[]): readonly Check[] {
  return CHECKS.filter(({ needs }) =>
    needs.every((need) => columnsOf(need).some((column) => columns.includes(column))),
  );
}

/** Returns the columns of which a check needs one. */
export function columnsOf(need: Need): readonly RolloutColumn[] {
  return typeof need === 'string' ? [need] : need;
}
