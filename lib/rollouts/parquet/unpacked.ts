// Unpacks long pages to temporary files. Node's own decoders unpack piece by piece only for callers that can wait, and
// rows are read without waiting.
import { closeSync, createWriteStream, openSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pipeline } from 'node:stream/promises';
import type { CompressionCodec } from 'hyparquet';
import { makeTemporaryFolder, removeTemporaryFolder } from '../write/temporary.js';
import { decompressStream } from './decompress.js';
import { type ParquetFile, piecesOf } from './file.js';

// What all unpacked pages together may take on the disk.
const MAX_BYTES = 2 ** 32;

/** The part of a page that may be compressed. */
export interface PackedBytes {
  codec: CompressionCodec;
  start: number;
  /** The sizes in the file and unpacked. */
  packed: number;
  size: number;
}

/** The pages of a file that are unpacked on the disk. */
export class UnpackedPages {
  readonly #file: ParquetFile;
  readonly #sizes = new Map<number, number>();
  readonly #open = new Set<number>();
  #folder: string | undefined;
  #bytes = 0;

  constructor(file: ParquetFile) {
    this.#file = file;
  }

  /**
   * Unpacks a page. If that fails, nothing happens: the page will be unpacked in memory, and what is wrong with it is found
   * there.
   */
  async add({ codec, start, packed, size }: PackedBytes): Promise<void> {
    if (this.#bytes + size > MAX_BYTES) return;
    try {
      this.#folder ??= makeTemporaryFolder(join(tmpdir(), 'policy-loss-parquet-'));
    } catch {
      return;
    }
    const limited = async function* (pieces: AsyncIterable<Uint8Array>) {
      let left = size;
      for await (const piece of pieces) {
        left -= piece.length;
        if (left < 0) throw new Error('the page is too long');
        yield piece;
      }
    };
    this.#sizes.set(start, size);
    this.#bytes += size;
    const pieces = this.#file.pieces(packed, start);
    // A stream of the file would close it after an error.
    const source = function* () {
      for (const piece of pieces) yield Buffer.from(piece);
    };
    try {
      await pipeline(source, decompressStream(codec), limited, createWriteStream(this.#path(start)));
    } catch {
      this.#remove(start, size);
    }
  }

  /** Returns the bytes of a page that add() unpacked, or undefined. They can be read once. */
  pieces(start: number): Generator<Uint8Array, void> | undefined {
    const size = this.#sizes.get(start);
    return size === undefined ? undefined : this.#read(start, size);
  }

  /** Removes all pages. */
  async close(): Promise<void> {
    for (const descriptor of this.#open) closeSync(descriptor);
    if (this.#folder) await removeTemporaryFolder(this.#folder);
  }

  *#read(start: number, size: number): Generator<Uint8Array, void> {
    const descriptor = openSync(this.#path(start), 'r');
    this.#open.add(descriptor);
    yield* piecesOf(descriptor, size, 0);
    this.#open.delete(descriptor);
    closeSync(descriptor);
    this.#remove(start, size);
  }

  #remove(start: number, size: number): void {
    this.#sizes.delete(start);
    this.#bytes -= size;
    rmSync(this.#path(start), { force: true });
  }

  #path(start: number): string {
    return join(this.#folder!, String(start));
  }
}
