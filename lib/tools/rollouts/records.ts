// Splits text files, which may be compressed by gzip, into records. A record is one line, except in CSV, where a quoted
// cell may contain line breaks. Memory holds only one chunk of the file and the record that it interrupts.
import { isUtf8 } from 'node:buffer';
import { pipeline, type Readable } from 'node:stream';
import { createGunzip } from 'node:zlib';
import type { LossError } from '../../base/errors.js';
import { isBlank, NEWLINE, QUOTE, RETURN } from './ascii.js';
import { maxRowBytes } from './limits.js';
import { openBytes } from './remote/index.js';
import {
  cannotRead,
  type DetailsAtPlace,
  errorAt,
  type FileRange,
  type Place,
  type RowLimits,
  STDIN,
} from './source.js';
import { readStdin } from './standard-input.js';

/** A record of a text file. Blank records are skipped. */
export interface TextRecord {
  /** The record's first line. */
  place: Place;
  /**
   * Returns the record as UTF-8, without its line break and without a byte order mark.
   * @throws LossError `ERR_INVALID_INPUT` if the record is longer than a row may be.
   */
  bytes(): Buffer;
}

/** What ends a record: every line break, or only a line break outside double quotes. */
export type RecordEnd = 'line' | 'line outside of quotes';

/**
 * Yields a file's records, in one block per chunk of the file.
 * @param file the name of a file, or '-' for standard input.
 * @param onBytes is called after each chunk, with the number of bytes just read from the file. For a compressed file
 * these are compressed bytes.
 * @param range the lines to read, if not all. The file must not be compressed.
 * @throws LossError if the file cannot be read, or if a quote is not closed.
 */
export async function* readRecords(
  file: string,
  end: RecordEnd,
  onBytes: (bytes: number) => void,
  limits: RowLimits,
  range?: FileRange,
): AsyncGenerator<Iterable<TextRecord>> {
  const splitter = new Splitter(file, end === 'line outside of quotes', maxRowBytes(limits), range?.line);
  try {
    for await (const chunk of chunksOf(file, onBytes, range)) yield splitter.push(chunk);
  } catch (error) {
    throw cannotRead(file, error);
  }
  yield splitter.finish();
}

