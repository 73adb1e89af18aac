// `policy-loss diff`: compares two dumps of the same training step.
import { type Command, InvalidArgumentError, Option } from 'commander';
import type { Metrics } from '../../../index.js';
import { type ColumnDifference, type DumpDiff, diffDumps, type ValueDifference } from '../../diff/index.js';
import { evaluateFiles, type SubjectEvaluation } from '../../parts/index.js';
import { describePlace, expandFiles, type Place } from '../../rollouts/index.js';
import { describePlaces } from '../evidence.js';
import { flagsIn } from '../flags.js';
import { csv, type Printable, styled, table } from '../output.js';
import { type RolloutsOptions, rolloutsCommand, runOnRollouts } from '../rollouts-command.js';
import { visible } from '../streams.js';
import { makeSubject, type TitledSubject, type TypedSubject, typedSubjects } from '../typed-subjects.js';
import { CHOICES } from '../words.js';

/** The result of `policy-loss diff`, as `--json` prints it. */
export interface DiffResult extends DumpDiff {
  tolerance: number;
  /** The losses on both dumps; absent without --loss, --loss-expr, --algorithm and --config. */
  losses?: LossDiff[];
  /** The number of invalid rows that were skipped in both dumps; absent without --skip-bad-rows. */
  skipped?: number;
}

/** The results of a loss or algorithm on both dumps. */
export interface LossDiff {
  name: string;
  /** The options that the command line sets, by their flags without the leading dashes. */
  options: Readonly<Record<string, unknown>>;
  a: LossOnDump;
  b: LossOnDump;
}

/** The result of a loss or algorithm on one dump. */
export interface LossOnDump {
  loss: number;
  gradNorm: number;
  metrics: Partial<Metrics>;
}

interface DiffOptions extends RolloutsOptions {
  by?: string[];
  tolerance: number;
}

/**
 * Adds the command `diff` to the command-line program.
 * @param words the arguments of the command line.
 * @returns the arguments that commander must parse.
 * @throws LossError for an unknown loss, algorithm or option.
 */
export function addDiff(program: Command, words: readonly string[]): readonly string[] {
  const command = rolloutsCommand(program, {
    name: 'diff',
    summary: 'compare two dumps of the same training step',
    description:
      'Compares two dumps of the same step, such as those of two frameworks or of yesterday and today. Prints the first ' +
      'value that differs in each column, the largest differences, and the rows that only one dump has.',
    files: [
      ['<a>', 'the first dump: a file, or a glob pattern for several that are read as one'],
      ['<b>', 'the second dump'],
    ],
    options: [
      new Option(
        '--by <columns>',
        'columns that identify a row, separated by commas; by default task_id,run_id, or the position if a dump lacks them',
      ).argParser((text) => text.split(',').map((name) => name.trim())),
      new Option('--tolerance <number>', 'values are equal if they differ by at most this')
        .default(0)
        .argParser(parseTolerance),
    ],
    help: HELP,
    examples: EXAMPLES,
  });
  if (words[0] !== command.name()) return words;
  // Losses are optional here. Without any, commander alone parses the arguments.
  const named = flagsIn(words).some((flag) => CHOICES.some((choice) => choice === flag));
  const { subjects: typed, rest } = named
    ? typedSubjects(command, words.slice(1), 'one or more')
    : { subjects: [] as TypedSubject[], rest: words.slice(1) };
  command.action(async (a: string, b: string, options: DiffOptions) => {
    const subjects = await Promise.all(typed.map((one) => makeSubject(one, command)));
    const { by, tolerance } = options;
    await runOnRollouts([a, b], options, typed, {}, async (run) => {
      const { settings } = run;
      const dumps = [await expandFiles([a]), await expandFiles([b])] as const;
      settings.progress.begin('comparing');
      const diff = await diffDumps(...dumps, { ...(by && { by }), tolerance, read: settings.read });
      // Losses read the files once more, and skip the same rows.
      const { skipped } = run;
      const results: SubjectEvaluation<TitledSubject>[][] = [];
      if (subjects.length > 0)
        for (const files of dumps) results.push((await evaluateFiles(files, subjects, settings)).subjects);
      const losses = subjects.map((subject, i) => ({
        name: subject.name,
        options: subject.given,
        a: onDump(results[0]![i]!),
        b: onDump(results[1]![i]!),
      }));
      const result: DiffResult = {
        ...diff,
        tolerance,
        ...(losses.length > 0 && { losses }),
        ...(skipped !== undefined && { skipped }),
      };
      return printable(result, {
        titles: subjects.map(({ title }) => title),
        isSingle: dumps.every((files) => files.length === 1),
      });
    });
  });
  return [command.name(), ...rest];
}

const HELP = `\
With --loss, --loss-expr, --algorithm or --config, which may occur several times, their losses are printed side by side.
Values that are masked in both dumps are not compared. Of rows with different lengths, the tokens that both have are.`;

const EXAMPLES = [
  'diff step_7_yesterday.jsonl step_7_today.jsonl',
  "diff 'trinity/*.jsonl' 'verl/*.parquet' --by uid --tolerance 1e-6",
  'diff a.jsonl b.jsonl --loss ppo --loss gspo --json',
];

