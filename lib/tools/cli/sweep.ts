// `policy-loss sweep`: computes one loss or algorithm on the same rollouts for every combination of option values.
import type { Command } from 'commander';
import { LossError, type Metrics } from '../../index.js';
import { evaluateFiles, type FilesEvaluation } from '../parts/index.js';
import { product, valuesOfWord } from './grid.js';
import { countsOf, csv, inLines, type Printable, readable, styled, table, type Value } from './output.js';
import { computeOnQueue, isSubmitted, type SubmittingOptions, submittingOptions } from './queue-run.js';
import { rolloutsCommand, runOnRollouts } from './rollouts-command.js';
import { settingOf } from './settings.js';
import {
  makeSubject,
  optionsOf,
  type TitledSubject,
  type TypedSubject,
  typedSubject,
} from './typed-subjects.js';
import { asksForHelp, type TypedOption, wordsOf } from './words.js';

/** The result of `policy-loss sweep`, as `--json` prints it: with strings such as "NaN" for non-finite numbers. */
export interface Sweep {
  /** The name of the policy loss or algorithm. */
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

/** The largest number of combinations that `sweep` computes. A larger grid is probably a typing error. */
const MOST_POINTS = 10_000;

/**
 * Adds the command `sweep` to the command-line program.
 * @param words the arguments of the command line.
 * @returns the arguments that commander must parse.
 * @throws LossError for an unknown loss, algorithm or option, for invalid lists or ranges of values, and if the
 * arguments do not name exactly one loss or algorithm.
 */
export function addSweep(program: Command, words: readonly string[]): readonly string[] {
  const command = rolloutsCommand(program, {
    name: 'sweep',
    summary: 'compute a loss or an algorithm for many option values',
    description:
      'Computes a policy loss or an algorithm on rollout files, once for every combination of option values.',
    options: submittingOptions(),
    help: HELP,
    examples: EXAMPLES,
  });
  if (words[0] !== command.name()) return words;
  const { typed, left } = typedSubject(command, words, (word) => word.split(',', 1)[0]!);
  if (asksForHelp(words)) for (const option of typed?.options ?? []) command.addOption(option);
  else if (typed) {
    const points = pointsOf(axesOf(typed));
    command.action(async (patterns: string[], options: SubmittingOptions) => {
      const all = points.map((point) => ({
        ...typed,
        typed: point,
        options: optionsOf(typed, wordsOf(point), command),
      }));
      if (isSubmitted(options)) {
        await computeOnQueue(patterns, options, all, command, printable);
        return;
      }
      const subjects = await Promise.all(all.map((one) => makeSubject(one, command)));
      await runOnRollouts(patterns, options, [typed], {}, async (run) =>
        printable(await evaluateFiles(run.files, subjects, run.settings), run.skipped),
      );
    });
  }
  return left;
}

const HELP = `\
Every option of the loss or algorithm accepts several values, separated by commas: names, numbers, and ranges
start:end:step that include both ends. For a switch, write --enable-mask-clip=true,false. The sweep computes all
combinations, at most ${MOST_POINTS}. 'policy-loss evaluate --loss NAME --help' lists the options. The numbers of an
expression are swept with --set: --set low=0.1:0.3:0.05.`;

const EXAMPLES = [
  'sweep rollouts.jsonl --loss ppo --clip-range 0.1:0.4:0.05',
  'sweep rollouts.jsonl --loss ppo --clip-range 0.1,0.2,0.4 --loss-agg-mode token-mean,seq-mean-token-mean --csv',
  'sweep rollouts.jsonl --loss cispo --clip-range-high 0.2:0.4:0.1 --enable-mask-clip=true,false',
  'sweep rollouts.parquet --algorithm grpo --kl-loss-fn k1,k2,k3 --kl-coef 0.001,0.01 --json',
  'sweep rollouts.jsonl --algorithm grpo --advantage-fn grpo,rloo,opmd',
  "sweep 'rollouts/*.jsonl' --loss ppo --clip-range 0.1,0.2 --queue redis://host:6379 --parts /shared/parts",
  "sweep rollouts.jsonl --loss-expr 'max(-A*r, -A*clip(r, 1-low, 1+low))' --set low=0.1:0.3:0.05",
];

/** One axis of the grid: an option with each of its values, as a user would type it. */
type Axis = readonly TypedOption[];

function axesOf({ typed }: TypedSubject): Axis[] {
  // If an option appears twice, the last one wins.
  const last = new Map(typed.map((one) => [settingOf(one).name, one]));
  return [...last.values()].map((one) => {
    const { option, flag } = one;
    const { name, prefix, value } = settingOf(one);
    if (value === undefined) return [one];
    const values = valuesOfWord(prefix === '' ? flag : `${flag} ${name}`, value, MOST_POINTS);
    if (option.required) return values.map((value) => ({ option, flag, value: prefix + value }));
    return values.map((value) => {
      if (value === 'true') return { option, flag };
      if (value === 'false') return { option, flag: flag.replace(/^--(no-)?/, '--no-') };
      throw new LossError('ERR_INVALID_OPTION', {
        at: flag,
        expected: 'true or false for a switch',
        received: `'${value}'`,
      });
    });
  });
}

function pointsOf(axes: readonly Axis[]): TypedOption[][] {
  const count = axes.reduce((count, axis) => count * axis.length, 1);
  if (count > MOST_POINTS)
    throw new LossError('ERR_INVALID_OPTION', {
      expected: `at most ${MOST_POINTS} combinations`,
      received: `${axes.map(({ length }) => length).join(' × ')} = ${count}`,
    });
  if (count === 1)
    throw new LossError('ERR_INVALID_OPTION', {
      expected:
        'an option with several values, such as --clip-range 0.1:0.4:0.05 or --loss-agg-mode ' +
        'token-mean,seq-mean-token-mean',
      received: 'options with one value each',
      hint: "Use 'policy-loss evaluate' for one combination",
    });
  return product(axes);
}

/**
 * Returns the result of `sweep` in its printed forms.
 * @param skipped the number of invalid rows that were skipped; undefined without --skip-bad-rows.
 */
export function printable(
  { subjects, rows, tokens, parts }: FilesEvaluation<TitledSubject>,
  skipped: number | undefined,
): Printable {
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
  const sweep: Sweep = {
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
  const metrics = [...new Set(sweep.points.flatMap((point) => Object.keys(point.metrics)))];
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
  return [styled('dim', ['The same at every point:', ...inLines(list, ',', 100)].join('\n'))];
}

function asValue(value: unknown): Value {
  return typeof value === 'number' ? value : String(value);
}
