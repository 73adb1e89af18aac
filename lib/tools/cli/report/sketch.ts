// Approximates the distribution of any number of values in constant memory.
import { encodeNumbers, type Fields } from '../../parts/fields.js';

/** The counts of values in bins of equal width. The first bin begins at `low`. */
export interface Histogram {
  low: number;
  width: number;
  counts: number[];
}

/**
 * An approximate distribution of a stream of numbers, which are rounded to float32. It takes one megabyte of memory. Each
 * value is counted in a bin, which is chosen by the upper 16 bits of the value: sign, exponent and 7 bits of the mantissa.
 * At any scale, the width of a bin is therefore at most 1/128 of the values in it. The range of the values need not be
 * known in advance, and outliers do not make the bins of other values coarser. Each bin also keeps the mean of its values,
 * so a quantile is exact if all values in its bin are equal. All sums are of integers, so that neither the order of the
 * values nor their division among sketches that are merged affects a bit.
 */
export class Sketch {
  /** The number of finite values. */
  count = 0;
  /** The number of values that are NaN or ±Infinity. No other statistic includes these values. */
  nonFinite = 0;
  min = Number.POSITIVE_INFINITY;
  max = Number.NEGATIVE_INFINITY;
  readonly #counts = new Float64Array(BINS);
  // The sum of the lower 16 bits of the values in each bin, which say where in the bin a value lies.
  readonly #rests = new Float64Array(BINS);

  add(value: number): void {
    scratchFloat[0] = value;
    const bits = scratchBits[0]!;
    const bin = bits >>> 16;
    if ((bin & EXPONENT) === EXPONENT) {
      this.nonFinite++;
      return;
    }
    const x = scratchFloat[0]!;
    this.count++;
    this.#counts[bin]!++;
    this.#rests[bin]! += bits & REST;
    if (x < this.min) this.min = x;
    if (x > this.max) this.max = x;
  }

  /** Adds all values of another sketch. */
  merge(other: Sketch): void {
    this.count += other.count;
    this.nonFinite += other.nonFinite;
    this.min = Math.min(this.min, other.min);
    this.max = Math.max(this.max, other.max);
    for (let bin = 0; bin < BINS; bin++) {
      this.#counts[bin]! += other.#counts[bin]!;
      this.#rests[bin]! += other.#rests[bin]!;
    }
  }

  /** Returns the sketch as an object that JSON can hold. */
  toJson(): object {
    const bins = Uint32Array.from(this.#counts.keys()).filter((bin) => this.#counts[bin]! > 0);
    const of = (values: Float64Array) => encodeNumbers(Float64Array.from(bins, (bin) => values[bin]!));
    return {
      nonFinite: this.nonFinite,
      range: encodeNumbers(Float64Array.of(this.min, this.max)),
      bins: encodeNumbers(bins),
      counts: of(this.#counts),
      rests: of(this.#rests),
    };
  }

  /**
   * Returns the sketch that toJson() converted.
   * @throws LossError `ERR_INVALID_INPUT` if a field is not as expected.
   */
  static from(fields: Fields): Sketch {
    const sketch = new Sketch();
    sketch.nonFinite = fields.count('nonFinite');
    const counts = fields.float64('counts');
    const bins = fields.uint32('bins', counts.length);
    const rests = fields.float64('rests', counts.length);
    for (const [i, bin] of bins.entries()) {
      const [count, rest] = [counts[i]!, rests[i]!];
      const isBin = bin < BINS && (bin & EXPONENT) !== EXPONENT && sketch.#counts[bin] === 0;
      if (!isBin) throw fields.error('bins', 'different bins of finite numbers', String(bin));
      if (!Number.isSafeInteger(count) || count < 1)
        throw fields.error('counts', 'whole numbers of at least 1', String(count));
      if (!Number.isSafeInteger(rest) || rest < 0 || rest > REST * count)
        throw fields.error('rests', `whole numbers from 0 to ${REST} per value`, String(rest));
      sketch.count += count;
      sketch.#counts[bin] = count;
      sketch.#rests[bin] = rest;
    }
    const [min, max] = fields.float64('range', 2) as unknown as [number, number];
    if (sketch.count > 0 && !(Number.isFinite(min) && min <= max && Number.isFinite(max)))
      throw fields.error('range', 'the least and the largest value', `${min} and ${max}`);
    if (sketch.count > 0) [sketch.min, sketch.max] = [min, max];
    return sketch;
  }

  /** The number of values that are 0. */
  get zeros(): number {
    return this.#counts[0]! + this.#counts[SIGN]!;
  }

  /** The number of values above 0. */
  get positives(): number {
    return this.#counts.subarray(1, EXPONENT).reduce((sum, count) => sum + count, 0);
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
      const extent = to - from;
      // If a bin is much narrower than the new bins, its whole count goes to the new bin that contains its mean.
      if (!(extent > 1e-6)) {
        put(Math.floor((bin.mean - low) / width), bin.count);
        continue;
      }
      for (let i = Math.floor(from); i < to; i++)
        put(i, (bin.count * (Math.min(i + 1, to) - Math.max(i, from))) / extent);
    }
    return { low, width, counts };
  }

  /** Returns whether both distributions have the same count and the same mean in every bin. */
  equals(other: Sketch): boolean {
    return (
      this.nonFinite === other.nonFinite &&
      this.#counts.every((count, bin) => count === other.#counts[bin]) &&
      this.#rests.every((rest, bin) => rest === other.#rests[bin])
    );
  }

  /** Yields the bins that are not empty, in ascending order of their values. */
  *#bins(): Generator<{ low: number; high: number; mean: number; count: number }> {
    const of = (bin: number) => {
      const count = this.#counts[bin]!;
      const size = bin & ~SIGN;
      const [near, far] = [edge(size), edge(size + 1)];
      const mean = near + (this.#rests[bin]! / count) * ((far - near) / (REST + 1));
      return size === bin
        ? { low: near, high: far, mean, count }
        : { low: -far, high: -near, mean: -mean, count };
    };
    for (let bin = EXPONENT - 1; bin > 0; bin--) if (this.#counts[SIGN | bin]! > 0) yield of(SIGN | bin);
    if (this.zeros > 0) yield { low: 0, high: 0, mean: 0, count: this.zeros };
    for (let bin = 1; bin < EXPONENT; bin++) if (this.#counts[bin]! > 0) yield of(bin);
  }
}

const BINS = 2 ** 16;
const SIGN = 0x8000;
const EXPONENT = 0x7f80;
const REST = 0xffff;

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
  const extent = high - low > least ? high - low : 0;
  // If all values are equal, the bins cover a range around this value that suits its magnitude.
  const width = roundUp((extent || Math.abs(low) || 1) / (extent ? most : 10));
  const first = Math.floor(low / width + shift) - (extent ? 0 : 10);
  const last = Math.floor(high / width + shift) + (extent ? 0 : 10);
  return { low: (first - shift) * width, width, bins: last - first + 1 };
}

function roundUp(x: number): number {
  const magnitude = 10 ** Math.floor(Math.log10(x));
  const step = ROUND_STEPS.find((step) => step * magnitude >= x * (1 - 1e-9)) ?? 10;
  return step * magnitude;
}

const ROUND_STEPS = [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8];
