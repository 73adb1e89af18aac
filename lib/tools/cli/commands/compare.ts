// `policy-loss compare`: computes several losses and algorithms on the same rollouts, side by side.
import type { Command } from 'commander';
import { LossError } from '../../../index.js';
import { checkComparable, evaluateFiles } from '../../parts/index.js';
import { printableComparison } from '../comparison-result.js';
import { computeOnQueue, isSubmitted, type SubmittingOptions, submittingOptions } from '../queue-run.js';
import { REPORT_OPTION, reportOn } from '../report-file.js';
import { rolloutsCommand, runOnRollouts } from '../rollouts-command.js';
import { makeSubject, typedSubjects } from '../typed-subjects.js';
import { CHOICES_WITH_VALUES } from '../words.js';

/**
 * Adds the command `compare` to the command-line program.
 * @param words the arguments of the command line.
 * @returns the arguments that commander must parse.
 * @throws LossError for an unknown loss, algorithm or option, and for fewer than two losses or algorithms.
 */
export function addCompare(program: Command, words: readonly string[]): readonly string[] {
  const command = rolloutsCommand(program, {
    name: 'compare',
    summary: 'compare losses and algorithms on the same rollout files',
    description:
      'Computes several losses and algorithms on the same rollout files. Prints their losses, gradient norms, ' +
      'clipped fractions and metrics side by side, and the cosines between their gradients.',
    options: [REPORT_OPTION(), ...submittingOptions()],
    help: HELP,
    examples: EXAMPLES,
  });
  if (words[0] !== command.name()) return words;
  const { subjects: typed, rest } = typedSubjects(command, words.slice(1), 'two or more');
  if (typed.length === 1)
    throw new LossError('ERR_INVALID_OPTION', {
      expected: `two or more of ${CHOICES_WITH_VALUES}`,
      received: `only ${typed[0]!.choice} ${typed[0]!.name}`,
      hint: "Use 'policy-loss evaluate' for one",
    });
  command.action(async (patterns: string[], options: SubmittingOptions) => {
    if (isSubmitted(options)) {
      await computeOnQueue(patterns, options, typed, command, printableComparison, { compares: true });
      return;
    }
    const subjects = await Promise.all(typed.map((one) => makeSubject(one, command)));
    checkComparable(subjects);
    const report = await reportOn(subjects, options.report);
    await runOnRollouts(patterns, options, typed, report?.wanted ?? {}, async (run) => {
      const settings = { ...run.settings, compares: true };
      const result = await evaluateFiles(run.files, subjects, settings, report?.watcher(run.files));
      await report?.write(result);
      return printableComparison(result, run.skipped);
    });
  });
  return [command.name(), ...rest];
}

const HELP = `\
An option belongs to the loss or algorithm before it; options before the first loss or algorithm belong to all of
them. The same loss may appear twice with different options. Losses whose gradients are by different
columns, such as a policy loss and a value loss, cannot be compared. To list the options of a loss, use
'policy-loss evaluate --loss NAME --help'. An expression is shown under its name in --loss-expr 'NAME: EXPRESSION'.`;

const EXAMPLES = [
  'compare rollouts.jsonl --loss ppo --loss gspo --algorithm grpo',
  'compare rollouts.parquet --loss ppo --clip-range 0.1 --loss ppo --clip-range 0.3',
  'compare critic.pkl --loss verl/value --loss trl/value',
  'compare rollouts.jsonl --loss-agg-mode token-mean --loss ppo --loss cispo --loss sapo --csv',
  "compare 'rollouts-*.jsonl' --algorithm grpo --algorithm rloo --config trinity.yaml --report out.html",
  "compare 'rollouts/*.jsonl' --loss ppo --loss gspo --queue redis://host:6379 --parts /shared/parts",
  "compare rollouts.jsonl --loss ppo --loss-expr 'squared: -A*r + beta*square(d)' --set beta=0.1",
];
