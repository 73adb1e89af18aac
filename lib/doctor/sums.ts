// Sums that do not depend on the order of their terms, and the statistics that the checks compute from them.

/**
 * A sum of float64 numbers without rounding errors (Shewchuk's algorithm). The order of the rows therefore does not
 * change a finding, not even in the last digit.
 */
export class ExactSum {
  // Numbers whose bits do not overlap, in ascending order of magnitude. Their exact sum is the sum of all terms.
  #partials: number[] = [];

  /** Adds a finite number. */
  add(term: number): void {
    let x = term;
    let kept = 0;
    for (const partial of this.#partials) {
      const [large, small] = Math.abs(x) < Math.abs(partial) ? [partial, x] : [x, partial];
      const sum = large + small;
      const error = small - (sum - large);
      if (error !== 0) this.#partials[kept++] = error;
      x = sum;
    }
    this.#partials.length = kept;
    this.#partials.push(x);
  }

  /** The exact sum, rounded once to float64. */
  get value(): number {
    const partials = this.#partials;
    let at = partials.length - 1;
    let sum = partials[at] ?? 0;
    let error = 0;
    // The partials do not overlap. So only the first one that does not fit into the sum can round it.
    while (error === 0 && at > 0) {
      const partial = partials[--at]!;
      const rounded = sum + partial;
      error = partial - (rounded - sum);
      sum = rounded;
    }
    // If the error is exactly half of the last digit, the sign of the next partial decides how the tie is broken.
    const next = partials[at - 1] ?? 0;
    if ((error < 0 && next < 0) || (error > 0 && next > 0)) {
      const doubled = error * 2;
      const moved = sum + doubled;
      if (moved - sum === doubled) sum = moved;
    }
    return sum;
  }
}

/** Returns the sum of finite numbers, rounded once. */
export function sumOf(values: Float64Array): number {
  const sum = new ExactSum();
  for (const x of values) sum.add(x);
  return sum.value;
}

/**
 * The mean of the tokens of many rows, with its standard error. The tokens of a row are not independent, so the error
 * is computed from the sums of the rows.
 */
export class TokenMean {
  /** The number of values. */
  count = 0;
  readonly #sum = new ExactSum();
  readonly #squares = new ExactSum();
  // Sums over rows: (sum of the row)², (sum of the row)·(values of the row), (values of the row)².
  readonly #sumSum = new ExactSum();
  readonly #sumCount = new ExactSum();
  readonly #countCount = new ExactSum();

  /** Adds the values of a row that are finite. */
  addRow(values: Float32Array | Float64Array): void {
    let count = 0;
    let sum = 0;
    let squares = 0;
    for (let t = 0; t < values.length; t++) {
      const x = values[t]!;
      if (!Number.isFinite(x)) continue;
      count++;
      sum += x;
      squares += x * x;
    }
    if (count === 0) return;
    this.count += count;
    this.#sum.add(sum);
    this.#squares.add(squares);
    this.#sumSum.add(sum * sum);
    this.#sumCount.add(sum * count);
    this.#countCount.add(count * count);
  }

  get mean(): number {
    return this.#sum.value / this.count;
  }

  /** The standard deviation of the values. */
  get deviation(): number {
    return Math.sqrt(Math.max(this.#squares.value / this.count - this.mean ** 2, 0));
  }

  /** The standard error of the mean. */
  get error(): number {
    const { mean } = this;
    const between =
      this.#sumSum.value - 2 * mean * this.#sumCount.value + mean * mean * this.#countCount.value;
    return Math.sqrt(Math.max(between, 0)) / this.count;
  }
}

/** Returns the median of numbers that are sorted in ascending order. */
export function medianOf(sorted: ArrayLike<number>): number {
  const { length } = sorted;
  return length === 0 ? Number.NaN : (sorted[(length - 1) >> 1]! + sorted[length >> 1]!) / 2;
}

/** Returns the mean of some of the numbers in an array. */
export function meanOf(values: ArrayLike<number>, from = 0, to = values.length): number {
  let sum = 0;
  for (let i = from; i < to; i++) sum += values[i]!;
  return sum / (to - from);
}
