import type { Metrics } from '../../index.js';
import type { AlgorithmFunctions, FilesEvaluation, SubjectEvaluation } from '../parts/index.js';
import { type Cell, countsOf, csv, type Printable, readable, styled, table } from './output.js';
import type { TitledSubject } from './typed-subjects.js';

/** The result of `policy-loss compare`, as `--json` prints it: with strings such as "NaN" for non-finite numbers. */
export interface Comparison {
  /** The result of each loss and algorithm (subject), in the order of the command line. */
  subjects: ComparedSubject[];
  /**
   * cosines[i][j] is the cosine of the angle between the gradients of the subjects i and j. It is null if one of the
   * gradients is 0.
   */
  cosines: (number | null)[][];
  rows: number;
  /** The number of unmasked tokens in all rows. */
  tokens: number;
  /** The number of parts in which the rows were computed; absent if there was only one part. */
  batches?: number;
  /** The number of invalid rows that were skipped; absent without --skip-bad-rows. */
  skipped?: number;
}

/** The result of one loss or algorithm. */
export interface ComparedSubject {
  name: string;
  /** The options that the command line sets for this loss or algorithm, by their flags without the leading dashes. */
  options: Readonly<Record<string, unknown>>;
  loss: number;
  gradNorm: number;
  /**
   * The fraction of tokens that the loss clips. A loss that also trains on experts' rows counts only the tokens of the
   * policy's own rows. Absent if the loss has no such metric.
   */
  clipFraction?: number;
  metrics: Partial<Metrics>;
  /** Where the advantages come from, as in Evaluation.advantages: 'given', or the name of an advantage function. */
  advantages?: string;
  algorithm?: AlgorithmFunctions;
}

/**
 * Returns the result of `compare` in its printed forms.
 * @param skipped the number of invalid rows that were skipped; undefined without --skip-bad-rows.
 */
export function printableComparison(
  { subjects, cosines, rows, tokens, parts }: FilesEvaluation<TitledSubject>,
  skipped: number | undefined,
): Printable {
  const comparison: Comparison = {
    subjects: subjects.map(comparedSubject),
    cosines: cosines!,
    rows,
    tokens,
    ...(parts > 1 && { batches: parts }),
    ...(skipped !== undefined && { skipped }),
  };
  const titles = distinct(subjects.map(({ subject }) => subject.title));
  return {
    json: () => comparison,
    csv: () => inCsv(comparison, titles),
    text: () => describe(comparison, titles),
  };
}

function comparedSubject({
  subject,
  loss,
  metrics,
  gradNorm,
  advantages,
}: SubjectEvaluation<TitledSubject>): ComparedSubject {
  const clipFraction = CLIP_FRACTIONS.map((name) => metrics[name]).find((value) => value !== undefined);
  return {
    name: subject.name,
    options: subject.given,
    loss,
    gradNorm,
    ...(clipFraction !== undefined && { clipFraction }),
    metrics,
    ...(advantages !== undefined && { advantages }),
    ...(subject.functions && { algorithm: subject.functions }),
  };
}

const CLIP_FRACTIONS = ['pg_clipfrac', 'usual/pg_clipfrac'];

/** Returns the names of all metrics. The metrics that most losses and algorithms have come first. */
function metricNames(subjects: readonly ComparedSubject[]): string[] {
  const having = new Map<string, number>();
  for (const { metrics } of subjects)
    for (const name of Object.keys(metrics)) having.set(name, (having.get(name) ?? 0) + 1);
  // A metric with this name is the loss itself.
  having.delete('loss');
  return [...having].sort(([, a], [, b]) => b - a).map(([name]) => name);
}

function inCsv({ subjects, cosines, rows, tokens }: Comparison, titles: readonly string[]): string {
  const names = metricNames(subjects);
  return csv(
    [
      ...['name', 'loss', 'gradNorm', 'clipFraction', 'rows', 'tokens'],
      ...names,
      ...titles.map((title) => `cosine ${title}`),
    ],
    subjects.map(({ loss, gradNorm, clipFraction, metrics }, i) => [
      ...[titles[i], loss, gradNorm, clipFraction, rows, tokens],
      ...names.map((name) => metrics[name]),
      ...cosines[i]!.map((cosine) => cosine ?? undefined),
    ]),
  );
}

function describe(comparison: Comparison, titles: readonly string[]): string {
  const { subjects, cosines } = comparison;
  // Each option gets a line of its own, which keeps the columns of the table narrow.
  const heads = titles.map((title) => title.split(/ (?=--)/));
  const line = (name: string, of: (subject: ComparedSubject) => Cell): Cell[] => [name, ...subjects.map(of)];
  const advantages = (subject: ComparedSubject) => subject.advantages ?? 'none';
  const numbers = table(
    ['', ...heads],
    [
      line('loss', ({ loss }) => loss),
      line('gradient norm', ({ gradNorm }) => gradNorm),
      line('fraction clipped', ({ clipFraction }) => clipFraction),
      ...metricNames(subjects)
        .filter((name) => !CLIP_FRACTIONS.includes(name))
        .map((name) => line(name, ({ metrics }) => metrics[name])),
      line('advantages', advantages),
    ].map((cells) => cells.map((cell) => (typeof cell === 'number' ? readable(cell) : cell))),
    'right',
  );
  const angles = table(
    ['cosine of gradients', ...heads],
    cosines.map((row, i) => [
      heads[i],
      ...row.map((cosine) => (cosine === null ? undefined : cosine.toFixed(4))),
    ]),
    'right',
  );
  return `${numbers}\n\n${angles}\n\n${styled('dim', countsOf(comparison))}`;
}

/** Appends a number to every title that appears more than once: 'ppo (1)', 'ppo (2)'. */
function distinct(titles: readonly string[]): string[] {
  return titles.map((title, i) => {
    if (titles.filter((other) => other === title).length === 1) return title;
    return `${title} (${titles.slice(0, i + 1).filter((other) => other === title).length})`;
  });
}
