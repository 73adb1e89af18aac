// Reads rows from files, either as a stream of parts of limited size or as one batch.
import { stat } from 'node:fs/promises';
import { describeValue, LossError } from '../../base/errors.js';
import { ColumnNames } from './column-names.js';
import type { RolloutColumn } from './columns.js';
import { splitTable } from './file-name.js';
import { readAnyFormat } from './format.js';
import { halvesOf } from './halves.js';
import { FILES_AT_ONCE, inOrder } from './in-order.js';
import { MAX_ROW_TOKENS, MAX_ROWS } from './limits.js';
import { RowPairs } from './pairs.js';
import { PartBuilder, type PresentColumns, type RolloutPart, type Rollouts } from './part-builder.js';
import { remoteFile } from './remote/index.js';
import { type OnBadRow, RowSets } from './row-sets.js';
import { badFile, errorAt, type FileRange, type ReadSettings } from './source.js';

/** Options of {@link readRollouts}. */
export interface ReadOptions {
  /**
   * The columns to read in addition to logprobs and action_mask. The default is all known columns. Other columns of the
   * files are ignored.
   */
  columns?: readonly RolloutColumn[];
  /**
   * Maps columns to their names in the files: { logprobs: 'log_prob' } reads logprobs from log_prob. The batch's key of
   * a column (such as logprob or old_logprob) may be used instead of the column's name. A renamed column is required.
   */
  rename?: Readonly<Record<string, string>>;
  /** A training framework whose column names are accepted too. For example, 'verl' accepts old_log_probs. */
  backend?: string;
  /**
   * The maximum number of tokens in a row, including masked ones; 1,048,576 by default. A longer row is an error. It is
   * found before the row's lists take memory. The limits on the pages of Parquet files grow with it.
   */
  maxRowTokens?: number;
  /** The maximum number of rows in all files, including skipped ones; 1,048,576 by default. */
  maxRows?: number;
  /** Skips bad rows instead of throwing an error. With pairs, it also skips the other row of a bad row's pair. */
  skipBadRows?: boolean;
  /** Called for every row that skipBadRows skips, with the reason and the row's place. */
  onBadRow?: OnBadRow;
  /**
   * Throws an error where there would only be a warning: for a key that occurs twice in a JSON object, whose last value
   * counts, and for pairs of rows with different prompts or task ids.
   */
  strict?: boolean;
  /** Called with the first warning about each file, and about pairs. By default, the warning is emitted as a Node.js warning. */
  onWarning?: (warning: LossError) => void;
  /** Called repeatedly while the files are read, with the overall progress. */
  onProgress?: (progress: ReadProgress) => void;
  /**
   * Whether files may lack logprobs; 'required' by default. If the files may and do lack them, the batch has no logprob.
   * A row's length is then the length of its other lists, or the number of tokens that the file states, or 1 if it has a
   * number for all its tokens, or 0.
   */
  logprobs?: 'required' | 'optional';
}

/** How much of the files has been read. */
export interface ReadProgress {
  /** The bytes read so far. In a compressed file, these are compressed bytes. */
  bytes: number;
  totalBytes: number;
  rows: number;
  /** The number of tokens read so far, including masked ones. */
  tokens: number;
}

/** Options of {@link streamRollouts}. */
export interface StreamOptions extends ReadOptions {
  /** Names, as they appear in the files, of additional columns to copy into each part's `kept`. */
  keep?: readonly string[];
  /**
   * The maximum number of tokens in a part, including masked ones; unlimited by default. A row (or pair) with more
   * tokens becomes a part of its own. Kept values count as well: 16 characters of text, or one element of a list, count
   * as one token.
   */
  maxTokens?: number;
  /**
   * Makes pairs of rows, and keeps both rows of a pair in the same part, the chosen one first; see {@link RowPairs}. The
   * pairs go across all files.
   */
  pairs?: boolean;
  /** Whether skipBadRows may skip all rows. By default, that is an error. */
  mayLackRows?: boolean;
  /** The columns that the rows have. By default, the first good row decides. */
  present?: PresentColumns;
}

