// The metrics of advantage functions and KL penalties, from one number per row. However the rows are divided into parts
// and shards, the metrics over all of them have the same bits.
import type { Metrics } from '../../index.js';
import { type PackedRows, type RolloutPart, rowsFrom } from '../rollouts/index.js';
import { joinNumbers } from './growing.js';

/** One number per row of each metric. */
export type RowValues = Record<string, Float64Array>;

/**
 * Collects the metrics of rows, one by one. A metric must be a mean over rows, a standard deviation over rows (`…/std`,
 * together with its mean `…/mean`), or a coefficient that all rows share.
 */
export class RowMetrics {
  #values: Record<string, number[]> = {};

  /**
   * Adds the rows of a part.
   * @param metrics the metrics of the part as a whole. Nothing is computed if there are none.
   * @param of computes the metrics of a batch that is a single row.
   */
  add(
    metrics: Metrics,
    { batch, rows }: Pick<RolloutPart, 'batch' | 'rows'>,
    of: (row: PackedRows) => Metrics,
  ): void {
    const names = Object.keys(metrics);
    if (names.length === 0) return;
    for (const name of names) this.#values[name] ??= [];
    for (let row = 0; row < rows; row++) {
      const ofRow = of(rowsFrom(batch as PackedRows, row, row + 1));
      for (const name of names) this.#values[name]!.push(ofRow[name]!);
    }
  }

  get values(): RowValues {
    return Object.fromEntries(
      Object.entries(this.#values).map(([name, values]) => [name, Float64Array.from(values)]),
    );
  }
}

/** Joins the values of consecutive rows. */
export function joinRowValues(all: readonly RowValues[]): RowValues {
  const names = [...new Set(all.flatMap((values) => Object.keys(values)))];
  return Object.fromEntries(
    names.map((name) => [
      name,
      joinNumbers(
        all.map((values) => values[name] ?? new Float64Array(0)),
        (length) => new Float64Array(length),
      ),
    ]),
  );
}

/** Returns the metrics over all rows. */
export function metricsOver(values: RowValues): Metrics {
  return Object.fromEntries(
    Object.entries(values).map(([name, ofRows]) => {
      if (!name.endsWith('/std')) return [name, meanOver(ofRows)];
      return [name, deviationOver(values[name.replace(/std$/, 'mean')]!)];
    }),
  );
}

function meanOver(values: Float64Array): number {
  const [first] = values;
  // The mean of equal numbers may be rounded, but a coefficient must not change.
  if (first !== undefined && values.every((x) => x === first)) return first;
  return values.length > 0 ? values.reduce((sum, x) => sum + x, 0) / values.length : 0;
}

function deviationOver(values: Float64Array): number {
  const mean = meanOver(values);
  const squares = values.reduce((sum, x) => sum + (x - mean) * (x - mean), 0);
  return values.length > 1 ? Math.sqrt(squares / (values.length - 1)) : 0;
}
