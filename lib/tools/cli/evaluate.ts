// `policy-loss evaluate`: computes a policy loss or an algorithm on rollout files.
import { type Command, Option } from 'commander';
import { LossError, type Metrics } from '../../index.js';
import {
  type AlgorithmFunctions,
  compareMicroBatches,
  evaluateFiles,
  type FilesEvaluation,
  type MicroBatchComparison,
  type PartWatcher,
  type SubjectEvaluation,
} from '../parts/index.js';
import { EXPRESSION_HELP } from './expression-options.js';
import { csv, type Printable, readable, styled, table, twoColumns, type Value } from './output.js';
import { computeOnQueue, isSubmitted, type SubmittingOptions, submittingOptions } from './queue-run.js';
import { REPORT_OPTION, reportOn } from './report-file.js';
import { parseCount, rolloutsCommand, runOnRollouts } from './rollouts-command.js';
import { makeSubject, type TitledSubject, typedSubject } from './typed-subjects.js';

/** The result of `policy-loss evaluate`, as `--json` prints it: with strings such as "NaN" for non-finite numbers. */
export interface Evaluation {
  /** The name of the policy loss or algorithm. */
  name: string;
  loss: number;
  metrics: Partial<Metrics>;
  rows: number;
  /** The number of unmasked tokens in all rows. */
  tokens: number;
  /** The Euclidean norm of ∂loss/∂logprob over all tokens. */
  gradNorm: number;
  /**
   * The Euclidean norm of ∂loss/∂entropy over all tokens. Absent without an entropy loss, or if the files have no
   * entropy.
   */
  gradEntropyNorm?: number;
  /**
   * 'given' if the files have advantages, otherwise the name of the advantage function that computed them. Absent if
   * the loss reads no advantages.
   */
  advantages?: string;
  /** The functions of the algorithm and their coefficients; absent for a policy loss. */
  algorithm?: AlgorithmFunctions;
  /** What computing in micro-batches changes; absent without --micro-batches. */
  microBatches?: MicroBatchComparison;
  /** The number of parts in which the rows were computed; absent if there was only one part. */
  batches?: number;
  /** The number of invalid rows that were skipped; absent without --skip-bad-rows. */
  skipped?: number;
}

/**
 * Adds the command `evaluate` to the command-line program.
 * @param words the arguments of the command line. They name a loss or an algorithm, and the command gets its options.
 * @returns the arguments that commander must parse.
 * @throws LossError if the arguments name an unknown loss, algorithm or option, or not exactly one loss or algorithm.
 */
export function addEvaluate(program: Command, words: readonly string[]): readonly string[] {
  const command = rolloutsCommand(program, {
    name: 'evaluate',
    summary: 'compute a policy loss or an algorithm on rollout files',
    description:
      "Computes a policy loss or an algorithm's objective on rollout files. Prints the loss, its metrics and its " +
      'gradient norm.',
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
        printable(merged, skipped, quiet),
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
      await report?.write(result.subjects);
      return printable(result, run.skipped, options.quiet === true, divided?.result);
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

/**
 * Returns the result of `evaluate` in its printed forms.
 * @param skipped the number of invalid rows that were skipped; undefined without --skip-bad-rows.
 */
export function printable(
  result: FilesEvaluation<TitledSubject>,
  skipped: number | undefined,
  quiet: boolean,
  microBatches?: MicroBatchComparison,
): Printable {
  const [evaluated] = result.subjects as [SubjectEvaluation<TitledSubject>];
  const evaluation: Evaluation = {
    ...evaluationOf(evaluated, result, skipped),
    ...(microBatches && { microBatches }),
  };
  return {
    json: () => evaluation,
    csv: () => {
      const { metrics, algorithm: _, microBatches: __, ...rest } = evaluation;
      const cells: Record<string, Value> = { ...rest, ...metrics, loss: evaluation.loss };
      return csv(Object.keys(cells), [Object.values(cells)]);
    },
    text: () => [describe(evaluation, quiet), ...describeMicroBatches(microBatches)].join('\n\n'),
  };
}

function evaluationOf(
  { subject, loss, metrics, gradNorm, gradEntropyNorm, advantages }: SubjectEvaluation,
  { rows, tokens, parts }: FilesEvaluation,
  skipped: number | undefined,
): Evaluation {
  return {
    name: subject.name,
    loss,
    metrics,
    rows,
    tokens,
    gradNorm,
    ...(gradEntropyNorm !== undefined && { gradEntropyNorm }),
    ...(advantages !== undefined && { advantages }),
    ...(subject.functions && { algorithm: subject.functions }),
    ...(parts > 1 && { batches: parts }),
    ...(skipped !== undefined && { skipped }),
  };
}

function describe(evaluation: Evaluation, quiet: boolean): string {
  const { name, loss, metrics, rows, tokens, gradNorm, gradEntropyNorm, advantages, algorithm } = evaluation;
  const { batches, skipped } = evaluation;
  const lines = twoColumns([
    ...(algorithm ? describeFunctions(name, algorithm, advantages) : [['function', name] as const]),
    ...Object.entries({ loss, ...metrics }),
    ['gradient norm', gradNorm],
    ...(gradEntropyNorm === undefined ? [] : [['entropy gradient norm', gradEntropyNorm] as const]),
    ['rows', String(rows)],
    ['tokens', String(tokens)],
    ...(batches === undefined ? [] : [['batches', String(batches)] as const]),
    ...(skipped === undefined ? [] : [['rows skipped', String(skipped)] as const]),
  ]);
  return !quiet && !algorithm && advantages === 'grpo' ? `${lines}\n\n${styled('dim', GRPO_NOTE)}` : lines;
}

function describeMicroBatches(compared: MicroBatchComparison | undefined): string[] {
  if (!compared) return [];
  const { rows, tokens, weighings } = compared;
  const range = (values: readonly number[]) => {
    const [least, most] = [Math.min(...values), Math.max(...values)];
    return least === most ? String(least) : `${least} to ${most}`;
  };
  return [
    `In ${rows.length} micro-batches of ${range(rows)} rows and ${range(tokens)} tokens:`,
    table(
      ['weights', 'loss', 'gradient norm', 'gradient differs by', 'angle', 'trainers'],
      weighings.map(({ name, loss, gradNorm, gradDifference, angle, trainers }) => [
        name,
        loss,
        gradNorm,
        `${readable(100 * gradDifference)}%`,
        `${readable(angle)}°`,
        trainers,
      ]),
    ),
  ];
}

function describeFunctions(name: string, functions: AlgorithmFunctions, advantages: string | undefined) {
  const weighted = (fn: string, coefficient: number) =>
    fn === 'none' ? fn : `${readable(coefficient)} × ${fn}`;
  const lines: [string, string][] = [
    ['algorithm', name],
    ['policy loss', functions.policyLossFn],
    ['advantages', advantages ?? 'none'],
    ['KL loss', weighted(functions.klLossFn, functions.klCoef)],
    ['entropy loss', weighted(functions.entropyLossFn, functions.entropyCoef)],
  ];
  if (functions.klPenaltyFn !== undefined) lines.splice(3, 0, ['KL penalty', functions.klPenaltyFn]);
  return lines;
}

/** The note that is printed when the files have no advantages, and a loss's advantages were therefore computed. */
const GRPO_NOTE =
  "Advantages are computed from reward and task_id by GRPO's rule: (reward − mean) / (std + 1e-6) within each task.";