/**
 * Reads the rollouts of one or more files, part by part. It yields at least one part. A part is without rows only if
 * there are no files. The ending of a file's name determines the format of text:
 * - `.jsonl`, `.ndjson`, `.json`: one JSON object per line. Blank lines are skipped. So are the values of columns that
 *   are not read; only their strings and brackets are checked.
 * - `.csv`, `.tsv`: a header line, followed by the rows. A list is JSON text in a cell. An empty cell means that the
 *   row has no value in this column.
 * - `.parquet`: a table.
 * - `.sqlite`, `.sqlite3`, `.db`: a table (not a view) of an SQLite database; one with a write-ahead log needs Node 22.13. FILE#table names
 *   the table if there are several. Lists are JSON text.
 * - `.safetensors`, `.npz`: tensors named after columns or batch keys. Their shape is [B, T] (B rows of T tokens), with
 *   an action_mask (or attention_mask) that is 0 on padding. Or it is [N] (N tokens, one row after another), with the
 *   rows' offsets in cu_seqlens.
 *
 * Binary formats are recognised by their content, whatever the name is. So are the files of trainers: pickles, archives by
 * torch.save and JSON lines of Trinity-RFT, slime, SkyRL, verl, ROLL, NeMo-RL, prime-rl and AReaL. Their rows have no
 * padding and no prompts, and their columns have the names of rollout columns in addition to their own.
 *
 * The name `-` stands for standard input, which is read as JSON lines. Text files may be compressed by gzip
 * (`.jsonl.gz`). A row may hold a pair, in columns such as chosen_logprobs and rejected_logprobs: it becomes two rows. A
 * null value counts as absent, and in a list of numbers as NaN. Every column except action_mask must
 * have a value in every row or in none. Later rows may lack a reward, and rows whose tokens are all masked may lack any
 * numbers; these are NaN then.
 *
 * The memory needed depends on maxTokens, on the longest row and on the number of different ids, not on the size of the
 * files. A Parquet file also needs memory for one page of each column; it is refused if 600 MB do not suffice. A
 * maxRowTokens of more than 9 million raises this limit.
 *
 * @param files the names of the files. A range of a file, as cutFile() returns it, stands for some of its rows.
 * @throws LossError if the rollouts cannot be read. For a bad value, the message names the file, the line or row, the
 * column, what was expected and what was given. The codes:
 * - `ERR_INVALID_INPUT`: a file is unreadable or empty, a row is malformed, or a value has the wrong type.
 * - `ERR_SHAPE_MISMATCH`: a list is not as long as the row's logprobs, or a tensor has the wrong shape.
 * - `ERR_MISSING_INPUT`: a row lacks logprobs, or a column that other rows have.
 * - `ERR_OUT_OF_MEMORY`: a part would have too many tokens, or the files have too many rows or ids.
 * - `ERR_INVALID_OPTION`, `ERR_UNKNOWN_NAME`: an option is invalid.
 */
