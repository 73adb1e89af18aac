// Moves through the bytes of a pickle, of which a chunk is in memory. No argument of an opcode is read before the file is
// known to have its bytes.
import type { Bytes } from '../bytes.js';
import { badFile } from '../source.js';
import { PLAIN_SIZES } from './values.js';

const CHUNK_BYTES = 1 << 18;
const NEWLINE = 0x0a;
/** The largest number of bytes in the name of a module or a class. */
export const MAX_NAME = 256;

export class Cursor {
  readonly bytes: Bytes;
  /** The place of the current opcode in the bytes. */
  opcodeAt = 0;
  /** The chunk, for numbers at the places that {@link take} returns. */
  view: DataView = new DataView(new ArrayBuffer(0));
  #chunk: Buffer = Buffer.alloc(0);
  // The place of the chunk in the bytes, and of the next byte in the chunk.
  #base: number;
  #at = 0;

  constructor(bytes: Bytes, start: number) {
    this.bytes = bytes;
    this.#base = start;
  }

  /** The place of the next byte in the bytes. */
  get position(): number {
    return this.#base + this.#at;
  }

  /** The place of the current opcode in the file. */
  get place(): number {
    return this.bytes.start + this.opcodeAt;
  }

  get isAtEndOfChunk(): boolean {
    return this.#at === this.#chunk.length;
  }

  /** Reads the next opcode. */
  opcode(): number {
    this.opcodeAt = this.position;
    return this.byte();
  }

  byte(): number {
    const at = this.take(1);
    return this.#chunk[at]!;
  }

  uint32(): number {
    const at = this.take(4);
    return this.view.getUint32(at, true);
  }

  /** Reads the length of an argument, and checks that the file has as many bytes. */
  length(size: 1 | 4 | 8): number {
    const at = this.take(size);
    const length = size === 8 ? Number(this.view.getBigUint64(at, true)) : this.#chunk.readUIntLE(at, size);
    const left = this.bytes.size - this.position;
    if (length > left) throw this.error(`at most the ${left} bytes that are left`, String(length));
    return length;
  }

  /** Reads a few bytes. They are valid until the next call. */
  read(size: number): Buffer {
    const at = this.take(size);
    return this.#chunk.subarray(at, at + size);
  }

  /**
   * Counts the opcodes of plain values that come next, as far as the chunk has them.
   * @returns their number and size in bytes, and the opcode that follows them; undefined if the chunk ends before it.
   */
  plainAhead(): { count: number; size: number; next: number | undefined } {
    const chunk = this.#chunk;
    let count = 0;
    let at = this.#at;
    while (at < chunk.length && PLAIN_SIZES[chunk[at]!]! >= 0) {
      at += 1 + PLAIN_SIZES[chunk[at]!]!;
      count++;
    }
    return { count, size: at - this.#at, next: chunk[at] };
  }

  /** Skips bytes, which stay in the file. */
  skip(size: number): Bytes {
    const from = this.position;
    const skipped = this.bytes.slice(from, size);
    if (size <= this.#chunk.length - this.#at) this.#at += size;
    else {
      this.#base = from + size;
      this.#at = 0;
      this.#setChunk(new Uint8Array(0));
    }
    return skipped;
  }

  /** Reads a line, without its end. */
  line(): string {
    let size = 0;
    for (;;) {
      if (this.#chunk.length - this.#at <= size) this.#load(size + 1);
      if (this.#chunk[this.#at + size] === NEWLINE) break;
      if (++size > MAX_NAME) throw this.error(`a name of at most ${MAX_NAME} characters`, 'more');
    }
    return this.read(size + 1)
      .subarray(0, size)
      .toString();
  }

  /** Moves behind the next bytes, and returns their place in {@link view}. */
  take(size: number): number {
    if (this.#chunk.length - this.#at < size) this.#load(size);
    const at = this.#at;
    this.#at += size;
    return at;
  }

  /** Returns an error about the current opcode. */
  error(expected: string, received: string) {
    return badFile(this.bytes.file, { expected, received: `${received}, at byte ${this.place}` });
  }

  /** Loads a chunk that begins with the next byte and has at least `size` bytes. */
  #load(size: number): void {
    this.#base = this.position;
    this.#at = 0;
    const left = this.bytes.size - this.#base;
    if (left < size) throw this.error('more bytes', 'the end of the pickle');
    this.#setChunk(this.bytes.read(this.#base, Math.min(left, CHUNK_BYTES)));
  }

  #setChunk(bytes: Uint8Array): void {
    this.#chunk = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length);
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  }
}
