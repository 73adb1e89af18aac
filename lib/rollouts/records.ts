// Splits text files, which may be compressed by gzip, into records. A record is one line, except in CSV, where a quoted
// cell may contain line breaks. Memory holds only one chunk of the file and the record that it interrupts.
import { constants } from 'node:buffer';
import { createReadStream } from 'node:fs';
import { pipeline } from 'node:stream';
import { createGunzip } from 'node:zlib';
import type { LossError } from '../core/errors.js';
import { cannotRead, type DetailsAtPlace, errorAt } from './source.js';

/** A record of a text file, without its line break and without a byte order mark. Blank records are skipped. */
export interface TextRecord {
  text: string;
  /** The number of the record's first line, counted from 1. */
  line: number;
}

/** What ends a record: every line break, or only a line break outside double quotes. */
export type RecordEnd = 'line' | 'line outside of quotes';

/**
 * Yields a file's records, in one block per chunk of the file.
 * @param onBytes is called after each chunk, with the number of bytes just read from the file. For a compressed file
 * these are compressed bytes.
 * @throws LossError if the file cannot be read, if a record is too long for a string, or if a quote is not closed.
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
  // pipeline() needs a callback, but it can be empty: an error also destroys the last stream, and then the loop below
  // throws the error.
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
 * Splits the chunks of a file into records. node:readline cannot be used instead, because it also ends a line at the
 * character U+2028, which JSON strings may contain.
 */
class Splitter {
  readonly #file: string;
  readonly #quotes: boolean;
  // The current record: its pieces from earlier chunks, their total length in bytes, and the number of its first line.
  #pieces: Buffer[] = [];
  #length = 0;
  #begin = 1;
  #line = 1;
  #open = false;

  /** @param quotes whether a line break inside double quotes is part of the record instead of ending it. */
  constructor(file: string, quotes: boolean) {
    this.#file = file;
    this.#quotes = quotes;
  }

  /** Yields the records that end in the given chunk, and keeps the rest of the chunk for the next record. */
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

  /** Yields the last record if no line break follows it. Must be called after the last chunk. */
  *finish(): Generator<TextRecord> {
    if (this.#open)
      throw this.#error({ expected: 'a closing quote', received: 'none before the end of the file' });
    const record = this.#take();
    if (record.text.trim() !== '') yield record;
  }

  // Updates #open, which tells whether the text read so far ends between quotes. A quote inside a quoted cell is
  // written twice, so it toggles #open twice.
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
