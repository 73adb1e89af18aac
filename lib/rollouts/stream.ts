// The rows of files, one after another, as parts of bounded size or all in one.
import { stat } from 'node:fs/promises';
import { LossError } from '../core/errors.js';
import { ColumnNames } from './column-names.js';
import type { RolloutColumn } from './columns.js';
import { readerOf } from './format.js';
import { PartBuilder, type RolloutPart, type Rollouts } from './part-builder.js';
import { at } from './source.js';
import { splitTable } from './table-name.js';
import { Units } from './units.js';

/** Options of {@link readRollouts}. */
export interface ReadOptions {
  /** The columns to read beside logprobs and action_mask; all by default. The others are not looked at. */
  columns?: readonly RolloutColumn[];
  /**
   * What columns are called in the files, where not as here: { logprobs: 'log_prob' }. The column may be said by its
   * key in batches too (logprob, old_logprob).
   */
  rename?: Readonly<Record<string, string>>;
  /** A training framework whose names of columns are taken too, as 'verl' for old_log_probs. */
  backend?: string;
  /** Leaves out rows that are bad; with evenRows the other row of the pair too. */
  skipBadRows?: boolean;
  /** Is told why each row is left out. */
  onBadRow?: (error: LossError) => void;
  /** Is told how much has been read of all the files. */
  onProgress?: (progress: ReadProgress) => void;
}

/** How far the reading has come. */
export interface ReadProgress {
  /** Of the files as they are stored. */
  bytes: number;
  totalBytes: number;
  rows: number;
  /** Masked or not. */
  tokens: number;
}

/** Options of {@link streamRollouts}. */
export interface StreamOptions extends ReadOptions {
  /** Further columns, by their names in the files, for each part's `kept`. */
  keep?: readonly string[];
  /**
   * How many tokens a part may hold, masked ones included; absent: any number. A row (or pair) that has more is a
   * part of its own. What is kept of a row counts too, 16 characters as one token.
   */
  maxTokens?: number;
  /** Parts hold whole pairs of rows, the first with the second and so on, over all the files. */
  evenRows?: boolean;
}

/**
 * Reads the rollouts of one or more files, part by part: at least one, and none without rows unless there are no files.
 * Each file's format is told by the end of its name:
 * - `.jsonl`, `.ndjson`, `.json`: one object a line; blank lines are skipped.
 * - `.csv`, `.tsv`: with a header; lists are JSON text in a cell, and an empty cell is none.
 * - `.parquet` and `.sqlite`, `.sqlite3`, `.db` (FILE#table, or the only table): the latter with lists as JSON text.
 * - `.safetensors`, `.npz`: tensors under columns' names or keys of batches, [B, T] with action_mask (or
 *   attention_mask) 0 where rows have ended, or packed with cu_seqlens.
 *
 * Text may be packed by gzip (`.jsonl.gz`). null counts as not there. A column must be in every row or in none,
 * action_mask excepted. How much memory is taken depends on maxTokens and on the longest row, not on the files' size;
 * for Parquet, also on the row groups that it was written with.
 *
 * @throws LossError naming the file, the line or row, the column, what was expected and what came: `ERR_INVALID_INPUT`
 * (a file that cannot be read or is empty, a row that is none, a value of the wrong type), `ERR_SHAPE_MISMATCH` (a list
 * that is not as long as the row's logprobs, a tensor of another shape), `ERR_MISSING_INPUT` (a row without logprobs, or
 * without a column that others have), `ERR_OUT_OF_MEMORY`; for the options `ERR_INVALID_OPTION` and `ERR_UNKNOWN_NAME`.
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
  const totalBytes = onProgress ? await sizeOf(files) : 0;
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
    if (empty) throw at({ file }, 'ERR_INVALID_INPUT', 'expected rollouts, and the file is empty');
  }
  const part = units.end();
  if (part) yield part;
  if (units.firstBad && builder.rows === 0)
    throw new LossError(
      'ERR_INVALID_INPUT',
      `expected rows that can be read, and all ${units.bad} are bad, the first for this: ${units.firstBad.message}`,
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

async function sizeOf(files: readonly string[]): Promise<number> {
  // A file that cannot be read is for its reader to report.
  const sizes = await Promise.all(
    files.map((file) =>
      stat(splitTable(file).file).then(
        ({ size }) => size,
        () => 0,
      ),
    ),
  );
  return sizes.reduce((sum, size) => sum + size, 0);
}
