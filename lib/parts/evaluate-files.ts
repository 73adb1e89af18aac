// Evaluates policy losses and algorithms on the rows of files. The rows are read in parts of limited size. If all rows
// fit into one part, they are computed as one batch. Otherwise the files are read twice. The first pass counts all rows
// and prepares their advantages. The second pass computes part by part, with the counts of all rows as normalizer, and
// adds up the results.
import { LossError } from '../index.js';
import { type RolloutPart, type StreamOptions, streamRollouts } from '../rollouts/index.js';
import { STDIN } from '../rollouts/source.js';
import { type OnNonFinite, PartComputer, type PartWatcher } from './part-computer.js';
import type { Subject } from './subject.js';
import { Survey, wholeOf } from './survey.js';
import { type SubjectEvaluation, SubjectTotal } from './total.js';

/** How to read and compute the rows of the files. */
export interface EvaluationSettings {
  /**
   * How to read rows: the columns' names, the columns to read in addition to those that the subjects need, the largest
   * row, and what to do with bad and with doubtful rows.
   */
  read: Omit<StreamOptions, 'maxTokens' | 'evenRows' | 'onProgress'>;
  /** The capacity of a part, in tokens; see StreamOptions.maxTokens. */
  batchTokens: number;
  /** The device on which to compute; 'cpu' by default. */
  device?: string;
  progress: EvaluationProgress;
  /** Is called at most once: for the first loss or gradient that is not finite. */
  onNonFinite?: OnNonFinite;
}

/** Receives reports on the progress of an evaluation. */
export interface EvaluationProgress {
  /**
   * Called when a stage begins.
   * @param what the stage, in one word: 'reading' or 'computing'.
   */
  begin(what: string): void;
  /**
   * Called when the current stage has advanced.
   * @param share the fraction of the stage that is done, from 0 to 1.
   * @param rows the number of rows that are done.
   * @param tokens the number of tokens that are done.
   */
  advance(share: number, rows: number, tokens: number): void;
}

/** The results over all rows of the files. */
export interface FilesEvaluation<S extends Subject = Subject> {
  /** The results of each subject, in the order in which evaluateFiles() got the subjects. */
  subjects: SubjectEvaluation<S>[];
  rows: number;
  /** The number of unmasked tokens. */
  tokens: number;
  /** The number of parts into which the rows were divided. */
  parts: number;
}

/**
 * Evaluates subjects (policy losses and algorithms) on the rows of files. All subjects are computed on a part before
 * the next part is read.
 * @param watch receives every part with its gradients. Without it, the gradients are discarded after each part.
 * @throws LossError about the files or the subjects. It is `ERR_INVALID_OPTION` for the option batchTokens if a subject
 * needs all rows at once and they do not fit into one part.
 */
export async function evaluateFiles<S extends Subject>(
  files: readonly string[],
  subjects: readonly S[],
  settings: EvaluationSettings,
  watch?: PartWatcher,
): Promise<FilesEvaluation<S>> {
  const { progress } = settings;
  const totals = subjects.map((subject) => new SubjectTotal(subject));
  const computer = new PartComputer(files, totals, settings, watch);
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
  // The first pass has already reported bad rows and warnings, so the second pass does not report them again.
  const silent: StreamOptions = { ...options, onBadRow: () => {}, onWarning: () => {} };
  for await (const part of streamRollouts(files, silent)) {
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

/** Reads the files once. Returns the rows if they fit into one part; otherwise returns a survey of all parts. */
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
  if (files.includes(STDIN))
    throw new LossError('ERR_INVALID_OPTION', {
      at: 'standard input',
      option: 'batchTokens',
      expected: 'a number that all rows fit into, because standard input cannot be read twice',
      received: String(settings.batchTokens),
    });
  await computer.check(first);
  const survey = new Survey(subjects, first.batch, settings.batchTokens);
  await survey.add(first);
  await survey.add(second.value);
  for await (const part of parts) await survey.add(part);
  await survey.settle();
  return survey;
}
