// Decompresses Zstandard on a Node without it. The library would allocate what frames state, so their headers are
// checked first.
import { Decompress } from 'fzstd';
import { decompressZstd } from 'hyparquet-compressors';
import { PageBytes } from './page-bytes.js';

const MAGIC = 0xfd2fb528;
const MAX_HEADER = 18;
const BLOCK_HEADER = 3;
const MAX_BLOCK = 2 ** 17;
// The decoder moves its window for each block.
const MAX_WINDOW = 2 ** 22;
const MAX_MOVED = 256;
const SOME_BLOCKS = 100;

/** Decompresses a page. */
export function unpackZstd(bytes: Uint8Array, size: number): Uint8Array {
  readHeader(PageBytes.whole(bytes), size);
  return decompressZstd(bytes, new Uint8Array(size));
}

/**
 * Decompresses a page piece by piece.
 * @returns undefined if it refers back to more bytes than should be in memory.
 */
export function zstdPieces(packed: PageBytes, size: number): Generator<Uint8Array, void> | undefined {
  const { length, window } = readHeader(packed, size);
  return window > MAX_WINDOW
    ? undefined
    : piecesOf(packed, length, SOME_BLOCKS + (MAX_MOVED * size) / window);
}

function* piecesOf(packed: PageBytes, header: number, maxBlocks: number): Generator<Uint8Array, void> {
  let pieces: Uint8Array[] = [];
  const decoder = new Decompress((piece) => pieces.push(piece));
  // The decoder keeps the header until it gets the first block.
  decoder.push(new Uint8Array(packed.peek(header).subarray(0, header)));
  packed.skip(header);
  let blocks = 0;
  for (let isLast = false; !isLast; ) {
    if (++blocks > maxBlocks) throw new Error('the blocks are too short');
    const [a, b, c] = packed.peek(BLOCK_HEADER) as unknown as [number, number, number];
    const head = a + 256 * b + 65536 * c;
    isLast = (head & 1) === 1;
    const isRun = ((head >> 1) & 3) === 1;
    const length = isRun ? 1 : head >> 3;
    if (!(length <= MAX_BLOCK && BLOCK_HEADER + length <= packed.left))
      throw new Error('a block is too long');
    decoder.push(packed.peek(BLOCK_HEADER + length).subarray(0, BLOCK_HEADER + length));
    packed.skip(BLOCK_HEADER + length);
    yield* pieces;
    pieces = [];
  }
}

/** Reads the header of a frame. Returns its length, and how many bytes the frame may refer back to. */
function readHeader(packed: PageBytes, size: number): { length: number; window: number } {
  const { buffer, byteOffset, byteLength } = packed.peek(MAX_HEADER);
  const view = new DataView(buffer, byteOffset, byteLength);
  if (view.getUint32(0, true) !== MAGIC) throw new Error('the signature is wrong');
  const flags = view.getUint8(4);
  const isSingleSegment = (flags & 32) !== 0;
  const at = 5 + (isSingleSegment ? 0 : 1) + [0, 1, 2, 4][flags & 3]!;
  const [stated, bytes] = [
    () => (isSingleSegment ? [view.getUint8(at), 1] : [size, 0]),
    () => [view.getUint16(at, true) + 256, 2],
    () => [view.getUint32(at, true), 4],
    () => [Number(view.getBigUint64(at, true)), 8],
  ][flags >> 6]!() as [number, number];
  if (stated !== size) throw new Error('the size is wrong');
  const length = at + bytes;
  if (isSingleSegment) return { length, window: size };
  const descriptor = view.getUint8(5);
  const base = 2 ** (10 + (descriptor >> 3));
  return { length, window: base + (base / 8) * (descriptor & 7) };
}