async function* chunksOf(
  file: string,
  onBytes: (bytes: number) => void,
  range: FileRange | undefined,
): AsyncGenerator<Buffer> {
  if (file === STDIN) {
    yield* readStdin(onBytes);
    return;
  }
  const source = openBytes(file, CHUNK_BYTES, range);
  // pipeline() needs a callback, but it can be empty: an error also destroys the last stream, and then the loop below
  // throws the error.
  const chunks: Readable = file.endsWith('.gz')
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

/**
 * Splits the chunks of a file into records. node:readline cannot be used instead, because it also ends a line at the
 * character U+2028, which JSON strings may contain.
 */
class Splitter {
  readonly #file: string;
  readonly #quotes: boolean;
  readonly #maxBytes: number;
  // The current record: its fragments from earlier chunks, their total length in bytes, and the number of its first line.
  // A record that is too long has no fragments; #isReported tells whether it was already yielded as an error.
  #fragments: Buffer[] = [];
  #length = 0;
  #begin: number;
  #line: number;
  #open = false;
  #isReported = false;

  /**
   * @param quotes whether a line break inside double quotes is part of the record instead of ending it.
   * @param maxBytes the maximum length of a record. Longer ones are not held in memory.
   * @param line the number of the first line.
   */
  constructor(file: string, quotes: boolean, maxBytes: number, line = 1) {
    this.#file = file;
    this.#quotes = quotes;
    this.#maxBytes = maxBytes;
    this.#begin = line;
    this.#line = line;
  }

  /** Yields the records that end in the given chunk, and keeps the rest of the chunk for the next record. */
  *push(chunk: Buffer): Generator<TextRecord> {
    let start = this.#skipBlankLines(chunk, 0);
    let from = start;
    for (let end = chunk.indexOf(NEWLINE, from); end >= 0; end = chunk.indexOf(NEWLINE, from)) {
      this.#trackQuotes(chunk, from, end);
      this.#line++;
      from = end + 1;
      if (this.#open) continue;
      this.#add(chunk.subarray(start, end));
      const record = this.#take();
      if (record) yield record;
      start = this.#skipBlankLines(chunk, from);
      from = start;
    }
    this.#trackQuotes(chunk, from, chunk.length);
    this.#add(chunk.subarray(start));
    const record = this.#length > this.#maxBytes && this.#tooLong();
    if (record) yield record;
  }

  /** Yields the last record if no line break follows it. Must be called after the last chunk. */
  *finish(): Generator<TextRecord> {
    if (this.#open)
      throw this.#error({ expected: 'a closing quote', received: 'none before the end of the file' });
    const record = this.#take();
    if (record) yield record;
  }

  /**
   * Skips blank lines if no record has begun. Returns where the first other line begins. This makes blank lines cheap,
   * because a compressed file can contain very many of them.
   */
  #skipBlankLines(chunk: Buffer, from: number): number {
    if (this.#length > 0) return from;
    let start = from;
    for (let at = from; at < chunk.length && isBlank(chunk[at]); at++)
      if (chunk[at] === NEWLINE) {
        start = at + 1;
        this.#line++;
      }
    this.#begin = this.#line;
    return start;
  }

  // Updates #open, which tells whether the text read so far ends between quotes. A quote inside a quoted cell is
  // written twice, so it toggles #open twice.
  #trackQuotes(chunk: Buffer, from: number, end: number): void {
    if (!this.#quotes) return;
    const line = chunk.subarray(from, end);
    for (let quote = line.indexOf(QUOTE); quote >= 0; quote = line.indexOf(QUOTE, quote + 1))
      this.#open = !this.#open;
  }

  #add(fragment: Buffer): void {
    if (fragment.length === 0) return;
    this.#length += fragment.length;
    if (this.#length <= this.#maxBytes) this.#fragments.push(fragment);
    else this.#fragments = [];
  }

  /** Returns the current record, unless it is blank, and begins the next one. */
  #take(): TextRecord | undefined {
    const record = this.#length > this.#maxBytes ? this.#tooLong() : this.#whole();
    this.#fragments = [];
    this.#length = 0;
    this.#isReported = false;
    this.#begin = this.#line;
    return record;
  }

  #whole(): TextRecord | undefined {
    const [fragment] = this.#fragments;
    if (!fragment) return undefined;
    const bytes = trimmed(this.#fragments.length === 1 ? fragment : Buffer.concat(this.#fragments));
    return isBlankRecord(bytes) ? undefined : { place: this.#place(), bytes: () => bytes };
  }

  /** Returns a record that stands for the current one, which is too long; undefined on a second call. */
  #tooLong(): TextRecord | undefined {
    if (this.#isReported) return undefined;
    this.#isReported = true;
    const error = this.#error({
      expected: `a row of at most ${this.#maxBytes} bytes`,
      received: 'more',
      hint: (spell) => `If the row is correct, raise ${spell('maxRowTokens')}`,
    });
    return {
      place: this.#place(),
      bytes() {
        throw error;
      },
    };
  }

  #place(): Place {
    return { file: this.#file, line: this.#begin };
  }

  #error(details: DetailsAtPlace): LossError {
    return errorAt(this.#place(), 'ERR_INVALID_INPUT', details);
  }
}

/** Removes a byte order mark and the carriage return of a line end. */
function trimmed(bytes: Buffer): Buffer {
  const isMarked = bytes[0] === 0xef && bytes[1] === 0xbb && bytes[2] === 0xbf;
  const isReturned = bytes[bytes.length - 1] === RETURN;
  return isMarked || isReturned ? bytes.subarray(isMarked ? 3 : 0, isReturned ? -1 : undefined) : bytes;
}

function isBlankRecord(bytes: Buffer): boolean {
  let at = 0;
  while (isBlank(bytes[at])) at++;
  return at === bytes.length;
}

/**
 * Checks the text of an id. Invalid UTF-8 is decoded to replacement characters, so different ids could look equal.
 * @throws LossError `ERR_INVALID_INPUT`
 */
export function checkUtf8(text: Buffer, place: Place, key: string): void {
  if (!isUtf8(text))
    throw errorAt(place, 'ERR_INVALID_INPUT', { key, expected: 'text in UTF-8', received: 'other bytes' });
}
