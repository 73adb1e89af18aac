// Cuts files into ranges that can be read one by one, and finds out whether a range has changed since.
import { createHash, type Hash } from 'node:crypto';
import type { Stats } from 'node:fs';
import { stat } from 'node:fs/promises';
import { isBlank, NEWLINE } from './ascii.js';
import { ColumnNames } from './column-names.js';
import { splitTable } from './file-name.js';
import { readAnyFormat, readerOf } from './format.js';
import { hasPlainLines, readJsonLines } from './json-lines.js';
import { MAX_ROW_TOKENS } from './limits.js';
import type { GroupBounds } from './parquet/file.js';
import { readParquet } from './parquet.js';
import { copyOf } from './remote/copy.js';
import { isRemote, openBytes, type RemoteAbout, remoteFile } from './remote/index.js';
import { badFile, cannotRead, type FileRange, STDIN } from './source.js';

/** A range of a file, or the whole file, with what is needed to find out whether it has changed. */
export interface HashedRange extends FileRange {
  /** Whether the range is the whole file. */
  whole: boolean;
  /**
   * The SHA-256 of the range's bytes, in hexadecimal. Absent if the bytes need not be read for the cut, because the file
   * has a strong ETag.
   */
  sha256?: string;
  /** The number of rows, good or bad; absent if it is unknown. */
  rows?: number;
}

/** A file in ranges. Together they have all bytes of the file, in order. */
export interface CutFile {
  file: string;
  size: number;
  /** The ETag of a file on a server, if the server gives a strong one. */
  etag?: string;
  ranges: HashedRange[];
}

/**
 * Cuts a file into ranges of about equal size, and reads it once for the digests of the ranges. JSON lines and Parquet
 * files are cut, at the ends of lines and of row groups. Compressed files, other formats and the files of trainers are
 * one range. Of a file on a server that has a strong ETag, only what the cut needs is read.
 * @param bytes the size from which on a range ends.
 * @param countRows whether the rows must be counted in every file, which takes longer for some formats.
 * @param canEnd returns whether a range may end after this many rows of the file. Only called with countRows.
 * @throws LossError `ERR_INVALID_INPUT` if the file cannot be read, or only once.
 */
export async function cutFile(
  file: string,
  bytes: number,
  countRows: boolean,
  canEnd: (rows: number) => boolean = () => true,
): Promise<CutFile> {
  const { file: path } = splitTable(file);
  const { size, etag } = await statusOf(file, path);
  const about = { file, size, ...(etag !== undefined && { etag }) };
  if (size === 0) throw badFile(file, { expected: 'rollouts', received: 'an empty file' });
  const canBeCut = size > bytes || countRows;
  // There can be thousands of files on servers, where each request takes time. Their formats are looked at only if they
  // may be cut.
  const reader = canBeCut || !isRemote(path) ? await readerOf(file) : undefined;
  const isText = reader === readJsonLines && !path.toLowerCase().endsWith('.gz');
  try {
    if (canBeCut && isText && (await hasPlainLines(path, { maxRowTokens: MAX_ROW_TOKENS })))
      return { ...about, ranges: await cutLines(path, bytes, canEnd) };
    if (canBeCut && reader === readParquet) {
      const { boundsOfGroups } = await import('./parquet/file.js');
      const copy = await copyOf(path, { file, start: 0, end: 0, groups: [0, 0] });
      try {
        const bounds = boundsOfGroups(copy?.path ?? path);
        if (bounds) return { ...about, ranges: await cutGroups(about, bounds, bytes, canEnd) };
      } finally {
        await copy?.remove();
      }
    }
    const rows = countRows ? { rows: await rowsIn(file) } : {};
    const digest = await digestIfNeeded(path, 0, size, etag);
    return { ...about, ranges: [{ file, start: 0, end: size, whole: true, ...digest, ...rows }] };
  } catch (error) {
    throw cannotRead(file, error);
  }
}

/**
 * Checks that a range is the same as when its file was cut.
 * @param size the size of the file when it was cut.
 * @param etag its ETag, if it had one.
 * @returns a function that checks whether the file was written since. Call it after the range was read.
 * @throws LossError `ERR_INVALID_INPUT` if it has changed.
 */
export async function checkRange(
  range: HashedRange,
  size: number,
  etag?: string,
): Promise<() => Promise<void>> {
  const { file: path } = splitTable(range.file);
  const before = await statusOf(range.file, path);
  if (before.size !== size)
    throw changed(range.file, `${size} bytes, as when it was planned`, `${before.size} bytes`);
  if (before.etag !== etag)
    throw changed(range.file, `the ETag ${etag}, as when it was planned`, `the ETag ${before.etag}`);
  if (etag === undefined) await checkDigest(range, path);
  return async () => {
    const after = await statusOf(range.file, path);
    if (after.size !== size || after.mtimeMs !== before.mtimeMs || after.version !== before.version)
      throw changed(range.file, 'a file that nobody writes while it is read', 'a file that was written');
  };
}

async function checkDigest(range: HashedRange, path: string): Promise<void> {
  let sha256: string;
  try {
    sha256 = await digestOf(path, range.start, range.end);
  } catch (error) {
    throw cannotRead(range.file, error);
  }
  if (sha256 !== range.sha256)
    throw changed(
      range.file,
      `bytes ${range.start} to ${range.end} as when they were planned, with the SHA-256 ${range.sha256}`,
      sha256,
    );
}

