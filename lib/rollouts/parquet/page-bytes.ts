// The bytes of a page, which are read in order. A short page is in memory as a whole, a long one piece by piece.
import type { Budget } from './budget.js';
import { Malformed } from './malformed.js';

// The least memory for bytes that begin in one piece and end in another.
const JOINED = 2 ** 18;

/** A known number of bytes. */
export class PageBytes {
  /** The number of bytes that were not read yet. */
  left: number;
  /** The next bytes. */
  #next: Uint8Array = NONE;
  /** The part of the current piece that follows #next. */
  #rest: Uint8Array = NONE;
  #joined: Uint8Array = NONE;
  readonly #pieces: Iterator<Uint8Array, void> | undefined;
  readonly #budget: Budget | undefined;
  #held = 0;
  /** The number of bytes that are still to come in later pieces. */
  #missing = 0;

  private constructor(size: number, pieces?: Iterator<Uint8Array, void>, budget?: Budget) {
    this.left = size;
    this.#pieces = pieces;
    this.#budget = budget;
  }

  /** Returns bytes that are in memory. */
  static whole(bytes: Uint8Array): PageBytes {
    const whole = new PageBytes(bytes.length);
    whole.#next = bytes;
    return whole;
  }

  /**
   * Returns bytes that come in pieces.
   * @param pieces none of them is empty, and each is valid until the next one is asked for.
   */
  static inPieces(size: number, pieces: Iterator<Uint8Array, void>, budget: Budget): PageBytes {
    const bytes = new PageBytes(size, pieces, budget);
    bytes.#missing = size;
    return bytes;
  }

  /** Whether all bytes are in memory. */
  get isWhole(): boolean {
    return this.#pieces === undefined;
  }

  /** Returns the next bytes, at least `least` of them, or all that are left. They are valid until more are asked for. */
  peek(least: number): Uint8Array {
    const wanted = Math.min(least, this.left);
    if (this.#next.length < wanted) this.#join(wanted);
    return this.#next;
  }

  /** Reads bytes that peek() returned. */
  skip(count: number): void {
    this.#next = this.#next.subarray(count);
    this.left -= count;
  }

  /** Reads bytes, which stay valid. */
  keep(count: number): Uint8Array {
    if (count > this.left) throw wrongSize(`${count} more bytes`, `${this.left}`);
    if (this.isWhole) {
      const bytes = this.#next.subarray(0, count);
      this.skip(count);
      return bytes;
    }
    const kept = this.#allocate(count);
    for (let at = 0; at < count; ) {
      const part = this.peek(1).subarray(0, count - at);
      kept.set(part, at);
      at += part.length;
      this.skip(part.length);
    }
    return kept;
  }

  /** Reads the rest of the bytes in pieces. */
  *pieces(): Generator<Uint8Array, void> {
    while (this.left > 0) {
      const piece = this.peek(1);
      yield piece;
      this.skip(piece.length);
    }
  }

  /** Checks that the rest of the bytes can be read, and that no more follow. The memory is free for other pages then. */
  end(): void {
    if (!this.#pieces) return;
    while (this.left > 0) this.skip(this.peek(1).length);
    if (!this.#pieces.next().done) throw wrongSize('no more bytes', 'some');
    this.#budget?.release(this.#held);
  }

  /** Joins #next and the bytes that follow it. */
  #join(wanted: number): void {
    const begun = this.#next;
    if (begun.length === 0) {
      if (this.#rest.length === 0) this.#rest = this.#piece();
      if (this.#rest.length >= wanted) {
        this.#next = this.#rest;
        this.#rest = NONE;
        return;
      }
    }
    const joined = wanted > this.#joined.length ? this.#allocate(Math.max(wanted, JOINED)) : this.#joined;
    joined.set(begun);
    let end = begun.length;
    while (end < wanted) {
      if (this.#rest.length === 0) this.#rest = this.#piece();
      const part = this.#rest.subarray(0, joined.length - end);
      joined.set(part, end);
      end += part.length;
      this.#rest = this.#rest.subarray(part.length);
    }
    this.#joined = joined;
    this.#next = joined.subarray(0, end);
  }

  #piece(): Uint8Array {
    const { value } = this.#pieces!.next();
    const length = value?.length ?? 0;
    if (!value || length > this.#missing) throw wrongSize(`${this.#missing} more bytes`, `${length}`);
    this.#missing -= length;
    return value;
  }

  #allocate(size: number): Uint8Array {
    this.#budget?.take(size);
    this.#held += size;
    return new Uint8Array(size);
  }
}

const NONE = new Uint8Array();

function wrongSize(expected: string, received: string): Malformed {
  return new Malformed({ expected: `a page with ${expected}, as its header states`, received });
}
