// Combines the metrics of several parts into metrics over the rows of all parts.
import type { Metrics } from '../index.js';

/**
 * Merges the metrics of several parts into metrics over the rows of all parts. A metric must be a mean over rows, a
 * standard deviation over rows (`…/std`, together with its mean `…/mean`), or a coefficient that all parts share.
 */
export class RowMetrics {
  #rows = 0;
  #means: Metrics = {};
  // For each standard deviation, the sum of the squared distances from the mean, over all rows so far.
  readonly #squares: Metrics = {};

  /**
   * Adds the metrics of a part.
   * @param rows the number of rows in the part.
   */
  add(metrics: Metrics, rows: number): void {
    const all = this.#rows + rows;
    const before = this.#means;
    this.#means = {};
    for (const [name, value] of Object.entries(metrics)) {
      if (!name.endsWith('/std')) {
        const mean = before[name] ?? value;
        // This form of the mean adds exactly 0 if the value equals the mean so far, so a coefficient does not change.
        this.#means[name] = all > 0 ? mean + ((value - mean) * rows) / all : mean;
        continue;
      }
      const ofMean = name.replace(/std$/, 'mean');
      const difference = metrics[ofMean]! - (before[ofMean] ?? metrics[ofMean]!);
      this.#squares[name] =
        (this.#squares[name] ?? 0) +
        value * value * Math.max(rows - 1, 0) +
        (all > 0 ? (difference * difference * this.#rows * rows) / all : 0);
      this.#means[name] = 0;
    }
    this.#rows = all;
  }

  /** The metrics over the rows of all parts that were added so far. */
  get whole(): Metrics {
    return Object.fromEntries(
      Object.entries(this.#means).map(([name, mean]) => {
        const squares = this.#squares[name];
        if (squares === undefined) return [name, mean];
        return [name, this.#rows > 1 ? Math.sqrt(squares / (this.#rows - 1)) : 0];
      }),
    );
  }
}
