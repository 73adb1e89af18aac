// Reads the encodings of integers that hyparquet must not read unchecked. It writes as many values as a run claims to have,
// which can end the process, and does not end at all with some sizes of blocks.
import { Malformed } from './malformed.js';
import { signed, varintAt } from './thrift.js';

/** Levels, indices or Booleans: runs of equal values, and of values that are packed. */
export class Runs {
  readonly #bytes: Uint8Array;
  readonly #width: number;
  /** The largest valid value. */
  readonly #max: number;
  /** The place of the next run. */
  #at = 0;
  /** The number of values that are left in the current run. */
  #left = 0;
  /** The value of a run of equal ones, and otherwise the bit at which the next packed value begins. */
  #value = 0;
  #bit: number | undefined;

  /** @param width the number of bits of a value, from 0 to 32. With 0, all values are 0. */
  constructor(bytes: Uint8Array, width: number, max: number) {
    this.#bytes = bytes;
    this.#width = width;
    this.#max = max;
    if (width === 0) this.#left = Number.POSITIVE_INFINITY;
  }

  /** Returns Booleans that are packed, without runs. */
  static ofBits(bytes: Uint8Array): Runs {
    const runs = new Runs(bytes, 1, 1);
    runs.#left = 8 * bytes.length;
    runs.#bit = 0;
    runs.#at = bytes.length;
    return runs;
  }

  /** Reads as many values as the array has elements. */
  read<A extends Uint8Array | Uint32Array>(values: A): A {
    const width = this.#width;
    for (let i = 0; i < values.length; ) {
      if (this.#left === 0) this.#begin();
      const end = Math.min(values.length, i + this.#left);
      this.#left -= end - i;
      if (this.#bit === undefined) {
        if (i < end) values.fill(this.#checked(this.#value), i, end);
        i = end;
      } else
        for (; i < end; this.#bit += width)
          values[i++] = this.#checked(bitsAt(this.#bytes, this.#bit, width));
    }
    return values;
  }

  /** Begins the next run, which may be empty. */
  #begin(): void {
    const head = varintAt(this.#bytes, this.#at);
    if (!head) throw ended();
    const { value, end: at } = head;
    const count = Math.floor(value / 2);
    if (value % 2 === 1) {
      this.#left = 8 * count;
      this.#bit = 8 * at;
      this.#at = at + this.#width * count;
    } else {
      this.#left = count;
      this.#bit = undefined;
      this.#value = bitsAt(this.#bytes, 8 * at, this.#width);
      this.#at = at + Math.ceil(this.#width / 8);
    }
  }

  #checked(value: number): number {
    if (value > this.#max) throw new Malformed(`a level or an index of at most ${this.#max}`, `${value}`);
    return value;
  }
}

const MAX_BLOCK = 2 ** 16;

/**
 * Walks through integers that are stored as differences.
 * @returns the place after them, and the sum of the positive ones as 32-bit integers.
 */
export function walkDeltas(bytes: Uint8Array, start: number, count: number): { end: number; sum: number } {
  let at = start;
  const next = () => {
    const read = varintAt(bytes, at);
    if (!read) throw ended();
    at = read.end;
    return read.value;
  };
  const [block, miniblocks, values] = [next(), next(), next()] as const;
  const size = block / miniblocks;
  if (!(block > 0 && block <= MAX_BLOCK && size % 32 === 0) || values !== count)
    throw new Malformed(
      `${count} differences in blocks of whole parts`,
      `${values} in blocks of ${block} in ${miniblocks} parts`,
    );
  let value = signed(next());
  let sum = Math.max(0, value);
  for (let left = count - 1; left > 0; ) {
    const least = signed(next());
    const widths = bytes.subarray(at, at + miniblocks);
    at += miniblocks;
    for (let miniblock = 0; miniblock < miniblocks && left > 0; miniblock++) {
      const width = widths[miniblock] ?? 0;
      for (let i = 0; i < size && left > 0; i++, left--) {
        value = (value + least + bitsAt(bytes, 8 * at + i * width, width)) | 0;
        sum += Math.max(0, value);
      }
      at += (size * width) / 8;
    }
  }
  return { end: at, sum };
}

/** Returns the number whose `width` bits begin at a bit. */
function bitsAt(bytes: Uint8Array, bit: number, width: number): number {
  let value = 0;
  let at = Math.floor(bit / 8);
  let shift = bit % 8;
  for (let taken = 0; taken < width; shift = 0) {
    const byte = bytes[at++];
    if (byte === undefined) throw ended();
    const count = Math.min(8 - shift, width - taken);
    value += ((byte >> shift) & ((1 << count) - 1)) * 2 ** taken;
    taken += count;
  }
  return value;
}

function ended(): Malformed {
  return new Malformed('as many levels and indices as values', 'fewer');
}
