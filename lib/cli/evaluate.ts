// `policy-loss evaluate`: a policy loss or a whole algorithm on rollout files.
import type { Command } from 'commander';
import type { Metrics } from '../index.js';
import { evaluateFiles, type FilesEvaluation, type SubjectEvaluation } from './evaluation.js';
import { type Cell, csv, type Printable, readable, styled, twoColumns } from './output.js';
import { REPORT_OPTION, reportOn } from './report-file.js';
import {
  type RolloutsOptions,
  type RolloutsRun,
  rolloutsCommand,
  runOnRollouts,
} from './rollouts-command.js';
import type { AlgorithmParts } from './subject.js';
import { makeSubject, typedSubject } from './typed-subjects.js';

/** What `--json` prints, numbers that are not finite as null. */
export interface Evaluation {
  /** The policy loss's or the algorithm's name. */
  name: string;
  loss: number;
  metrics: Partial<Metrics>;
  rows: number;
  /** Those that the masks let count. */
  tokens: number;
  /** Of ∂loss/∂logprob over all tokens. */
  gradNorm: number;
  /** Of ∂loss/∂entropy over all tokens. Absent where there is no entropy loss, or no entropy that it could read. */
  gradEntropyNorm?: number;
  /**
   * Where the advantages are from: 'given' in the files, else the name of the advantage function that made them.
   * Absent where none are read.
   */
  advantages?: string;
  /** Of an algorithm: what it is made of. */
  algorithm?: AlgorithmParts;
  /** In how many parts the rows were computed. Absent: all at once. */
  batches?: number;
  /** Bad rows that were left out, with --skip-bad-rows. */
  skipped?: number;
}

/**
 * Adds the command to a program.
 * @param words those of the command line: the options there are depend on the loss or the algorithm that they name.
 * @returns the words to parse.
 * @throws LossError for an unknown loss or algorithm, for options that it does not have, and where the words do not say
 * what to evaluate, or say it twice.
 */
export function addEvaluate(program: Command, words: readonly string[]): readonly string[] {
  const command = rolloutsCommand(program, {
    name: 'evaluate',
    summary: 'compute a policy loss or an algorithm on rollout files',
    description:
      "Computes a policy loss, or an algorithm's objective, on rollout files, with its metrics and the norm of its " +
      'gradient.',
    options: [REPORT_OPTION()],
    help: HELP,
    examples: EXAMPLES,
  });
  if (words[0] !== command.name()) return words;
  const { typed, left } = typedSubject(command, words);
  for (const option of typed?.options ?? []) command.addOption(option);
  command.action(async (patterns: string[], options: RolloutsOptions & { report?: string }) => {
    const subject = await makeSubject(typed!, command);
    const report = await reportOn([subject], options.report);
    await runOnRollouts(patterns, options, report?.wanted ?? {}, async (run) => {
      const result = await evaluateFiles(run.files, [subject], run.settings, report?.watcher(run.files));
      await report?.write(result.subjects);
      return printable(result, run, options.quiet === true);
    });
  });
  return left;
}

const HELP = `\
The options of a loss follow its name, in kebab case: clip_range_low is --clip-range-low. An algorithm takes those of
its policy loss, those of its advantage function with 'advantage-' before them (--advantage-std-threshold), the names
of its functions (--kl-loss-fn) and their coefficients. With --config the file says it all.
'policy-loss evaluate --loss NAME --help' and 'policy-loss evaluate --algorithm NAME --help' list them with defaults.`;

const EXAMPLES = [
  'evaluate rollouts.jsonl --loss ppo',
  'evaluate rollouts.jsonl --loss ppo --clip-range-low 0.2 --clip-range-high 0.28',
  "evaluate 'runs/*/rollouts-*.parquet' --loss gspo --json",
  'evaluate pairs.jsonl --loss dpo --beta 0.05',
  'evaluate rollouts.jsonl.gz --algorithm grpo --report out.html',
  'evaluate rollouts.jsonl --algorithm grpo --kl-loss-fn k3 --kl-coef 0.01 --advantage-std-threshold 0.01',
  'evaluate rollouts.jsonl --algorithm rloo --policy-loss-fn cispo --clip-range-high 0.3 --csv',
  'evaluate batch.safetensors --loss sapo --column logprobs=lp --device cuda',
  'evaluate rollouts.jsonl --config trinity.yaml --skip-bad-rows',
];

function printable(result: FilesEvaluation, run: RolloutsRun, quiet: boolean): Printable {
  const [evaluated] = result.subjects as [SubjectEvaluation];
  const evaluation = evaluationOf(evaluated, result, run);
  return {
    json: () => evaluation,
    csv: () => {
      const { metrics, algorithm: _, ...rest } = evaluation;
      const cells: Record<string, Cell> = { ...rest, ...metrics, loss: evaluation.loss };
      return csv(Object.keys(cells), [Object.values(cells)]);
    },
    text: () => describe(evaluation, quiet),
  };
}

function evaluationOf(
  { subject, loss, metrics, gradNorm, gradEntropyNorm, advantages }: SubjectEvaluation,
  { rows, tokens, parts }: FilesEvaluation,
  { skipped }: RolloutsRun,
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
    ...(subject.parts && { algorithm: subject.parts }),
    ...(parts > 1 && { batches: parts }),
    ...(skipped !== undefined && { skipped }),
  };
}

function describe(evaluation: Evaluation, quiet: boolean): string {
  const { name, loss, metrics, rows, tokens, gradNorm, gradEntropyNorm, advantages, algorithm } = evaluation;
  const { batches, skipped } = evaluation;
  const table = twoColumns([
    ...(algorithm ? describeParts(name, algorithm, advantages) : [['function', name] as const]),
    ...Object.entries({ loss, ...metrics }),
    ['gradient norm', gradNorm],
    ...(gradEntropyNorm === undefined ? [] : [['entropy gradient norm', gradEntropyNorm] as const]),
    ['rows', String(rows)],
    ['tokens', String(tokens)],
    ...(batches === undefined ? [] : [['batches', String(batches)] as const]),
    ...(skipped === undefined ? [] : [['rows skipped', String(skipped)] as const]),
  ]);
  return !quiet && !algorithm && advantages === 'grpo' ? `${table}\n\n${styled('dim', GRPO_NOTE)}` : table;
}

function describeParts(name: string, parts: AlgorithmParts, advantages: string | undefined) {
  const weighted = (fn: string, coefficient: number) =>
    fn === 'none' ? fn : `${readable(coefficient)} × ${fn}`;
  const lines: [string, string][] = [
    ['algorithm', name],
    ['policy loss', parts.policyLossFn],
    ['advantages', advantages ?? 'none'],
    ['KL loss', weighted(parts.klLossFn, parts.klCoef)],
    ['entropy loss', weighted(parts.entropyLossFn, parts.entropyCoef)],
  ];
  if (parts.klPenaltyFn !== undefined) lines.splice(3, 0, ['KL penalty', parts.klPenaltyFn]);
  return lines;
}

/** Where a loss's advantages come from that files do not have. */
export const GRPO_NOTE =
  "Advantages come from reward and task_id by GRPO's rule: (reward − mean) / (std + 1e-6) within each task.";
