import type { Metrics } from '../../index.js';
import type { FilesEvaluation } from '../parts/index.js';
import { inLines, widthOf } from './lines.js';
import { countsOf, csv, type Printable, readable, styled, table, type Value } from './output.js';
import type { TitledSubject } from './typed-subjects.js';

/** The result of `policy-loss sweep`, as `--json` prints it: with strings such as "NaN" for non-finite numbers. */
export interface Sweep {
  /** The name of the loss or algorithm. */
  name: string;
  /** The options that have several values (the axes of the grid), and the list of values of each. */
  axes: Record<string, unknown[]>;
  /**
   * The result for each combination of values. From one point to the next, the value of the last axis changes fastest.
   */
  points: SweepPoint[];
  rows: number;
  /** The number of unmasked tokens in all rows. */
  tokens: number;
  /** The number of parts in which the rows were computed; absent if there was only one part. */
  batches?: number;
  /** The number of invalid rows that were skipped; absent without --skip-bad-rows. */
  skipped?: number;
}

/** One combination of option values, and its result. */
export interface SweepPoint {
  /** The values of the options in Sweep.axes that this result was computed with. */
  options: Record<string, unknown>;
  loss: number;
  gradNorm: number;
  metrics: Partial<Metrics>;
}

/**
 * Returns the result of a sweep.
 * @param skipped the number of invalid rows that were skipped; undefined without --skip-bad-rows.
 */
export function sweepOf(
  { subjects, rows, tokens, parts }: FilesEvaluation<TitledSubject>,
  skipped: number | undefined,
): Sweep {
  const options = Object.keys(subjects[0]!.subject.given);
  const axes = Object.fromEntries(
    options
      .map(
        (name) =>
          [name, [...new Set(subjects.map(({ subject }) => subject.given[name]))]] as [string, unknown[]],
      )
      .filter(([, values]) => values.length > 1),
  );
  const names = Object.keys(axes);
  return {
    name: subjects[0]!.subject.name,
    axes,
    points: subjects.map(({ subject, loss, gradNorm, metrics }) => ({
      options: Object.fromEntries(names.map((name) => [name, subject.given[name]])),
      loss,
      gradNorm,
      metrics,
    })),
    rows,
    tokens,
    ...(parts > 1 && { batches: parts }),
    ...(skipped !== undefined && { skipped }),
  };
}

/** Returns the result of `sweep` in its printed forms. */
export function printableSweep(
  result: FilesEvaluation<TitledSubject>,
  skipped: number | undefined,
): Printable {
  const sweep = sweepOf(result, skipped);
  const names = Object.keys(sweep.axes);
  const all = new Set(sweep.points.flatMap((point) => Object.keys(point.metrics)));
  // A metric with this name is the loss itself.
  const metrics = [...all].filter((name) => name !== 'loss');
  const lines = (metrics: readonly string[]) =>
    sweep.points.map((point): Value[] => [
      ...names.map((name) => asValue(point.options[name])),
      point.loss,
      point.gradNorm,
      ...metrics.map((name) => point.metrics[name]),
    ]);
  return {
    json: () => sweep,
    csv: () => csv([...names, 'loss', 'gradNorm', ...metrics], lines(metrics)),
    text: () => {
      const varying = metrics.filter((name) => new Set(sweep.points.map((p) => p.metrics[name])).size > 1);
      return [
        table([...names, 'loss', 'gradient norm', ...varying], lines(varying)),
        ...sameEverywhere(
          sweep.points[0]!,
          metrics.filter((name) => !varying.includes(name)),
        ),
        styled('dim', countsOf(sweep)),
      ].join('\n\n');
    },
  };
}

/**
 * Lists the metrics that are equal at every point of the grid, so that the table need not repeat them in every line.
 */
function sameEverywhere({ metrics }: SweepPoint, names: readonly string[]): string[] {
  if (names.length === 0) return [];
  const list = names.map((name) => `${name} ${readable(metrics[name]!)}`);
  return [
    styled('dim', ['The same at every point:', ...inLines(list, ',', widthOf(process.stdout))].join('\n')),
  ];
}

function asValue(value: unknown): Value {
  return typeof value === 'number' ? value : String(value);
}
