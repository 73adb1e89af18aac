// Decompresses Snappy piece by piece. Writers compress blocks of 64 KB one by one, so copies reach no further back.
import type { PageBytes } from './page-bytes.js';

// How many unpacked bytes remain in memory after they were yielded.
const HISTORY = 2 ** 16;
// The most bytes of a tag, and the most bytes that a copy copies.
const TAG = 5;
const COPY = 64;
// Fewer bytes are copied faster one by one.
const FEW = 32;

/**
 * Yields the unpacked bytes. Each piece is valid until the next one is asked for.
 * @param size the number of unpacked bytes.
 * @param memory the memory for unpacked bytes: the size, or more than 64 KB.
 */
export function* snappyPieces(packed: PageBytes, size: number, memory = size): Generator<Uint8Array, void> {
  if (statedSize(packed) !== size) throw new Error('the size is wrong');
  const out = new Uint8Array(Math.min(size, memory));
  // The bytes of `out` that were yielded, and those that are unpacked.
  let yielded = 0;
  let to = 0;
  // The bytes that are not unpacked yet, and those of them that belong to the current literal.
  let left = size;
  let literal = 0;
  while (left > 0) {
    // The last place at which a copy fits.
    const last = left > out.length - to ? out.length - COPY : out.length;
    if (to > last) {
      yield out.subarray(yielded, to);
      out.copyWithin(0, to - HISTORY, to);
      yielded = HISTORY;
      to = HISTORY;
      continue;
    }
    const bytes = packed.peek(TAG);
    const end = bytes.length;
    // The last place at which a tag is complete.
    const safe = end < packed.left ? end - TAG : end - 1;
    let from = 0;
    do {
      if (literal === 0) {
        const tag = bytes[from]!;
        const kind = tag & 3;
        let length = (tag >> 2) + 1;
        if (kind === 0) {
          const extra = Math.max(0, length - 60);
          if (extra > 0) length = littleEndian(bytes, from + 1, extra) + 1;
          from += 1 + extra;
          if (!(length <= left)) throw new Error('a literal is too long');
          literal = length;
        } else {
          let distance: number;
          if (kind === 1) {
            length = ((tag >> 2) & 7) + 4;
            distance = (tag >> 5) * 256 + bytes[from + 1]!;
          } else if (kind === 2) distance = bytes[from + 1]! + 256 * bytes[from + 2]!;
          else distance = littleEndian(bytes, from + 1, 4);
          from += kind === 3 ? 5 : kind + 1;
          if (!(distance > 0 && distance <= to && length <= left)) throw new Error('a copy is out of range');
          left -= length;
          for (const until = to + length; to < until; to++) out[to] = out[to - distance]!;
        }
      }
      if (literal > 0) {
        const count = Math.min(literal, end - from, out.length - to);
        if (count < FEW) for (let i = 0; i < count; i++) out[to + i] = bytes[from + i]!;
        else out.set(bytes.subarray(from, from + count), to);
        from += count;
        to += count;
        left -= count;
        literal -= count;
      }
    } while (literal === 0 && left > 0 && from <= safe && to <= last);
    if (from === 0 || (left > 0 && from === packed.left)) throw new Error('it ends early');
    packed.skip(from);
  }
  if (packed.left > 0) throw new Error('it is too long');
  yield out.subarray(yielded, to);
}

/** Reads the unpacked size. */
function statedSize(packed: PageBytes): number {
  const bytes = packed.peek(TAG);
  let size = 0;
  for (let i = 0; i < TAG; i++) {
    size += (bytes[i]! & 127) * 2 ** (7 * i);
    if (bytes[i]! < 128) {
      packed.skip(i + 1);
      return size;
    }
  }
  throw new Error('the size is wrong');
}

function littleEndian(bytes: Uint8Array, at: number, count: number): number {
  let value = 0;
  for (let i = count - 1; i >= 0; i--) value = value * 256 + bytes[at + i]!;
  return value;
}
