// Reads NumPy's .npz format: a zip archive with one .npy file per array, compressed (deflated) or not. The bytes of an
// array that is not compressed are read in place. Each other array is read through its own stream, so that several arrays
// can be read at the same time.
import { type FileHandle, open } from 'node:fs/promises';
import type { Readable } from 'node:stream';
import { promisify } from 'node:util';
import yauzl from 'yauzl';
import { badFile } from '../source.js';
import { notContiguous, readArray } from './npy.js';
import { rangeReader } from './range.js';
import type { ByteReader, TensorFile } from './tensor.js';

/**
 * Opens an .npz archive.
 * @param path where its bytes are.
 * @throws if the file is not a zip archive, or if it has too many entries.
 */
export async function openNpz(file: string, path = file): Promise<TensorFile> {
  const archive = await promisify<string, yauzl.Options, yauzl.ZipFile>(yauzl.open)(path, {
    lazyEntries: true,
    autoClose: false,
  });
  let handle: FileHandle | undefined;
  const close = async () => {
    archive.close();
    await handle?.close();
  };
  try {
    const entries = await entriesOf(file, archive);
    const stored = await open(path, 'r');
    handle = stored;
    let transposed = 0;
    const onTranspose = (name: string, bytes: number) => {
      transposed += bytes;
      if (transposed > MAX_ALL_TRANSPOSED) throw notContiguous(file, name);
    };
    return {
      names: [...entries.keys()],
      tensor(name) {
        const entry = entries.get(name)!;
        const open = () => openEntry(file, name, archive, stored, entry);
        return readArray({ file, name, size: entry.uncompressedSize, open, onTranspose });
      },
      close,
    };
  } catch (error) {
    await close();
    throw error;
  }
}

// Limit the memory that the list of entries can take if the archive is malicious. A batch has far fewer arrays.
const MAX_ENTRIES = 10_000;
const MAX_ENTRY_BYTES = 1 << 25;
// The maximum size, in bytes, of all arrays in Fortran order that are read, because each is in memory as a whole.
const MAX_ALL_TRANSPOSED = 1 << 28;

async function entriesOf(file: string, archive: yauzl.ZipFile): Promise<Map<string, yauzl.Entry>> {
  if (archive.entryCount > MAX_ENTRIES)
    throw badFile(file, { expected: `at most ${MAX_ENTRIES} arrays`, received: String(archive.entryCount) });
  const entries = new Map<string, yauzl.Entry>();
  let bytes = 0;
  await new Promise<void>((resolve, reject) => {
    archive.on('error', reject);
    archive.on('end', resolve);
    archive.on('entry', (entry: yauzl.Entry) => {
      bytes += entry.fileNameLength + entry.extraFieldLength + entry.fileCommentLength;
      if (bytes > MAX_ENTRY_BYTES) {
        const expected = `at most ${MAX_ENTRY_BYTES} bytes of names and comments`;
        return reject(badFile(file, { expected, received: 'more' }));
      }
      if (entry.fileName.endsWith('.npy')) entries.set(entry.fileName.slice(0, -'.npy'.length), entry);
      archive.readEntry();
    });
    archive.readEntry();
  });
  return entries;
}

const STORED = 0;

async function openEntry(
  file: string,
  name: string,
  archive: yauzl.ZipFile,
  handle: FileHandle,
  entry: yauzl.Entry,
): Promise<ByteReader> {
  if (entry.compressionMethod !== STORED || entry.isEncrypted()) {
    const openStream = promisify<yauzl.Entry, Readable>(archive.openReadStream.bind(archive));
    return new StreamReader(file, name, await openStream(entry));
  }
  const { fileDataStart } = await archive.readLocalFileHeaderPromise(entry, { minimal: true });
  return rangeReader(file, handle, fileDataStart, fileDataStart + entry.uncompressedSize);
}

/** Reads the bytes of one array from a stream. */
class StreamReader implements ByteReader {
  readonly #file: string;
  readonly #name: string;
  readonly #stream: Readable;
  readonly #chunks: AsyncIterator<Buffer>;
  #rest: Buffer = Buffer.alloc(0);

  constructor(file: string, name: string, stream: Readable) {
    this.#file = file;
    this.#name = name;
    this.#stream = stream;
    // Without a listener, an error between two reads would crash the process. The next read throws this error.
    stream.on('error', () => {});
    this.#chunks = stream[Symbol.asyncIterator]() as AsyncIterator<Buffer>;
  }

  async read(bytes: number): Promise<Uint8Array> {
    const chunks = [this.#rest];
    let length = this.#rest.length;
    while (length < bytes) {
      const { value, done } = await this.#chunks.next();
      if (done)
        throw badFile(this.#file, {
          key: this.#name,
          expected: `${bytes - length} more bytes`,
          received: 'the end of the array',
        });
      chunks.push(value);
      length += value.length;
    }
    const last = chunks.pop()!;
    this.#rest = last.subarray(last.length - (length - bytes));
    chunks.push(last.subarray(0, last.length - (length - bytes)));
    // Copies the chunks itself, because the memory that Buffer.concat returns may not be aligned for typed arrays.
    const result = new Uint8Array(bytes);
    let offset = 0;
    for (const chunk of chunks) {
      result.set(chunk, offset);
      offset += chunk.length;
    }
    return result;
  }

  async close(): Promise<void> {
    this.#stream.destroy();
  }
}
