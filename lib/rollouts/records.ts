// Files of text, packed by gzip or not, record by record: a record is a line, or in CSV as many lines as its quotes hold
// together. Records are read and forgotten one by one.
import { constants } from 'node:buffer';
import { createReadStream } from 'node:fs';
import { pipeline } from 'node:stream';
import { createGunzip } from 'node:zlib';
import { at, cannotRead } from './source.js';

/** One record that is not blank, without the end of its line and without a byte order mark. */
export interface TextRecord {
  text: string;
  /** The line that it begins in; the first is 1. */
  line: number;
}

/** How records end: with every line, or with every line that leaves no quote open. */
export type RecordEnd = 'line' | 'line outside of quotes';

/**
 * The records of a file, in blocks that were read at once.
 * @param onBytes is told of bytes as they are stored.
 * @throws LossError where the file cannot be read, and for a record that does not end.
 */
export async function* readRecords(
  file: string,
  end: RecordEnd,
  onBytes: (bytes: number) => void,
): AsyncGenerator<Iterable<TextRecord>> {
  const splitter = new Splitter(file, end === 'line outside of quotes');
  try {
    for await (const chunk of bytesOf(file, onBytes)) yield splitter.push(chunk);
  } catch (error) {
    throw cannotRead(file, error);
  }
  yield splitter.finish();
}

async function* bytesOf(file: string, onBytes: (bytes: number) => void): AsyncGenerator<Buffer> {
  const source = createReadStream(file, { highWaterMark: CHUNK });
  // What goes wrong destroys the last stream of a pipeline too, and so comes out of the loop.
  const bytes = file.endsWith('.gz')
    ? pipeline(source, createGunzip({ chunkSize: CHUNK }), () => {})
    : source;
  let told = 0;
  for await (const chunk of bytes as AsyncIterable<Buffer>) {
    yield chunk;
    onBytes(source.bytesRead - told);
    told = source.bytesRead;
  }
}

const CHUNK = 1 << 18;
const NEWLINE = 0x0a;
const QUOTE = 0x22;

// node:readline would end a line at U+2028 too, which a JSON string may have as it is.
class Splitter {
  readonly #file: string;
  readonly #quotes: boolean;
  // The record at hand: what came of it in the chunks before, and the line that it began in.
  #pieces: Buffer[] = [];
  #length = 0;
  #begin = 1;
  #line = 1;
  #open = false;

  constructor(file: string, quotes: boolean) {
    this.#file = file;
    this.#quotes = quotes;
  }

  /** The records that end in a chunk. */
  *push(chunk: Buffer): Generator<TextRecord> {
    let start = 0;
    let from = 0;
    for (let end = chunk.indexOf(NEWLINE); end >= 0; end = chunk.indexOf(NEWLINE, from)) {
      this.#see(chunk.subarray(from, end));
      this.#line++;
      from = end + 1;
      if (this.#open) continue;
      this.#add(chunk.subarray(start, end));
      const record = this.#take();
      if (record.text.trim() !== '') yield record;
      start = from;
    }
    this.#see(chunk.subarray(from));
    this.#add(chunk.subarray(start));
  }

  /** The record that has no line end after it. */
  *finish(): Generator<TextRecord> {
    if (this.#open)
      throw at(
        { file: this.#file, line: this.#begin },
        'ERR_INVALID_INPUT',
        'expected every quote to be closed, and one that opens here is open at the end of the file',
      );
    const record = this.#take();
    if (record.text.trim() !== '') yield record;
  }

  // A quote within quotes is written twice, and so leaves things as they are.
  #see(piece: Buffer): void {
    if (!this.#quotes) return;
    for (let quote = piece.indexOf(QUOTE); quote >= 0; quote = piece.indexOf(QUOTE, quote + 1))
      this.#open = !this.#open;
  }

  #add(piece: Buffer): void {
    if (piece.length === 0) return;
    this.#length += piece.length;
    if (this.#length > constants.MAX_STRING_LENGTH)
      throw at(
        { file: this.#file, line: this.#begin },
        'ERR_INVALID_INPUT',
        `expected a row of at most ${constants.MAX_STRING_LENGTH} bytes, and it is longer`,
      );
    this.#pieces.push(piece);
  }

  #take(): TextRecord {
    const bytes = this.#pieces.length === 1 ? this.#pieces[0]! : Buffer.concat(this.#pieces);
    const text = bytes.toString().replace(/^\uFEFF/, '');
    const record = { text: text.endsWith('\r') ? text.slice(0, -1) : text, line: this.#begin };
    this.#pieces = [];
    this.#length = 0;
    this.#begin = this.#line;
    return record;
  }
}
