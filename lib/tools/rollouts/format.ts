// Chooses the function that reads a file: by how the file begins, and for text by the ending of its name.
import { open } from 'node:fs/promises';
import { isBlank, OPEN_BRACE } from './ascii.js';
import { readCsv } from './csv.js';
import { type Format, formatOf, splitTable, unknownFormat } from './file-name.js';
import { readJsonLines } from './json-lines.js';
import { readParquet } from './parquet.js';
import { isPickle } from './pickle/machine.js';
import { copyOf } from './remote/copy.js';
import { bytesOf, remoteFile } from './remote/index.js';
import { type ReadRows, STDIN } from './source.js';
import { readSqlite } from './sqlite.js';
import { openNpz } from './tensor/npz.js';
import { readTensors } from './tensor/rows.js';
import { openSafetensors } from './tensor/safetensors.js';
import { isZip } from './torch/archive.js';
import { readPickled, readTrinityFrame } from './trainers/index.js';
import { isFrame } from './trainers/trinity.js';

interface FileFormat extends Format {
  read: ReadRows;
  /** Whether a file begins like those of this format. Formats of text are recognised by the names of files only. */
  begins?: (head: Buffer) => boolean;
}

const beginsWith = (text: string) => (head: Buffer) => head.toString('latin1', 0, text.length) === text;

const FORMATS: readonly FileFormat[] = [
  { endings: ['.jsonl', '.ndjson', '.json', '.jsonl.gz', '.ndjson.gz', '.json.gz'], read: readJsonLines },
  { endings: ['.csv', '.tsv', '.csv.gz', '.tsv.gz'], read: readCsv },
  { endings: ['.parquet'], read: readParquet, begins: beginsWith('PAR1') },
  {
    endings: ['.sqlite', '.sqlite3', '.db'],
    read: readSqlite,
    begins: beginsWith('SQLite format 3\0'),
  },
  { endings: ['.safetensors'], read: readTensors(openSafetensors), begins: isSafetensors },
  { endings: ['.npz'], read: readTensors(openNpz), begins: (head) => firstEntry(head).endsWith('.npy') },
  {
    endings: ['.pt', '.pth', '.pkl'],
    read: readPickled,
    begins: (head) => isPickle(head) || firstEntry(head).endsWith('/data.pkl'),
  },
  { endings: ['.trxp'], read: readTrinityFrame, begins: isFrame },
];

/**
 * Returns the function that reads a file. A file that no format recognises is read as its name's ending says; one
 * without an ending, such as a pipe, is read as JSON lines.
 * @throws LossError `ERR_INVALID_INPUT` for an unknown ending.
 */
export async function readerOf(name: string): Promise<ReadRows> {
  const { file } = splitTable(name);
  const head = file === STDIN ? undefined : await beginningOf(file);
  const format = (head && FORMATS.find(({ begins }) => begins?.(head))) ?? formatOf(FORMATS, file);
  if (format) return format.read;
  if (!/\.[^/\\.]+$/.test(file) || (head && beginsObject(head))) return readJsonLines;
  throw unknownFormat('ERR_INVALID_INPUT', name, FORMATS);
}

const HEAD_BYTES = 256;

/**
 * Reads the rows of a file in any format. A binary file on a server is copied first, because its reader needs random
 * access.
 */
export const readAnyFormat: ReadRows = async function* (name, names, onBytes, settings) {
  const read = await readerOf(name);
  const isStreamed = read === readJsonLines || read === readCsv;
  const copy = isStreamed ? undefined : await copyOf(splitTable(name).file, settings.range);
  try {
    yield* read(name, names, onBytes, { ...settings, copy: copy?.path });
  } finally {
    await copy?.remove();
  }
};

/** Returns the first bytes of a file; undefined for a pipe, whose bytes can be read only once, or if they are unreadable. */
async function beginningOf(file: string): Promise<Buffer | undefined> {
  const remote = remoteFile(file);
  if (remote) return bytesOf(remote, 0, HEAD_BYTES);
  try {
    const handle = await open(file, 'r');
    try {
      if (!(await handle.stat()).isFile()) return undefined;
      const { buffer, bytesRead } = await handle.read(Buffer.alloc(HEAD_BYTES), 0, HEAD_BYTES, 0);
      return buffer.subarray(0, bytesRead);
    } finally {
      await handle.close();
    }
  } catch {
    // The reader will report the reason.
    return undefined;
  }
}

/** Whether a file begins with the length of a header, less than 2 ** 32, and the header's brace. */
function isSafetensors(head: Buffer): boolean {
  return head.length > 8 && head.readUInt32LE(4) === 0 && head[8] === OPEN_BRACE && !isBlank(head[0]);
}

/** Returns the name of the first entry of a zip archive; '' for another file. */
function firstEntry(head: Buffer): string {
  if (!isZip(head) || head.length < 30) return '';
  return head.toString('utf8', 30, 30 + head.readUInt16LE(26));
}

function beginsObject(head: Buffer): boolean {
  let at = 0;
  while (isBlank(head[at])) at++;
  return head[at] === OPEN_BRACE;
}
