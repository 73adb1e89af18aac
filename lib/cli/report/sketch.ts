// Approximates the distribution of any number of values in constant memory.

/** Counts of values in bins of equal width; the first bin begins at `low`. */
export interface Histogram {
  low: number;
  width: number;
  counts: number[];
}

/**
 * The distribution of a stream of numbers, in one megabyte. The upper 16 bits of a value's float32 (sign, exponent and
 * 7 bits of mantissa) choose its bin. A bin is therefore at most 1/128 of its values wide at any scale, the range need
 * not be known in advance, and outliers cost the other values no resolution. Each bin keeps its mean, so quantiles of a
 * repeated value are exact. The order of the values affects only the last bits of the means.
 */
export class Sketch {
  /** Number of finite values. */
  count = 0;
  /** Number of NaN and ±Infinity, which no other statistic includes. */
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

  /** Number of values that are 0. */
  get zeros(): number {
    return this.#counts[0]! + this.#counts[SIGN]!;
  }

  /** The mean; NaN without values. */
  get mean(): number {
    return this.#sums.reduce((sum, x) => sum + x, 0) / this.count;
  }

  /** Returns the `q`-quantile with a relative error of at most 1/128; NaN without values. */
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
   * Returns the range of values to draw. If the outermost 1% on a side reaches further than the width of the inner 98%,
   * the range ends half that width beyond the inner 98%.
   */
  view(): { low: number; high: number } {
    const inner = { low: this.quantile(0.01), high: this.quantile(0.99) };
    const width = inner.high - inner.low;
    const low = this.min < inner.low - width ? inner.low - width / 2 : this.min;
    const high = this.max > inner.high + width ? inner.high + width / 2 : this.max;
    return { low, high };
  }

  /**
   * Counts the values in bins of equal width, and spreads each of the sketch's own bins evenly.
   * @param zeros whether to count values of 0.
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
      // A bin that is much narrower than the new ones goes where its mean is.
      if (!(span > 1e-6)) {
        put(Math.floor((bin.mean - low) / width), bin.count);
        continue;
      }
      for (let i = Math.floor(from); i < to; i++)
        put(i, (bin.count * (Math.min(i + 1, to) - Math.max(i, from))) / span);
    }
    return { low, width, counts };
  }

  /** Returns whether the bins of both sketches have the same counts and sums. */
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

/** Returns the lower edge of a bin of positive values. */
function edge(bin: number): number {
  if (bin === EXPONENT) return 2 ** 128;
  scratchBits[0] = bin << 16;
  return scratchFloat[0]!;
}

/**
 * Returns bins of a round width that cover a range.
 * @param most approximate limit on the number of bins.
 * @param centred whether 0 is the centre of a bin instead of an edge.
 */
export function binsFor(
  { low, high }: { low: number; high: number },
  most: number,
  centred: boolean,
): { low: number; width: number; bins: number } {
  const shift = centred ? 0.5 : 0;
  const least = Math.max(Math.abs(low), Math.abs(high)) * 1e-6;
  const span = high - low > least ? high - low : 0;
  // A single value gets a range around it that suits its magnitude.
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