function changed(file: string, expected: string, received: string) {
  return badFile(file, {
    expected,
    received,
    hint: 'The file has changed since the plan was made. Make a new plan',
  });
}

/** What shows whether a file has changed. */
interface Status extends RemoteAbout {
  /** The time of the last change of a local file. */
  mtimeMs?: number;
}

async function statusOf(file: string, path: string): Promise<Status> {
  const remote = remoteFile(path);
  if (remote) return remote.about();
  const { size, mtimeMs } = await regularFile(file, path);
  return { size, mtimeMs };
}

async function regularFile(file: string, path: string): Promise<Stats> {
  if (file === STDIN)
    throw badFile(file, { expected: 'a file, which every worker can read', received: 'standard input' });
  const status = await stat(path).catch((error: unknown) => {
    throw cannotRead(file, error);
  });
  if (!status.isFile())
    throw badFile(file, {
      expected: 'a regular file, which can be read more than once',
      received: 'another',
    });
  // SQLite keeps recent changes in a file of their own, which the digest would not cover.
  const log = await stat(`${path}-wal`).catch(() => undefined);
  if (log && log.size > 0)
    throw badFile(file, {
      expected: 'a database without a write-ahead log',
      received: `one in ${path}-wal`,
      hint: 'PRAGMA wal_checkpoint(TRUNCATE) moves its changes into the database',
    });
  return status;
}

/** Ends ranges, and computes the digest of each. */
class Ranges {
  readonly ranges: HashedRange[] = [];
  readonly #file: string;
  #hash: Hash = createHash('sha256');
  #start = 0;

  constructor(file: string) {
    this.#file = file;
  }

  /** The size of the range that is not ended, if it ended here. */
  sizeAt(end: number): number {
    return end - this.#start;
  }

  add(bytes: Uint8Array): void {
    this.#hash.update(bytes);
  }

  end(end: number, about: Pick<HashedRange, 'line' | 'groups' | 'rows'>): void {
    const sha256 = this.#hash.digest('hex');
    this.ranges.push({ file: this.#file, start: this.#start, end, whole: false, sha256, ...about });
    this.#hash = createHash('sha256');
    this.#start = end;
  }
}

async function cutLines(
  file: string,
  bytes: number,
  canEnd: (rows: number) => boolean,
): Promise<HashedRange[]> {
  const ranges = new Ranges(file);
  let position = 0;
  // The numbers of lines and of rows before the current line. Blank lines are not rows.
  let [lines, rows] = [0, 0];
  // The lines and the rows before the current range.
  let [linesBefore, rowsBefore] = [0, 0];
  let hasText = false;
  const end = (at: number) => {
    ranges.end(at, { line: linesBefore + 1, rows: rows - rowsBefore });
    [linesBefore, rowsBefore] = [lines, rows];
  };
  for await (const chunk of openBytes(file, CHUNK_BYTES) as AsyncIterable<Buffer>) {
    let added = 0;
    for (let from = 0; from < chunk.length; ) {
      const newline = chunk.indexOf(NEWLINE, from);
      const to = newline < 0 ? chunk.length : newline;
      for (let at = from; !hasText && at < to; at++) hasText = !isBlank(chunk[at]);
      if (newline < 0) break;
      lines++;
      if (hasText) rows++;
      hasText = false;
      from = newline + 1;
      if (ranges.sizeAt(position + from) < bytes || !canEnd(rows)) continue;
      ranges.add(chunk.subarray(added, from));
      added = from;
      end(position + from);
    }
    ranges.add(chunk.subarray(added));
    position += chunk.length;
  }
  if (hasText) rows++;
  if (ranges.sizeAt(position) > 0) end(position);
  return ranges.ranges;
}

async function cutGroups(
  { file, size, etag }: Omit<CutFile, 'ranges'>,
  groups: readonly GroupBounds[],
  bytes: number,
  canEnd: (rows: number) => boolean,
): Promise<HashedRange[]> {
  const ranges: HashedRange[] = [];
  let [first, start, rows, before] = [0, 0, 0, 0];
  for (const [i, group] of groups.entries()) {
    rows += group.rows;
    const isLast = i === groups.length - 1;
    const end = isLast ? size : groups[i + 1]!.start;
    if (!isLast && (end - start < bytes || !canEnd(rows))) continue;
    const digest = await digestIfNeeded(file, start, end, etag);
    ranges.push({ file, start, end, whole: false, ...digest, groups: [first, i + 1], rows: rows - before });
    [first, start, before] = [i + 1, end, rows];
  }
  return ranges;
}

/** Counts the rows of a file, without reading their values where the format allows it. */
async function rowsIn(file: string): Promise<number> {
  let rows = 0;
  const names = new ColumnNames([], {}, undefined, [], false);
  const settings = { maxRowTokens: MAX_ROW_TOKENS, maxRows: Number.MAX_SAFE_INTEGER, warn: () => {} };
  for await (const block of readAnyFormat(file, names, () => {}, settings)) for (const _ of block) rows++;
  return rows;
}

/** Returns the digest of a range, unless the ETag of its file replaces it. */
async function digestIfNeeded(file: string, start: number, end: number, etag: string | undefined) {
  return etag === undefined ? { sha256: await digestOf(file, start, end) } : {};
}

async function digestOf(file: string, start: number, end: number): Promise<string> {
  const hash = createHash('sha256');
  for await (const chunk of openBytes(file, CHUNK_BYTES, { start, end })) hash.update(chunk as Buffer);
  return hash.digest('hex');
}

const CHUNK_BYTES = 2 ** 20;
