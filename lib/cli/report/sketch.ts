// Approximates the distribution of any number of values in constant memory.

/** The counts of values in bins of equal width. The first bin begins at `low`. */
export interface Histogram {
  low: number;
  width: number;
  counts: number[];
}

/**
 * An approximate distribution of a stream of numbers. It takes one megabyte of memory. Each value is counted in a bin,
 * which is chosen by the upper 16 bits of the value as a float32: sign, exponent and 7 bits of the mantissa. At any
 * scale, the width of a bin is therefore at most 1/128 of the values in it. The range of the values need not be known
 * in advance, and outliers do not make the bins of other values coarser. Each bin also keeps the mean of its values, so
 * a quantile is exact if all values in its bin are equal. The order of the values affects only the last bits of the
 * means.
 */
export class Sketch {
  /** The number of finite values. */
  count = 0;
  /** The number of values that are NaN or ±Infinity. No other statistic includes these values. */
  nonFinite = 0;
  min = Number.POSITIVE_INFINITY;
  max = Number.NEGATIVE_INFINITY;
  readonly #counts = new Float64Array(BINS);
  readonly #sums = new Float64Array(BINS);

  add(x: number): void {
    scratchFloat[0] = x;
    const bin = scratchBits[0]! >>> 16;
    if ((bin & EXPONENT) === EXPONENT) {
      this.nonFinite++;
      return;
    }
    this.count++;
    this.#counts[bin]!++;
    this.#sums[bin]! += x;
    if (x < this.min) this.min = x;
    if (x > this.max) this.max = x;
  }

  /** The number of values that are 0. */
  get zeros(): number {
    return this.#counts[0]! + this.#counts[SIGN]!;
  }

  /** The mean of the finite values; NaN if there are none. */
  get mean(): number {
    return this.#sums.reduce((sum, x) => sum + x, 0) / this.count;
  }

  /**
   * Returns a quantile with a relative error of at most 1/128. Returns NaN if there are no values.
   * @param q the fraction of the values that lie below the quantile, from 0 to 1.
   */
  quantile(q: number): number {
    if (q <= 0 || this.count === 0) return this.count === 0 ? Number.NaN : this.min;
    if (q >= 1) return this.max;
    let below = 0;
    for (const bin of this.#bins()) {
      below += bin.count;
      if (below > q * this.count) return bin.mean;
    }
    return this.max;
  }

  /**
   * Returns the range of values that a chart should show. This is usually the range of all values. If outliers on one
   * side extend beyond the inner 98% of the values by more than the width of these 98%, only half this width is shown
   * on that side.
   */
  view(): { low: number; high: number } {
    const inner = { low: this.quantile(0.01), high: this.quantile(0.99) };
    const width = inner.high - inner.low;
    const low = this.min < inner.low - width ? inner.low - width / 2 : this.min;
    const high = this.max > inner.high + width ? inner.high + width / 2 : this.max;
    return { low, high };
  }

  /**
   * Converts the distribution to a histogram with bins of equal width. The count of each bin of this sketch is spread
   * evenly over the new bins that it overlaps.
   * @param zeros whether values of 0 are counted.
   */
  histogram({ low, width, bins }: { low: number; width: number; bins: number }, zeros = true): Histogram {
    const counts = new Array<number>(bins).fill(0);
    const put = (bin: number, count: number) => {
      if (bin >= 0 && bin < bins) counts[bin]! += count;
    };
    for (const bin of this.#bins()) {
      if (!zeros && bin.low === 0 && bin.high === 0) continue;
      const from = Math.max((Math.max(bin.low, this.min) - low) / width, -1);
      const to = Math.min((Math.min(bin.high, this.max) - low) / width, bins + 1);
      const span = to - from;
      // If a bin is much narrower than the new bins, its whole count goes to the new bin that contains its mean.
      if (!(span > 1e-6)) {
        put(Math.floor((bin.mean - low) / width), bin.count);
        continue;
      }
      for (let i = Math.floor(from); i < to; i++)
        put(i, (bin.count * (Math.min(i + 1, to) - Math.max(i, from))) / span);
    }
    return { low, width, counts };
  }

  /** Returns whether both distributions have the same count and the same sum of values in every bin. */
  equals(other: Sketch): boolean {
    return (
      this.nonFinite === other.nonFinite &&
      this.#counts.every((count, bin) => count === other.#counts[bin]) &&
      this.#sums.every((sum, bin) => sum === other.#sums[bin])
    );
  }

  /** Yields the bins that are not empty, in ascending order of their values. */
  *#bins(): Generator<{ low: number; high: number; mean: number; count: number }> {
    const of = (bin: number, low: number, high: number) => {
      const count = this.#counts[bin]!;
      return { low, high, count, mean: this.#sums[bin]! / count };
    };
    for (let bin = EXPONENT - 1; bin > 0; bin--)
      if (this.#counts[SIGN | bin]! > 0) yield of(SIGN | bin, -edge(bin + 1), -edge(bin));
    if (this.zeros > 0) yield { low: 0, high: 0, mean: 0, count: this.zeros };
    for (let bin = 1; bin < EXPONENT; bin++)
      if (this.#counts[bin]! > 0) yield of(bin, edge(bin), edge(bin + 1));
  }
}

const BINS = 2 ** 16;
const SIGN = 0x8000;
const EXPONENT = 0x7f80;

const scratchFloat = new Float32Array(1);
const scratchBits = new Uint32Array(scratchFloat.buffer);

/** Returns the lower edge of a bin of positive values, whose number is given. */
function edge(bin: number): number {
  if (bin === EXPONENT) return 2 ** 128;
  scratchBits[0] = bin << 16;
  return scratchFloat[0]!;
}

/**
 * Returns bins that cover a range of values. Their width is a round number.
 * @param most about the largest number of bins to return.
 * @param centred whether 0 is in the centre of a bin. Otherwise it is the edge of one.
 */
export function binsFor(
  { low, high }: { low: number; high: number },
  most: number,
  centred: boolean,
): { low: number; width: number; bins: number } {
  const shift = centred ? 0.5 : 0;
  const least = Math.max(Math.abs(low), Math.abs(high)) * 1e-6;
  const span = high - low > least ? high - low : 0;
  // If all values are equal, the bins cover a range around this value that suits its magnitude.
  const width = roundUp((span || Math.abs(low) || 1) / (span ? most : 10));
  const first = Math.floor(low / width + shift) - (span ? 0 : 10);
  const last = Math.floor(high / width + shift) + (span ? 0 : 10);
  return { low: (first - shift) * width, width, bins: last - first + 1 };
}

function roundUp(x: number): number {
  const magnitude = 10 ** Math.floor(Math.log10(x));
  const step = ROUND_STEPS.find((step) => step * magnitude >= x * (1 - 1e-9)) ?? 10;
  return step * magnitude;
}

const ROUND_STEPS = [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8];
