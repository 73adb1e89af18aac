// Splits text files, compressed by gzip or not, into records. A record is a line; in CSV,
// quotes can join several lines into one record. Only the current record is kept in memory.
import { constants } from 'node:buffer';
import { createReadStream } from 'node:fs';
import { pipeline } from 'node:stream';
import { createGunzip } from 'node:zlib';
import type { LossError } from '../core/errors.js';
import { cannotRead, type DetailsAtPlace, errorAt } from './source.js';

/** A record that is not blank, without its line end and without a byte order mark. */
export interface TextRecord {
  text: string;
  /** The line that it begins in, counted from 1. */
  line: number;
}

/** The end of a record: every line end, or every line end outside of quotes. */
export type RecordEnd = 'line' | 'line outside of quotes';

/**
 * Yields a file's records, one block per chunk of the file.
 * @param onBytes receives the number of bytes just read, as stored in the file.
 * @throws LossError if the file cannot be read, or if a record does not end.
 */
export async function* readRecords(
  file: string,
  end: RecordEnd,
  onBytes: (bytes: number) => void,
): AsyncGenerator<Iterable<TextRecord>> {
  const splitter = new Splitter(file, end === 'line outside of quotes');
  try {
    for await (const chunk of chunksOf(file, onBytes)) yield splitter.push(chunk);
  } catch (error) {
    throw cannotRead(file, error);
  }
  yield splitter.finish();
}

async function* chunksOf(file: string, onBytes: (bytes: number) => void): AsyncGenerator<Buffer> {
  const source = createReadStream(file, { highWaterMark: CHUNK_BYTES });
  // The callback does nothing, because an error also destroys the last stream, and the loop below throws it.
  const chunks = file.endsWith('.gz')
    ? pipeline(source, createGunzip({ chunkSize: CHUNK_BYTES }), () => {})
    : source;
  let reported = 0;
  for await (const chunk of chunks as AsyncIterable<Buffer>) {
    yield chunk;
    onBytes(source.bytesRead - reported);
    reported = source.bytesRead;
  }
}

const CHUNK_BYTES = 1 << 18;
const NEWLINE = 0x0a;
const QUOTE = 0x22;

/**
 * Splits chunks into records. node:readline is no alternative: it also ends lines at U+2028, which JSON strings may
 * contain.
 */
class Splitter {
  readonly #file: string;
  readonly #quotes: boolean;
  // The current record: its pieces from earlier chunks, their total length, and the line that it begins in.
  #pieces: Buffer[] = [];
  #length = 0;
  #begin = 1;
  #line = 1;
  #open = false;

  /** @param quotes whether quotes join lines. */
  constructor(file: string, quotes: boolean) {
    this.#file = file;
    this.#quotes = quotes;
  }

  /** Yields the records that end in a chunk. */
  *push(chunk: Buffer): Generator<TextRecord> {
    let start = 0;
    let from = 0;
    for (let end = chunk.indexOf(NEWLINE); end >= 0; end = chunk.indexOf(NEWLINE, from)) {
      this.#trackQuotes(chunk.subarray(from, end));
      this.#line++;
      from = end + 1;
      if (this.#open) continue;
      this.#add(chunk.subarray(start, end));
      const record = this.#take();
      if (record.text.trim() !== '') yield record;
      start = from;
    }
    this.#trackQuotes(chunk.subarray(from));
    this.#add(chunk.subarray(start));
  }

  /** Yields the last record, if no line end follows it. */
  *finish(): Generator<TextRecord> {
    if (this.#open)
      throw this.#error({ expected: 'a closing quote', received: 'none before the end of the file' });
    const record = this.#take();
    if (record.text.trim() !== '') yield record;
  }

  // A quote inside quotes is doubled, so it toggles the state twice.
  #trackQuotes(piece: Buffer): void {
    if (!this.#quotes) return;
    for (let quote = piece.indexOf(QUOTE); quote >= 0; quote = piece.indexOf(QUOTE, quote + 1))
      this.#open = !this.#open;
  }

  #add(piece: Buffer): void {
    if (piece.length === 0) return;
    this.#length += piece.length;
    if (this.#length > constants.MAX_STRING_LENGTH)
      throw this.#error({
        expected: `a row of at most ${constants.MAX_STRING_LENGTH} bytes`,
        received: 'more',
      });
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

  #error(details: DetailsAtPlace): LossError {
    return errorAt({ file: this.#file, line: this.#begin }, 'ERR_INVALID_INPUT', details);
  }
}
