// Reads the rows of files as a stream of parts of bounded size, or as one batch.
import { stat } from 'node:fs/promises';
import { LossError } from '../core/errors.js';
import { ColumnNames } from './column-names.js';
import type { RolloutColumn } from './columns.js';
import { splitTable } from './file-name.js';
import { readerOf } from './format.js';
import { PartBuilder, type RolloutPart, type Rollouts } from './part-builder.js';
import { badFile } from './source.js';
import { type OnBadRow, Units } from './units.js';

/** Options of {@link readRollouts}. */
export interface ReadOptions {
  /** The columns to read in addition to logprobs and action_mask; all by default. Other columns are ignored. */
  columns?: readonly RolloutColumn[];
  /**
   * The names of columns in the files: { logprobs: 'log_prob' } reads logprobs from log_prob. A batch key (logprob,
   * old_logprob) may stand for a column.
   */
  rename?: Readonly<Record<string, string>>;
  /** A training framework whose column names are accepted too, such as 'verl' for old_log_probs. */
  backend?: string;
  /** Skips bad rows. With evenRows, it also skips the other row of the pair. */
  skipBadRows?: boolean;
  /** Receives the reason for every skipped row. */
  onBadRow?: OnBadRow;
  /** Receives the progress over all files. */
  onProgress?: (progress: ReadProgress) => void;
}

/** The progress of reading. */
export interface ReadProgress {
  /** Bytes read so far, as stored in the files. */
  bytes: number;
  totalBytes: number;
  rows: number;
  /** Tokens read so far, masked or not. */
  tokens: number;
}

/** Options of {@link streamRollouts}. */
export interface StreamOptions extends ReadOptions {
  /** Further columns to copy into each part's `kept`, by their names in the files. */
  keep?: readonly string[];
  /**
   * Capacity of a part in tokens, masked ones included; unlimited by default. A row (or pair) that exceeds it becomes a
   * part of its own. Kept values count too: 16 characters as one token.
   */
  maxTokens?: number;
  /** Keeps pairs of rows together: the first row with the second, and so on, across all files. */
  evenRows?: boolean;
}

/**
 * Reads the rollouts of one or more files, part by part. It yields at least one part; a part without rows comes only if
 * there are no files. The ending of a file's name determines its format:
 * - `.jsonl`, `.ndjson`, `.json`: one object per line; blank lines are skipped.
 * - `.csv`, `.tsv`: with a header line. Lists are JSON text in a cell, and an empty cell counts as absent.
 * - `.parquet`, and `.sqlite`, `.sqlite3` or `.db` (FILE#table, or the only table). SQLite holds lists as JSON text.
 * - `.safetensors`, `.npz`: tensors named after columns or batch keys. They are either [B, T], with an action_mask (or
 *   attention_mask) of 0 on padding, or packed with cu_seqlens.
 *
 * Text files may be compressed by gzip (`.jsonl.gz`). null counts as absent. A column must be in every row or in none,
 * except for action_mask. The memory needed depends on maxTokens and on the longest row, not on the size of the files;
 * for Parquet, it also depends on the size of the row groups.
 *
 * @throws LossError with the file, the line or row, the column, and the expected and the actual value:
 * `ERR_INVALID_INPUT` (an unreadable or empty file, a malformed row, a value of the wrong type), `ERR_SHAPE_MISMATCH`
 * (a list whose length differs from logprobs, a tensor of the wrong shape), `ERR_MISSING_INPUT` (a row without
 * logprobs, or without a column that other rows have), `ERR_OUT_OF_MEMORY`; for the options, `ERR_INVALID_OPTION` and
 * `ERR_UNKNOWN_NAME`.
 */
export async function* streamRollouts(
  files: readonly string[],
  {
    columns,
    rename,
    backend,
    keep,
    skipBadRows = false,
    onBadRow,
    maxTokens = Number.POSITIVE_INFINITY,
    evenRows = false,
    onProgress,
  }: StreamOptions = {},
): AsyncGenerator<RolloutPart> {
  const names = new ColumnNames(columns, rename, backend, keep);
  const builder = new PartBuilder(names, maxTokens);
  const units = new Units(builder, evenRows ? 2 : 1, skipBadRows ? (onBadRow ?? (() => {})) : undefined);
  const totalBytes = onProgress ? await totalSize(files) : 0;
  let bytes = 0;
  const onBytes = (more: number) => {
    bytes += more;
    onProgress?.({ bytes, totalBytes, rows: builder.rows, tokens: builder.tokens });
  };
  for (const file of files) {
    let empty = true;
    for await (const block of readerOf(file)(file, names, onBytes))
      for (const row of block) {
        empty = false;
        const part = units.add(row);
        if (part) yield part;
      }
    if (empty) throw badFile(file, { expected: 'rollouts', received: 'an empty file' });
  }
  const part = units.end();
  if (part) yield part;
  if (units.firstBad && builder.rows === 0)
    throw new LossError(
      'ERR_INVALID_INPUT',
      {
        expected: 'at least one good row',
        received: `${units.bad} bad ones, the first for this reason: ${units.firstBad.message}`,
      },
      { cause: units.firstBad },
    );
  yield builder.finish();
}

/**
 * Reads the rollouts of one or more files into one batch.
 * @throws LossError as {@link streamRollouts} does.
 */
export async function readRollouts(files: readonly string[], options: ReadOptions = {}): Promise<Rollouts> {
  for await (const { batch, rows, tokens } of streamRollouts(files, options)) return { batch, rows, tokens };
  throw new Error('a stream of rollouts has at least one part');
}

async function totalSize(files: readonly string[]): Promise<number> {
  const sizes = await Promise.all(
    files.map((file) =>
      stat(splitTable(file).file).then(
        ({ size }) => size,
        // The file's reader will report why it cannot be read.
        () => 0,
      ),
    ),
  );
  return sizes.reduce((sum, size) => sum + size, 0);
}
