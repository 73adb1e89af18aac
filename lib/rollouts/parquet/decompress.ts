// Decompresses the pages of Parquet files. The header of a page states its unpacked size. No more is unpacked.
import type { Duplex } from 'node:stream';
import * as zlib from 'node:zlib';
import type { CompressionCodec } from 'hyparquet';
import { compressors } from 'hyparquet-compressors';
import { decoding, Malformed } from './malformed.js';
import type { PageBytes } from './page-bytes.js';
import { snappyPieces } from './snappy.js';
import { unpackZstd, zstdPieces } from './zstd.js';

type Decompress = (bytes: Uint8Array, size: number) => Uint8Array;

// Node has Zstandard since 22.15.
const { zstdDecompressSync: zstd, createZstdDecompress: zstdStream } = zlib as {
  zstdDecompressSync?: typeof zlib.gunzipSync;
  createZstdDecompress?: (options: zlib.ZlibOptions) => Duplex;
};

// Node's own decoders are faster and check the size.
const DECODERS: { [codec in CompressionCodec]?: Decompress } = {
  UNCOMPRESSED: (bytes) => bytes,
  SNAPPY: unpackSnappy,
  GZIP: (bytes, size) => zlib.gunzipSync(bytes, { maxOutputLength: Math.max(1, size) }),
  BROTLI: (bytes, size) => zlib.brotliDecompressSync(bytes, { maxOutputLength: Math.max(1, size) }),
  ZSTD: zstd ? (bytes, size) => zstd(bytes, { maxOutputLength: Math.max(1, size) }) : unpackZstd,
  LZ4_RAW: unpackLz4,
};

// Decoders that unpack piece by piece.
const IN_PIECES: {
  [codec in CompressionCodec]?: (packed: PageBytes, size: number) => Iterator<Uint8Array, void> | undefined;
} = {
  UNCOMPRESSED: (packed) => packed.pieces(),
  SNAPPY: (packed, size) => snappyPieces(packed, size, SNAPPY_MEMORY),
  ...(!zstd && { ZSTD: zstdPieces }),
};
const SNAPPY_MEMORY = 2 ** 18;

// Node's streams that unpack.
const STREAMS: { [codec in CompressionCodec]?: () => Duplex } = {
  GZIP: () => zlib.createGunzip({ chunkSize: STREAM_CHUNK }),
  BROTLI: () => zlib.createBrotliDecompress({ chunkSize: STREAM_CHUNK }),
  ...(zstdStream && { ZSTD: () => zstdStream({ chunkSize: STREAM_CHUNK }) }),
};
const STREAM_CHUNK = 2 ** 16;

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
  const unpacked = size === 0 ? bytes.subarray(0, 0) : decoding(codec, () => DECODERS[codec]!(bytes, size));
  if (unpacked.length !== size)
    throw new Malformed({
      expected: `a page of ${size} bytes, as its header states`,
      received: `${unpacked.length}`,
    });
  return unpacked;
}

/** Returns whether decompressStream() decompresses pages of this compression. */
export function hasStream(codec: CompressionCodec): boolean {
  return STREAMS[codec] !== undefined;
}

/** Returns a stream that decompresses. */
export function decompressStream(codec: CompressionCodec): Duplex {
  return STREAMS[codec]!();
}

/**
 * Decompresses a page piece by piece. Each piece is valid until the next one is asked for.
 * @param size the size of the unpacked page in bytes.
 * @returns undefined if pages of this compression can be decompressed only as a whole.
 */
export function decompressInPieces(
  codec: CompressionCodec,
  packed: PageBytes,
  size: number,
): Generator<Uint8Array, void> | undefined {
  const pieces = decoding(codec, () => IN_PIECES[codec]?.(packed, size));
  return pieces && checkedPieces(codec, packed, pieces);
}

function* checkedPieces(
  codec: CompressionCodec,
  packed: PageBytes,
  pieces: Iterator<Uint8Array, void>,
): Generator<Uint8Array, void> {
  for (;;) {
    const { value, done } = decoding(codec, () => pieces.next());
    if (done) return packed.end();
    // The last block of Zstandard may be empty.
    if (value.length > 0) yield value;
  }
}

// Three bytes of Snappy unpack to 64 at most.
const MAX_SNAPPY_RATIO = 22;

/** Decompresses Snappy. It begins with the unpacked size, which the library does not check. */
function unpackSnappy(bytes: Uint8Array, size: number): Uint8Array {
  let stated = 0;
  for (let i = 0; i < 5; i++) {
    stated += (bytes[i]! & 127) * 2 ** (7 * i);
    if (!(bytes[i]! & 128)) break;
  }
  if (stated !== size || size > MAX_SNAPPY_RATIO * bytes.length) throw new Error('the size is wrong');
  return compressors.SNAPPY!(bytes, size);
}

/** Decompresses a block of LZ4. The library would fill the rest of a page with zeros if the block ended early. */
function unpackLz4(bytes: Uint8Array, size: number): Uint8Array {
  const unpacked = new Uint8Array(size);
  let from = 0;
  let to = 0;
  const lengthOf = (short: number) => {
    let length = short;
    if (short === 15)
      for (let byte = 255; byte === 255; length += byte) {
        if (from >= bytes.length) throw new Error('the block ends early');
        byte = bytes[from++]!;
      }
    return length;
  };
  while (from < bytes.length) {
    const token = bytes[from++]!;
    const literals = lengthOf(token >> 4);
    if (from + literals > bytes.length) throw new Error('the block ends early');
    unpacked.set(bytes.subarray(from, from + literals), to);
    from += literals;
    to += literals;
    if (from === bytes.length) break;
    const distance = bytes[from]! + 256 * (bytes[from + 1] ?? 0);
    from += 2;
    const end = to + lengthOf(token & 15) + MIN_LZ4_MATCH;
    if (distance === 0 || distance > to || end > size) throw new Error('a match is out of range');
    for (; to < end; to++) unpacked[to] = unpacked[to - distance]!;
  }
  if (to !== size) throw new Error('the size is wrong');
  return unpacked;
}

const MIN_LZ4_MATCH = 4;