export async function* streamRollouts(
  files: readonly (string | FileRange)[],
  {
    columns,
    rename,
    backend,
    keep,
    maxRowTokens = MAX_ROW_TOKENS,
    maxRows = MAX_ROWS,
    skipBadRows = false,
    onBadRow,
    strict = false,
    onWarning = ({ message }) => process.emitWarning(message, { type: 'PolicyLossWarning' }),
    maxTokens = Number.POSITIVE_INFINITY,
    pairs = false,
    mayLackRows = false,
    present,
    onProgress,
    logprobs = 'required',
  }: StreamOptions = {},
): AsyncGenerator<RolloutPart> {
  checkLimit('maxRowTokens', maxRowTokens);
  checkLimit('maxRows', maxRows);
  const names = new ColumnNames(columns, rename, backend, keep, logprobs === 'required', pairs);
  const builder = new PartBuilder(names, { maxTokens, maxRowTokens, maxRows }, present);
  const sets = new RowSets(builder, skipBadRows ? (onBadRow ?? (() => {})) : undefined);
  const warnOfPairs = strict ? raise : once(onWarning);
  const paired = pairs ? new RowPairs(names, maxTokens, warnOfPairs) : undefined;
  const totalBytes = onProgress ? await totalSize(files) : 0;
  let bytes = 0;
  const onBytes = (more: number) => {
    bytes += more;
    onProgress?.({ bytes, totalBytes, rows: builder.rows, tokens: builder.tokens });
  };
  for (const source of files) {
    const range = typeof source === 'string' ? undefined : source;
    const file = range?.file ?? (source as string);
    let empty = range === undefined;
    const warn = strict ? raise : once(onWarning);
    const settings: ReadSettings = { maxRowTokens, maxRows, warn, range };
    const divide = halvesOf(names);
    for await (const block of readAnyFormat(file, names, onBytes, settings))
      for (const given of block) {
        empty = false;
        for (const row of sets.read(() => divide(given)))
          for (const set of sets.read(() => paired?.add(row)) ?? [[row]]) {
            const part = sets.add(set);
            if (part) yield part;
          }
      }
    if (empty) throw badFile(file, { expected: 'rollouts', received: 'an empty file' });
  }
  const isShard = files.some((source) => typeof source !== 'string');
  for (const set of paired?.end(isShard ? PAIRS_IN_SHARDS : undefined) ?? []) {
    const part = sets.add(set);
    if (part) yield part;
  }
  if (sets.firstBad && builder.rows === 0 && !mayLackRows)
    throw new LossError(
      'ERR_INVALID_INPUT',
      {
        expected: 'at least one good row',
        received: `${sets.bad} bad ones, the first for this reason: ${sets.firstBad.message}`,
      },
      { cause: sets.firstBad },
    );
  yield builder.finish();
}

/**
 * Reads the rollouts of one or more files into one batch.
 * @throws LossError in the same cases as {@link streamRollouts}.
 */
export async function readRollouts(files: readonly string[], options: ReadOptions = {}): Promise<Rollouts> {
  for await (const { batch, rows, tokens } of streamRollouts(files, options)) return { batch, rows, tokens };
  throw new Error('a stream of rollouts has at least one part');
}

const PAIRS_IN_SHARDS = (spell: (option: string) => string) =>
  `Both rows of a pair must be in one shard. Sort the rows by their pairs, or plan with a larger ${spell('shardSize')}`;

type Warn = ReadSettings['warn'];

/** Throws an error instead of a warning. */
const raise: Warn = (place, details) => {
  throw errorAt(place, 'ERR_INVALID_INPUT', details);
};

/** Returns a function that passes on the first warning only. */
function once(onWarning: (warning: LossError) => void): Warn {
  let warned = false;
  return (place, details, consequence) => {
    if (!warned) onWarning(errorAt(place, 'ERR_INVALID_INPUT', { ...details, hint: consequence }));
    warned = true;
  };
}

function checkLimit(option: string, value: unknown): void {
  if (!Number.isSafeInteger(value) || (value as number) < 1)
    throw new LossError('ERR_INVALID_OPTION', {
      option,
      expected: 'a whole number of at least 1',
      received: describeValue(value),
    });
}

async function totalSize(files: readonly (string | FileRange)[]): Promise<number> {
  let sum = 0;
  for await (const size of inOrder(files, FILES_AT_ONCE, sizeOf)) sum += size;
  return sum;
}

async function sizeOf(file: string | FileRange): Promise<number> {
  if (typeof file !== 'string') return file.end - file.start;
  const path = splitTable(file).file;
  return (remoteFile(path)?.about() ?? stat(path)).then(
    ({ size }) => size,
    // An unreadable file counts as 0 bytes here. Its reader will report the reason later.
    () => 0,
  );
}
