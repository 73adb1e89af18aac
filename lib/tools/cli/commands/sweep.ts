// `policy-loss sweep`: computes one loss or algorithm on the same rollouts for every combination of option values.
import type { Command } from 'commander';
import { LossError } from '../../../index.js';
import { evaluateFiles } from '../../parts/index.js';
import { version } from '../about.js';
import { product, valuesOfWord } from '../grid.js';
import { computeOnQueue, isSubmitted, type SubmittingOptions, submittingOptions } from '../queue-run.js';
import { checkWritable, REPORT_OPTION, writePage } from '../report-file.js';
import { rolloutsCommand, runOnRollouts } from '../rollouts-command.js';
import { settingOf } from '../settings.js';
import { printableSweep, sweepOf } from '../sweep-result.js';
import { makeSubject, optionsOf, type TypedSubject, typedSubject } from '../typed-subjects.js';
import { asksForHelp, type TypedOption, wordsOf } from '../words.js';

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
      'Computes a loss or an algorithm on rollout files, once for every combination of option values.',
    options: [
      REPORT_OPTION('write an HTML page that plots the loss and its metrics over the values').conflicts(
        'queue',
      ),
      ...submittingOptions(),
    ],
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
        await computeOnQueue(patterns, options, all, command, printableSweep);
        return;
      }
      const { report } = options;
      await checkWritable(report);
      const subjects = await Promise.all(all.map((one) => makeSubject(one, command)));
      await runOnRollouts(patterns, options, [typed], {}, async (run) => {
        const result = await evaluateFiles(run.files, subjects, run.settings);
        if (report !== undefined) {
          const { sweepPage } = await import('../report/sweep-page.js');
          await writePage(report, sweepPage({ ...sweepOf(result, run.skipped), files: run.files, version }));
        }
        return printableSweep(result, run.skipped);
      });
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
  'sweep rollouts.jsonl --loss ppo --clip-range 0.1:0.4:0.05 --report out.html',
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
