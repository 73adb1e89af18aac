// The statistics that the checks compute from sums that do not depend on the order of their terms.
import { ExactSum } from '../../base/exact-sum.js';

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

  /** Returns what add() needs of a row's values: the number of the finite ones, their sum and the sum of their squares. */
  static sumsOf(values: Float32Array | Float64Array): [count: number, sum: number, squares: number] {
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
    return [count, sum, squares];
  }

  /** Adds the sums of a row. */
  add(count: number, sum: number, squares: number): void {
    if (count === 0) return;
    this.count += count;
    this.#sum.add(sum);
    this.#squares.add(squares);
    this.#sumSum.add(sum * sum);
    this.#sumCount.add(sum * count);
    this.#countCount.add(count * count);
  }

  /** Adds the sums of a row to several means, whose sums follow one another. */
  static addAll(means: readonly TokenMean[], numbers: ArrayLike<number>): void {
    means.forEach((mean, i) => {
      mean.add(numbers[3 * i]!, numbers[3 * i + 1]!, numbers[3 * i + 2]!);
    });
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
