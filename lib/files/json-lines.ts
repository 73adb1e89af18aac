// JSON lines, one object a line and a row each, packed by gzip or not. Lines are read and forgotten one by one.
import { constants } from 'node:buffer';
import { createReadStream } from 'node:fs';
import { pipeline } from 'node:stream';
import { createGunzip } from 'node:zlib';
import { describeValue } from '../errors.js';
import { at, cannotRead, type FileRow, type Place, type ReadRows } from './source.js';

/** Reads JSON lines. Empty lines are skipped. */
export const readJsonLines: ReadRows = async function* (file, _names, onBytes) {
  const lines = new Lines(file);
  try {
    for await (const chunk of bytesOf(file, onBytes)) yield lines.in(chunk);
  } catch (error) {
    throw cannotRead(file, error);
  }
  yield lines.last();
};

async function* bytesOf(file: string, onBytes: (bytes: number) => void): AsyncGenerator<Buffer> {
  const source = createReadStream(file, { highWaterMark: CHUNK });
  let told = 0;
  const tell = () => {
    onBytes(source.bytesRead - told);
    told = source.bytesRead;
  };
  // What goes wrong destroys the last stream of a pipeline too, and so comes out of the loop.
  const bytes = file.endsWith('.gz')
    ? pipeline(source, createGunzip({ chunkSize: CHUNK }), () => {})
    : source;
  for await (const chunk of bytes as AsyncIterable<Buffer>) {
    yield chunk;
    tell();
  }
}

const CHUNK = 1 << 18;

/** Splits chunks of a file into its lines. (node:readline would end a line at U+2028 too, which a JSON string may have.) */
class Lines {
  readonly #file: string;
  #line = 0;
  // The beginning of the line at hand, from the chunks before.
  #pieces: Buffer[] = [];
  #length = 0;

  constructor(file: string) {
    this.#file = file;
  }

  /** The rows that end in a chunk. */
  *in(chunk: Buffer): Generator<FileRow> {
    let start = 0;
    for (let end = chunk.indexOf(NEWLINE); end >= 0; end = chunk.indexOf(NEWLINE, start)) {
      this.#push(chunk.subarray(start, end));
      yield* this.last();
      start = end + 1;
    }
    this.#push(chunk.subarray(start));
  }

  /** The row that ends here, if there is one. */
  last(): FileRow[] {
    const place = { file: this.#file, line: ++this.#line };
    const bytes = this.#pieces.length === 1 ? this.#pieces[0]! : Buffer.concat(this.#pieces);
    const text = bytes.toString().trim();
    this.#pieces = [];
    this.#length = 0;
    return text === '' ? [] : [{ place, read: () => parseRow(text, place) }];
  }

  #push(piece: Buffer): void {
    if (piece.length === 0) return;
    this.#length += piece.length;
    if (this.#length > constants.MAX_STRING_LENGTH)
      throw at(
        { file: this.#file, line: this.#line + 1 },
        'ERR_INVALID_INPUT',
        `expected a JSON object in a line of at most ${constants.MAX_STRING_LENGTH} bytes, and it is longer`,
      );
    this.#pieces.push(piece);
  }
}

const NEWLINE = 0x0a;

function parseRow(json: string, place: Place): Record<string, unknown> {
  let row: unknown;
  try {
    row = JSON.parse(json);
  } catch (error) {
    const word = /\b(?:NaN|Infinity)\b/.exec(json.replace(/"(?:[^"\\]|\\.)*"/g, '""'))?.[0];
    const reason = word
      ? `${word} came, which JSON has no way to write (Python's json.dumps writes it all the same). ` +
        'Put a number there; under an action_mask of 0 it is not read'
      : `it does not parse: ${(error as Error).message}${hint(json, place)}`;
    throw at(place, 'ERR_INVALID_INPUT', `expected a JSON object, and ${reason}`, error);
  }
  if (row === null || typeof row !== 'object' || Array.isArray(row))
    throw at(
      place,
      'ERR_INVALID_INPUT',
      `expected a JSON object, not ${describeValue(row)}${hint(json, place)}`,
    );
  return row as Record<string, unknown>;
}

// A file that is one JSON array is the usual reason for a first line with no object.
function hint(json: string, { line }: Place): string {
  return line === 1 && json.startsWith('[')
    ? ". Where the file is one array, `jq -c '.[]'` makes lines of it"
    : '';
}
