// Combines the metrics of parts into metrics over all rows.
import type { Metrics } from '../index.js';

/** Merges means over rows, standard deviations (`…/std`, each with its `…/mean`) and coefficients. */
export class RowMetrics {
  #rows = 0;
  #means: Metrics = {};
  // The sum of squared distances from the mean, for each standard deviation.
  readonly #squares: Metrics = {};

  /** Adds the metrics of a part with that many rows. */
  add(metrics: Metrics, rows: number): void {
    const all = this.#rows + rows;
    const before = this.#means;
    this.#means = {};
    for (const [name, value] of Object.entries(metrics)) {
      if (!name.endsWith('/std')) {
        const mean = before[name] ?? value;
        // In this form, a coefficient that is equal in all parts keeps its bits.
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

  /** The metrics over all rows so far. */
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
