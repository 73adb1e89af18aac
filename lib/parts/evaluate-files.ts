// Evaluates losses and algorithms on the rows of files. Rows that fit into one part are computed as one batch. More
// rows take two passes over the files. The first pass counts all rows and prepares their advantages. The second pass
// computes part by part, with the counts of all rows as normalizer, and adds up the results.
import { LossError } from '../index.js';
import { type RolloutPart, type StreamOptions, streamRollouts } from '../rollouts/index.js';
import { PartComputer, type PartWatcher } from './part-computer.js';
import type { Subject } from './subject.js';
import { Survey, wholeOf } from './survey.js';
import { type SubjectEvaluation, SubjectTotal } from './total.js';

/** How files are read and computed. */
export interface EvaluationSettings {
  /** Column names, columns needed in addition to the subjects', and what to do with bad rows. */
  read: Pick<StreamOptions, 'rename' | 'backend' | 'columns' | 'keep' | 'skipBadRows' | 'onBadRow'>;
  /** The most tokens of one part. */
  batchTokens: number;
  /** Where to compute; 'cpu' by default. */
  device?: string;
  progress: EvaluationProgress;
}

/** A receiver of progress reports. */
export interface EvaluationProgress {
  /** @param what the stage that begins, in one word. */
  begin(what: string): void;
  /**
   * @param share of the stage that is done, from 0 to 1.
   * @param rows the number of rows done.
   * @param tokens the number of tokens done.
   */
  advance(share: number, rows: number, tokens: number): void;
}

/** The results for all rows of the files. */
export interface FilesEvaluation<S extends Subject = Subject> {
  /** In the order of the subjects. */
  subjects: SubjectEvaluation<S>[];
  rows: number;
  /** Unmasked tokens. */
  tokens: number;
  /** The number of parts that the rows came in. */
  parts: number;
}

/**
 * Evaluates subjects on the rows of files. Every subject is computed on a part before the next part is read.
 * @param watch receives every part with its gradients. Without it, gradients are discarded after each part.
 * @throws LossError about the files or the subjects, and `ERR_INVALID_OPTION` (option batchTokens) if a subject needs
 * all rows at once and they do not fit into one part.
 */
export async function evaluateFiles<S extends Subject>(
  files: readonly string[],
  subjects: readonly S[],
  settings: EvaluationSettings,
  watch?: PartWatcher,
): Promise<FilesEvaluation<S>> {
  const { progress } = settings;
  const totals = subjects.map((subject) => new SubjectTotal(subject));
  const computer = new PartComputer(files, totals, settings.device, watch);
  const options: StreamOptions = {
    ...settings.read,
    columns: [...(settings.read.columns ?? []), ...subjects.flatMap(({ columns }) => columns)],
    maxTokens: settings.batchTokens,
    evenRows: subjects.some(({ pairs }) => pairs),
  };

  progress.begin('reading');
  const found = await readOrSurvey(files, subjects, settings, options, computer);
  progress.begin('computing');
  if (!(found instanceof Survey)) {
    const { rows, tokens } = found;
    await computer.compute(found, wholeOf(found), (share) => progress.advance(share, rows, tokens));
    return { subjects: totals.map((total) => total.finish()), rows, tokens, parts: 1 };
  }

  let parts = 0;
  let rows = 0;
  let tokens = 0;
  // The first pass has already reported the bad rows.
  for await (const part of streamRollouts(files, { ...options, onBadRow: () => {} })) {
    if (part.first + part.rows > found.rows) break;
    await computer.compute(part, found, (share) =>
      progress.advance((rows + share * part.rows) / found.rows, rows, tokens),
    );
    parts++;
    rows += part.rows;
    tokens += part.tokens;
  }
  if (rows !== found.rows || tokens !== found.tokens)
    throw new LossError('ERR_INVALID_INPUT', {
      at: files.join(', '),
      expected: 'the same rows on a second reading',
      received: 'other rows',
      hint: (spell) => `A file that cannot be read twice must fit into ${spell('batchTokens')}`,
    });
  return { subjects: totals.map((total) => total.finish()), rows, tokens, parts };
}

/** Reads the files once. Returns the only part, or the survey of several. */
async function readOrSurvey(
  files: readonly string[],
  subjects: readonly Subject[],
  settings: EvaluationSettings,
  options: StreamOptions,
  computer: PartComputer,
): Promise<RolloutPart | Survey> {
  const parts = streamRollouts(files, {
    ...options,
    onProgress: ({ bytes, totalBytes, rows, tokens }) =>
      settings.progress.advance(totalBytes > 0 ? bytes / totalBytes : 0, rows, tokens),
  });
  const first: RolloutPart = (await parts.next()).value;
  const second = await parts.next();
  if (second.done) return first;
  await computer.check(first);
  const survey = new Survey(subjects, first.batch, settings.batchTokens);
  await survey.add(first);
  await survey.add(second.value);
  for await (const part of parts) await survey.add(part);
  await survey.settle();
  return survey;
}
