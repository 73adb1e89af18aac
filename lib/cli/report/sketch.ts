// How numbers are distributed, in a bounded room however many they are.

/** Counts of values in bins of equal width, the first from `low`. */
export interface Histogram {
  low: number;
  width: number;
  counts: number[];
}

/**
 * The distribution of a stream of numbers, in a megabyte. A value is binned by the upper 16 bits of its float32: sign,
 * exponent and 7 bits of mantissa. So bins are at most 1/128 of their value wide at every scale, none has to be known
 * beforehand, and one far outlier costs the others no resolution. Each bin keeps its mean, which makes quantiles of
 * values that come up again and again exact. The order of the values changes nothing but the last bits of means.
 */
export class Sketch {
  /** Finite values. */
  count = 0;
  /** NaN and ±Infinity. They are in nothing else. */
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

  /** Values that are 0. */
  get zeros(): number {
    return this.#counts[0]! + this.#counts[SIGN]!;
  }

  /** NaN of no values. */
  get mean(): number {
    return this.#sums.reduce((sum, x) => sum + x, 0) / this.count;
  }

  /** The value below which the share `q` of them lies, within 1/128 of itself; NaN of no values. */
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
   * The range that shows the values: all of it, unless the outermost hundredth on a side would take up more than a third
   * of it; then that side ends a little beyond where the others do.
   */
  view(): { low: number; high: number } {
    const inner = { low: this.quantile(0.01), high: this.quantile(0.99) };
    const room = inner.high - inner.low;
    const low = this.min < inner.low - room ? inner.low - room / 2 : this.min;
    const high = this.max > inner.high + room ? inner.high + room / 2 : this.max;
    return { low, high };
  }

  /**
   * Counts in bins of one width.
   * @param edges.low where the first begins.
   * @param zeros whether values that are 0 count.
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
      // Values that are one point, or as good as one, belong where their mean is.
      if (!(span > 1e-6)) {
        put(Math.floor((bin.mean - low) / width), bin.count);
        continue;
      }
      for (let i = Math.floor(from); i < to; i++)
        put(i, (bin.count * (Math.min(i + 1, to) - Math.max(i, from))) / span);
    }
    return { low, width, counts };
  }

  /** Whether the other has the same values, as far as bins and means tell. */
  equals(other: Sketch): boolean {
    return (
      this.nonFinite === other.nonFinite &&
      this.#counts.every((count, bin) => count === other.#counts[bin]) &&
      this.#sums.every((sum, bin) => sum === other.#sums[bin])
    );
  }

  /** Those that hold something, from the least values to the greatest. */
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

/** Where a bin of positive values begins. */
function edge(bin: number): number {
  if (bin === EXPONENT) return 2 ** 128;
  scratchBits[0] = bin << 16;
  return scratchFloat[0]!;
}

/**
 * Bins of a round width for a range.
 * @param most how many there may be, about.
 * @param centred whether 0 is the middle of a bin, not an edge of two.
 */
export function binsFor(
  { low, high }: { low: number; high: number },
  most: number,
  centred: boolean,
): { low: number; width: number; bins: number } {
  const shift = centred ? 0.5 : 0;
  const least = Math.max(Math.abs(low), Math.abs(high)) * 1e-6;
  const span = high - low > least ? high - low : 0;
  // One value stands in the middle of a range that suits its size.
  const width = roundUp((span || Math.abs(low) || 1) / (span ? most : 10));
  const first = Math.floor(low / width + shift) - (span ? 0 : 10);
  const last = Math.floor(high / width + shift) + (span ? 0 : 10);
  return { low: (first - shift) * width, width, bins: last - first + 1 };
}

function roundUp(x: number): number {
  const magnitude = 10 ** Math.floor(Math.log10(x));
  const step = ROUND.find((step) => step * magnitude >= x * (1 - 1e-9)) ?? 10;
  return step * magnitude;
}

const ROUND = [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8];
