// Decompresses pages. The header of a page states its unpacked size: not more is unpacked, and not less.
import * as zlib from 'node:zlib';
import type { CompressionCodec } from 'hyparquet';
import { compressors, decompressZstd } from 'hyparquet-compressors';
import { Malformed } from './malformed.js';

type Decompress = (bytes: Uint8Array, size: number) => Uint8Array;

// Node has Zstandard since 22.15.
const { zstdDecompressSync: zstd } = zlib as { zstdDecompressSync?: typeof zlib.gunzipSync };

const DECODERS: { [codec in CompressionCodec]?: Decompress } = {
  UNCOMPRESSED: (bytes) => bytes,
  SNAPPY: ofStatedSize(snappySize, compressors.SNAPPY!),
  // Node's own decoders are faster and limit the size.
  GZIP: (bytes, size) => zlib.gunzipSync(bytes, inOneChunk(size)),
  BROTLI: (bytes, size) => zlib.brotliDecompressSync(bytes, inOneChunk(size)),
  ZSTD: zstd
    ? (bytes, size) => zstd(bytes, inOneChunk(size))
    : ofStatedSize(zstdSize, (bytes, size) => decompressZstd(bytes, new Uint8Array(size))),
  LZ4_RAW: ofStatedSize(lz4Size, compressors.LZ4_RAW!),
};

/** Returns whether pages of this compression can be read. */
export function isKnownCodec(codec: CompressionCodec): boolean {
  return DECODERS[codec] !== undefined;
}

/**
 * Decompresses a page.
 * @param size the size of the unpacked page in bytes.
 * @throws Malformed if the page does not unpack to this size.
 */
export function decompress(codec: CompressionCodec, bytes: Uint8Array, size: number): Uint8Array {
  let unpacked: Uint8Array;
  try {
    unpacked = size === 0 ? new Uint8Array() : DECODERS[codec]!(bytes, size);
  } catch (error) {
    throw Malformed.because(codec, error);
  }
  if (unpacked.length !== size)
    throw new Malformed(`a page of ${size} bytes, as its header states`, `${unpacked.length}`);
  return unpacked;
}

/** Returns the options for Node's decoders. They would copy the chunks of a page into another buffer. */
function inOneChunk(size: number): zlib.ZlibOptions {
  return { maxOutputLength: size, chunkSize: Math.max(64, size + 1) };
}

/** Makes a decompressor compare sizes. It would fill the rest of a short page with zeros. */
function ofStatedSize(sizeOf: (bytes: Uint8Array, size: number) => number, unpack: Decompress): Decompress {
  return (bytes, size) => {
    if (sizeOf(bytes, size) !== size) throw new Error('the size is wrong');
    return unpack(bytes, size);
  };
}

/** Returns the size with which a page of Snappy begins. */
function snappySize(bytes: Uint8Array): number {
  let size = 0;
  for (let i = 0; i < 5; i++) {
    size += (bytes[i]! & 127) * 2 ** (7 * i);
    if (bytes[i]! < 128) return size;
  }
  return Number.NaN;
}

/** Returns the size in the header of a frame of Zstandard, or the expected size if the header has none. */
function zstdSize(bytes: Uint8Array, expected: number): number {
  const flags = bytes[4]!;
  const isSingleSegment = (flags & 32) !== 0;
  if (flags < 64 && !isSingleSegment) return expected;
  const at = 5 + (isSingleSegment ? 0 : 1) + [0, 1, 2, 4][flags & 3]!;
  let size = 0;
  for (let i = 2 ** (flags >> 6) - 1; i >= 0; i--) size = 256 * size + bytes[at + i]!;
  return size + (flags >> 6 === 1 ? 256 : 0);
}

/** Returns the size to which a block of LZ4 unpacks, or NaN if it ends early. */
function lz4Size(bytes: Uint8Array): number {
  let at = 0;
  let size = 0;
  const lengthOf = (short: number) => {
    let length = short;
    if (short === 15) for (let byte = 255; byte === 255; length += byte) byte = bytes[at++] ?? Number.NaN;
    return length;
  };
  while (at < bytes.length) {
    const token = bytes[at++]!;
    const literals = lengthOf(token >> 4);
    at += literals;
    size += literals;
    if (at === bytes.length) return size;
    // The distance of a match takes two bytes. A match has four bytes more than its length says.
    at += 2;
    size += lengthOf(token & 15) + 4;
  }
  return Number.NaN;
}