function parseTolerance(text: string): number {
  const value = Number(text);
  if (text.trim() === '' || !(value >= 0)) throw new InvalidArgumentError('Expected a number of at least 0.');
  return value;
}

function onDump({ loss, gradNorm, metrics }: SubjectEvaluation): LossOnDump {
  return { loss, gradNorm, metrics };
}

/** What the tables need in addition to the result. */
interface Shown {
  titles: readonly string[];
  /** Whether each dump is a single file. Then the places of values need not name the file. */
  isSingle: boolean;
}

function printable(result: DiffResult, shown: Shown): Printable {
  return {
    json: () => result,
    csv: () =>
      csv(
        [
          'column',
          'compared',
          'differing',
          'rows',
          'meanAbs',
          'maxAbs',
          'first',
          'firstA',
          'firstB',
          'largest',
          'largestA',
          'largestB',
        ],
        result.columns.map(({ column, compared, differing, rows, meanAbs, maxAbs, first, largest }) => [
          ...[column, compared, differing, rows, meanAbs, maxAbs],
          ...[first && where(first), first?.a, first?.b, largest && where(largest), largest?.a, largest?.b],
        ]),
      ),
    text: () => describe(result, shown),
  };
}

/** Returns the place of a value, such as 'a.jsonl, line 3, token 7'. */
function where({ placeA, token }: ValueDifference): string {
  return token === undefined ? describePlace(placeA) : `${describePlace(placeA)}, token ${token + 1}`;
}

function describe(result: DiffResult, { titles, isSingle }: Shown): string {
  const { columns, equal, tolerance, losses = [] } = result;
  const place = (text: string, { file }: Place) =>
    isSingle ? text.replace(`${describePlace({ file })}, `, '') : text;
  const inA = (value: ValueDifference) => place(where(value), value.placeA);
  const differing = columns.filter((column) => column.differing > 0);
  const blocks: string[] = [];
  if (differing.length > 0)
    blocks.push(
      table(
        [
          'largest differences',
          'values',
          'differing',
          'rows',
          'mean |a − b|',
          'max |a − b|',
          'a',
          'b',
          'place in a',
        ],
        differing.map(({ column, compared, differing, rows, meanAbs, maxAbs, largest }) => [
          ...[column, compared, differing, rows, meanAbs, maxAbs, largest!.a, largest!.b, inA(largest!)],
        ]),
      ),
      table(
        ['first difference', 'a', 'b', 'place in a', 'row in b'],
        differing
          .map(({ column, first }) => ({ column, first: first! }))
          .map(({ column, first: { a, b, ...first } }) => [
            ...[column, a, b, inA({ a, b, ...first }), place(describePlace(first.placeB), first.placeB)],
          ]),
      ),
    );
  blocks.push(verdict(result, differing));
  if (losses.length > 0)
    blocks.push(
      table(
        ['', 'a', 'b', 'b − a'],
        losses.flatMap(({ a, b }, i) => [
          [`loss of ${titles[i]}`, a.loss, b.loss, b.loss - a.loss],
          ['gradient norm', a.gradNorm, b.gradNorm, b.gradNorm - a.gradNorm],
        ]),
      ),
    );
  blocks.push(styled('dim', counts(result)));
  if (equal && tolerance > 0) blocks.push(styled('dim', `Differences up to ${tolerance} are not shown.`));
  return blocks.filter((block) => block !== '').join('\n\n');
}

function verdict(result: DiffResult, differing: readonly ColumnDifference[]): string {
  const { onlyInA, onlyInB, columnsOnlyInA, columnsOnlyInB, equal } = result;
  const lines = equal
    ? ['The values of all common columns are equal.']
    : [differing.length === 0 ? 'The values of all common rows and columns are equal.' : ''];
  for (const [name, { count, first }] of [
    ['a', onlyInA],
    ['b', onlyInB],
  ] as const)
    if (count > 0) lines.push(`Rows only in ${name}: ${count} (${describePlaces({ count, first })})`);
  const advice = adviceOn(result);
  if (advice !== undefined) lines.push(advice);
  if (columnsOnlyInA.length > 0) lines.push(`Columns only in a: ${columnsOnlyInA.join(', ')}`);
  if (columnsOnlyInB.length > 0) lines.push(`Columns only in b: ${columnsOnlyInB.join(', ')}`);
  return lines
    .filter((line) => line !== '')
    .map(visible)
    .join('\n');
}

/** Returns advice if the rows seem to be aligned wrongly. */
function adviceOn({ rows, alignedBy, columns }: DiffResult): string | undefined {
  if (rows === 0) return 'No row has a partner. Use --by to align the rows by other columns.';
  const lengths = columns.find(({ column }) => column === 'length')!.differing;
  if (alignedBy !== 'position' || lengths <= rows / 2) return undefined;
  return 'Most rows differ in length, so they are probably in another order. Use --by to align them by ids.';
}

function counts({ rows, alignedBy, skipped }: DiffResult): string {
  const by = alignedBy === 'position' ? 'their position' : alignedBy.join(', ');
  return `${rows} rows in both, aligned by ${by}${skipped === undefined ? '' : `, ${skipped} rows skipped`}`;
}
