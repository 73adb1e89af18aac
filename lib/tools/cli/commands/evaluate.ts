// `policy-loss evaluate`: computes a loss or an algorithm on rollout files.
import { type Command, Option } from 'commander';
import { LossError } from '../../../index.js';
import {
  compareMicroBatches,
  evaluateFiles,
  type MicroBatchComparison,
  type PartWatcher,
} from '../../parts/index.js';
import { printableEvaluation } from '../evaluation-result.js';
import { EXPRESSION_HELP } from '../expression-options.js';
import { parseCount } from '../numbers.js';
import { computeOnQueue, isSubmitted, type SubmittingOptions, submittingOptions } from '../queue-run.js';
import { REPORT_OPTION, reportOn } from '../report-file.js';
import { rolloutsCommand, runOnRollouts } from '../rollouts-command.js';
import { makeSubject, type TitledSubject, typedSubject } from '../typed-subjects.js';

/**
 * Adds the command `evaluate` to the command-line program.
 * @param words the arguments of the command line. They name a loss or an algorithm, and the command gets its options.
 * @returns the arguments that commander must parse.
 * @throws LossError if the arguments name an unknown loss, algorithm or option, or not exactly one loss or algorithm.
 */
export function addEvaluate(program: Command, words: readonly string[]): readonly string[] {
  const command = rolloutsCommand(program, {
    name: 'evaluate',
    summary: 'compute a loss or an algorithm on rollout files',
    description:
      "Computes a loss or an algorithm's objective on rollout files. Prints the loss, its metrics and its gradient norm.",
    options: [REPORT_OPTION(), MICRO_BATCHES_OPTION().conflicts('queue'), ...submittingOptions()],
    help: HELP,
    examples: EXAMPLES,
  });
  if (words[0] !== command.name()) return words;
  const { typed, left } = typedSubject(command, words);
  for (const option of typed?.options ?? []) command.addOption(option);
  command.action(async (patterns: string[], options: EvaluateOptions) => {
    if (isSubmitted(options)) {
      await computeOnQueue(patterns, options, [typed!], command, (merged, skipped, quiet) =>
        printableEvaluation(merged, skipped, quiet),
      );
      return;
    }
    const subject = await makeSubject(typed!, command);
    const report = await reportOn([subject], options.report);
    await runOnRollouts(patterns, options, [typed!], report?.wanted ?? {}, async (run) => {
      const divided = microBatchesOf(subject, options);
      const watchers = [report?.watcher(run.files), divided?.watch].filter(
        (watcher) => watcher !== undefined,
      );
      const watch: PartWatcher = async (part, results) => {
        for (const watcher of watchers) await watcher(part, results);
      };
      const result = await evaluateFiles(
        run.files,
        [subject],
        run.settings,
        watchers.length > 0 ? watch : undefined,
      );
      await report?.write(result);
      return printableEvaluation(result, run.skipped, options.quiet === true, divided?.result);
    });
  });
  return left;
}

interface EvaluateOptions extends SubmittingOptions {
  microBatches?: number;
}

const MICRO_BATCHES_OPTION = () =>
  new Option(
    '--micro-batches <number>',
    'also compute the rows in this many micro-batches, weighed in the way of each trainer',
  ).argParser(parseCount);

// Computes the rows in micro-batches, if that is asked for, when they have been read.
function microBatchesOf(
  subject: TitledSubject,
  { microBatches, device }: EvaluateOptions,
): { watch: PartWatcher; result?: MicroBatchComparison } | undefined {
  if (microBatches === undefined) return undefined;
  const divided: { watch: PartWatcher; result?: MicroBatchComparison } = {
    async watch(part) {
      if (divided.result)
        throw new LossError('ERR_INVALID_OPTION', {
          option: 'batchTokens',
          expected: 'a number that all rows fit into, because micro-batches are cut from the whole batch',
          received: 'rows in several parts',
        });
      divided.result = await compareMicroBatches(subject, part, microBatches, device);
    },
  };
  return divided;
}

const HELP = `\
Give exactly one of --loss, --loss-expr, --algorithm and --config.

Options of a loss are written in kebab case: clip_range_low is --clip-range-low. --no-NAME turns a switch --NAME off.
An algorithm has the options of its policy loss, the options of its advantage function with the prefix 'advantage-'
(--advantage-std-threshold), and options for the names of its functions (--kl-loss-fn) and their coefficients
(--kl-coef). With --config, the file sets all of these, and docs/configurations.md lists the keys that count. To list
the options with their defaults, add --help to --loss NAME or --algorithm NAME.

${EXPRESSION_HELP}`;

const EXAMPLES = [
  'evaluate rollouts.jsonl --loss ppo',
  'evaluate rollouts.jsonl --loss ppo --clip-range-low 0.2 --clip-range-high 0.28',
  "evaluate 'runs/*/rollouts-*.parquet' --loss gspo --json",
  'evaluate pairs.jsonl --loss dpo --beta 0.05',
  'evaluate critic.pkl --loss verl/value --cliprange-value 0.2',
  'evaluate preferences.parquet --loss trl/reward --column chosen_reward=score_chosen --column rejected_reward=score_rejected',
  'evaluate rollouts.jsonl.gz --algorithm grpo --report out.html',
  'evaluate rollouts.jsonl --algorithm grpo --kl-loss-fn k3 --kl-coef 0.01 --advantage-std-threshold 0.01',
  'evaluate rollouts.jsonl --loss ppo --micro-batches 8',
  'evaluate rollouts.jsonl --algorithm rloo --policy-loss-fn cispo --clip-range-high 0.3 --csv',
  'evaluate batch.safetensors --loss sapo --column logprobs=lp --device cuda',
  'evaluate rollouts.jsonl --config trinity.yaml --skip-bad-rows',
  'evaluate rollouts.jsonl --config grpo-config.json --framework trl/grpo',
  "evaluate rollouts.jsonl --loss-expr 'max(-A*r, -A*clip(r, 1-low, 1+high))' --set low=0.2 --set high=0.28",
  'evaluate rollouts.jsonl --loss-file my-loss.mjs --loss my_loss',
  "evaluate 'rollouts/*.jsonl' --algorithm grpo --queue redis://host:6379 --parts /shared/parts",
];
