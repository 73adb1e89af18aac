// Computes shards. A shard is some of the rows of the files. The first phase counts the rows of every shard; with the
// merged counts, the second phase computes each shard alone. If there is only one shard, it does both.
import { LossError } from '../../index.js';
import { type FileRange, type RolloutPart, type StreamOptions, streamRollouts } from '../rollouts/index.js';
import { STDIN } from '../rollouts/source.js';
import { withCopyOfStdin } from '../rollouts/standard-input.js';
import type { EvaluationSettings, ShardResult } from './evaluation.js';
import { checkColumns, PartComputer, type PartWatcher } from './part-computer.js';
import { ShardCounter, type ShardCounts } from './shard-counts.js';
import type { Subject } from './subject.js';
import { Whole } from './whole.js';

/** Collects more about the rows of a shard than its results, such as the histograms of a report. */
export interface Collector {
  /** Receives every part with its gradients. */
  watch: PartWatcher;
  /** Returns what was collected, as an object that JSON can hold. */
  collected(): object;
}

/** The files of a shard, or ranges of files. */
export type Sources = readonly (string | FileRange)[];

/** Where the rows of a shard are among all rows. */
export interface ShardRows {
  /** The index of its first row. */
  start: number;
  rows: number;
  /** The number of unmasked tokens. */
  tokens: number;
}

/** Counts the rows of a shard. */
export async function countShard(
  sources: Sources,
  subjects: readonly Subject[],
  settings: EvaluationSettings,
): Promise<ShardCounts> {
  const counter = new ShardCounter(filesOf(sources), subjects);
  settings.progress.begin('reading');
  const options = { ...readingOptions(subjects, settings, true), mayLackRows: true };
  for await (const part of streamRollouts(sources, options)) await counter.add(part);
  return counter.finish();
}

/**
 * Computes the rows of a shard.
 * @param whole what is needed from all rows.
 * @param counted the rows of the shard, as they were counted.
 * @param watch receives every part with its gradients.
 * @throws LossError about the files or the subjects, and if there are other rows than were counted.
 */
export async function computeShard(
  sources: Sources,
  subjects: readonly Subject[],
  settings: EvaluationSettings,
  whole: Whole,
  counted: ShardRows,
  watch?: PartWatcher,
): Promise<ShardResult> {
  const computer = new PartComputer(filesOf(sources), subjects, settings, watch);
  // The first pass has already reported bad rows and warnings, so this one does not report them again.
  let [parts, rows, tokens, skipped] = [0, 0, 0, 0];
  const options: StreamOptions = {
    ...readingOptions(subjects, settings, false),
    onBadRow: () => skipped++,
    onWarning: () => {},
    mayLackRows: true,
  };
  whole.beginShard();
  settings.progress.begin('computing');
  for await (const part of streamRollouts(sources, options)) {
    if (part.first + part.rows > counted.rows) break;
    if (part.rows === 0) continue;
    await computer.compute({ ...part, first: counted.start + part.first }, whole, (share) =>
      settings.progress.advance((rows + share * part.rows) / counted.rows, rows, tokens),
    );
    parts++;
    rows += part.rows;
    tokens += part.tokens;
  }
  if (rows !== counted.rows || tokens !== counted.tokens)
    throw new LossError('ERR_INVALID_INPUT', {
      at: filesOf(sources).join(', '),
      expected: 'the same rows on a second reading',
      received: 'other rows',
      hint: (spell) => `A file that cannot be read twice must fit into ${spell('batchTokens')}`,
    });
  return {
    rows,
    tokens,
    parts,
    skipped,
    ...(rows > 0 ? computer.finish(whole) : { subjects: [], ...(settings.compares && { products: [] }) }),
  };
}

/**
 * Counts and computes the rows of the only shard. If they fit into one part, they are read once and computed as one
 * batch.
 * @param watch receives every part with its gradients.
 * @throws LossError about the files or the subjects. It is `ERR_INVALID_OPTION` for the option batchTokens if a subject
 * needs all rows at once and they do not fit into one part.
 */
export function evaluateShard(
  sources: Sources,
  subjects: readonly Subject[],
  settings: EvaluationSettings,
  watch?: PartWatcher,
): Promise<ShardResult> {
  const evaluate = () => countAndCompute(sources, subjects, settings, watch);
  return filesOf(sources).includes(STDIN) ? withCopyOfStdin(evaluate) : evaluate();
}

async function countAndCompute(
  sources: Sources,
  subjects: readonly Subject[],
  settings: EvaluationSettings,
  watch: PartWatcher | undefined,
): Promise<ShardResult> {
  const { batchTokens, progress } = settings;
  const files = filesOf(sources);
  const counter = new ShardCounter(files, subjects);
  progress.begin('reading');
  let skipped = 0;
  const stream = streamRollouts(sources, {
    ...readingOptions(subjects, settings, true),
    onBadRow(error, place) {
      skipped++;
      settings.read.onBadRow?.(error, place);
    },
  });
  const first: RolloutPart = (await stream.next()).value;
  const second = await stream.next();
  await checkColumns(first, subjects, files);
  await counter.add(first);
  if (!second.done) await counter.add(second.value);
  for await (const part of stream) await counter.add(part);
  const counts = counter.finish();
  const whole = await Whole.of(subjects, counts, second.done ? first : undefined, batchTokens);
  const { rows, tokens } = counts;
  if (!second.done)
    return computeShard(sources, subjects, settings, whole, { start: 0, rows, tokens }, watch);
  progress.begin('computing');
  const computer = new PartComputer(files, subjects, settings, watch);
  await computer.compute(first, whole, (share) => progress.advance(share, rows, tokens));
  return { rows, tokens, parts: 1, skipped, ...computer.finish(whole) };
}

/** Returns the options of streamRollouts() that read the rows of a shard. */
function readingOptions(
  subjects: readonly Subject[],
  { read, batchTokens, progress }: EvaluationSettings,
  showsProgress: boolean,
): StreamOptions {
  return {
    ...read,
    columns: [...(read.columns ?? []), ...subjects.flatMap(({ columns }) => columns)],
    maxTokens: batchTokens,
    pairs: subjects.some(({ pairs }) => pairs),
    logprobs: logprobsOf(subjects),
    ...(showsProgress && {
      onProgress: ({ bytes, totalBytes, rows, tokens }) =>
        progress.advance(totalBytes > 0 ? bytes / totalBytes : 0, rows, tokens),
    }),
  };
}

/** Returns whether the files must have log-probabilities of the current policy. */
export function logprobsOf(subjects: readonly Subject[]): 'required' | 'optional' {
  return subjects.some(({ variable }) => variable === 'logprob') ? 'required' : 'optional';
}

/** Returns the names of the files of a shard, each once. */
export function filesOf(sources: Sources): string[] {
  return [...new Set(sources.map((source) => (typeof source === 'string' ? source : source.file)))];
}
