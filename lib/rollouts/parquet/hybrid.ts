// Reads Parquet's hybrid of run-length encoding and bit packing, which holds levels and dictionary indices. It decodes
// values when they are asked for. So a run of any length takes no memory.
import { Malformed } from './malformed.js';
import type { PageBytes } from './page-bytes.js';

/** Reads a sequence of small integers. */
export class HybridReader {
  #bytes: Uint8Array;
  readonly #source: PageBytes | undefined;
  readonly #width: number;
  /** The largest valid value. */
  readonly #max: number;
  #byte = 0;
  // The current run: how many of its values are left, the first of these values, and whether the run is packed.
  #run = 0;
  #value = 0;
  #packed = false;
  /** The bit in the current byte at which the next packed value begins. */
  #bit = 0;

  /**
   * @param bytes the encoded values, or their source.
   * @param width the number of bits of a value, from 0 to 32. With 0, all values are 0.
   */
  constructor(bytes: Uint8Array | PageBytes, width: number, max: number) {
    this.#source = bytes instanceof Uint8Array ? undefined : bytes;
    this.#bytes = bytes instanceof Uint8Array ? bytes : bytes.peek(0);
    this.#width = width;
    this.#max = max;
    if (width === 0) this.#run = Number.POSITIVE_INFINITY;
  }

  /** Returns another reader of the same values, from the beginning. All bytes must be in memory. */
  restart(): HybridReader {
    return new HybridReader(this.#bytes, this.#width, this.#max);
  }

  /** Returns the next value, which remains the next one. */
  peek(): number {
    while (this.#run === 0) this.#begin();
    return this.#value;
  }

  next(): number {
    const value = this.peek();
    this.#run--;
    if (this.#packed && this.#run > 0) this.#value = this.#unpack();
    return value;
  }

  /** Skips values as long as they equal `value`, but at most `max` values. Returns the number of skipped values. */
  take(value: number, max: number): number {
    let taken = 0;
    while (taken < max && this.peek() === value)
      if (this.#packed) {
        this.next();
        taken++;
      } else {
        const count = Math.min(this.#run, max - taken);
        this.#run -= count;
        taken += count;
      }
    return taken;
  }

  skip(count: number): void {
    for (let left = count; left > 0; ) left -= this.take(this.peek(), left);
  }

  /** Looks up the next values in a table and writes what it finds to an array. */
  lookUp(table: ArrayLike<number>, target: { [index: number]: number }, from: number, count: number): void {
    const end = from + count;
    for (let i = from; i < end; ) {
      const value = table[this.peek()]!;
      if (this.#packed) {
        target[i++] = value;
        this.next();
      } else {
        const next = Math.min(end, i + this.#run);
        this.#run -= next - i;
        while (i < next) target[i++] = value;
      }
    }
  }

  /** Begins the next run, which may be empty. */
  #begin(): void {
    const head = this.#varint();
    const count = Math.floor(head / 2);
    this.#packed = head % 2 === 1;
    this.#bit = 0;
    if (!this.#packed) {
      let value = 0;
      for (let i = 0; i < this.#width; i += 8) value += this.#next() * 2 ** i;
      this.#value = this.#checked(value);
      this.#run = count;
    } else if (count > 0) {
      // The last run is as long as a whole number of bytes, so it may have more values than the sequence.
      this.#value = this.#unpack();
      this.#run = 8 * count;
    }
  }

  #unpack(): number {
    const end = this.#bit + this.#width;
    if (this.#byte + Math.ceil(end / 8) > this.#bytes.length) this.#readOn(Math.ceil(end / 8));
    const bytes = this.#bytes;
    const at = this.#byte;
    let value: number;
    if (end <= 32) {
      const word = bytes[at]! | (bytes[at + 1]! << 8) | (bytes[at + 2]! << 16) | (bytes[at + 3]! << 24);
      value = this.#width === 32 ? word >>> 0 : (word >>> this.#bit) & ((1 << this.#width) - 1);
    } else {
      let word = 0;
      for (let i = 4; i >= 0; i--) word = word * 256 + (bytes[at + i] ?? 0);
      value = Math.floor(word / 2 ** this.#bit) % 2 ** this.#width;
    }
    this.#byte = at + (end >> 3);
    this.#bit = end & 7;
    return this.#checked(value);
  }

  #checked(value: number): number {
    if (value > this.#max)
      throw new Malformed({ expected: `a level or an index of at most ${this.#max}`, received: `${value}` });
    return value;
  }

  #varint(): number {
    let value = 0;
    for (let shift = 0; shift < 35; shift += 7) {
      const byte = this.#next();
      value += (byte & 127) * 2 ** shift;
      if (byte < 128) return value;
    }
    throw new Malformed({ expected: 'a run of at most 32 bits', received: 'a longer one' });
  }

  #next(): number {
    if (this.#byte === this.#bytes.length) this.#readOn(1);
    return this.#bytes[this.#byte++]!;
  }

  /** Makes the next bytes available. */
  #readOn(count: number): void {
    this.#source?.skip(this.#byte);
    this.#bytes = this.#source?.peek(count) ?? NONE;
    this.#byte = 0;
    if (this.#bytes.length < count) throw ended();
  }
}

const NONE = new Uint8Array();

function ended(): Malformed {
  return new Malformed({ expected: 'as many levels and indices as values', received: 'fewer' });
}
