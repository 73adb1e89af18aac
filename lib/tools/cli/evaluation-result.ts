import type { Metrics } from '../../index.js';
import type {
  AlgorithmFunctions,
  FilesEvaluation,
  MicroBatchComparison,
  SubjectEvaluation,
} from '../parts/index.js';
import { fitted } from './lines.js';
import { csv, type Printable, readable, styled, table, twoColumns, type Value } from './output.js';
import type { TitledSubject } from './typed-subjects.js';

/** The result of `policy-loss evaluate`, as `--json` prints it: with strings such as "NaN" for non-finite numbers. */
export interface Evaluation {
  /** The name of the loss or algorithm. */
  name: string;
  loss: number;
  metrics: Partial<Metrics>;
  rows: number;
  /** The number of unmasked tokens in all rows. */
  tokens: number;
  /**
   * The Euclidean norm of the gradient: of ∂loss/∂logprob or ∂loss/∂values over all tokens, or of ∂loss/∂rewards over all
   * rows.
   */
  gradNorm: number;
  /** The column by which the gradient is; absent for log-probabilities. */
  variable?: 'values' | 'rewards';
  /**
   * The Euclidean norm of ∂loss/∂entropy over all tokens. Absent if the loss does not depend on entropies, or if the files
   * have none.
   */
  gradEntropyNorm?: number;
  /**
   * 'given' if the files have advantages, otherwise the name of the advantage function that computed them. Absent if
   * the loss reads no advantages.
   */
  advantages?: string;
  /** The functions of the algorithm and their coefficients; absent for a loss. */
  algorithm?: AlgorithmFunctions;
  /** What computing in micro-batches changes; absent without --micro-batches. */
  microBatches?: MicroBatchComparison;
  /** The number of parts in which the rows were computed; absent if there was only one part. */
  batches?: number;
  /** The number of invalid rows that were skipped; absent without --skip-bad-rows. */
  skipped?: number;
}

/**
 * Returns the result of `evaluate` in its printed forms.
 * @param skipped the number of invalid rows that were skipped; undefined without --skip-bad-rows.
 */
export function printableEvaluation(
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
    ...(subject.variable !== 'logprob' && { variable: subject.variable }),
    ...(gradEntropyNorm !== undefined && { gradEntropyNorm }),
    ...(advantages !== undefined && { advantages }),
    ...(subject.functions && { algorithm: subject.functions }),
    ...(parts > 1 && { batches: parts }),
    ...(skipped !== undefined && { skipped }),
  };
}

function describe(evaluation: Evaluation, quiet: boolean): string {
  const { name, loss, metrics, rows, tokens, gradNorm, gradEntropyNorm, advantages, algorithm } = evaluation;
  const { variable, batches, skipped } = evaluation;
  const lines = twoColumns([
    ...(algorithm ? describeFunctions(name, algorithm, advantages) : [['function', name] as const]),
    ...Object.entries({ loss, ...metrics }),
    [variable === undefined ? 'gradient norm' : `gradient norm (${variable})`, gradNorm],
    ...(gradEntropyNorm === undefined ? [] : [['entropy gradient norm', gradEntropyNorm] as const]),
    ['rows', String(rows)],
    ['tokens', String(tokens)],
    ...(batches === undefined ? [] : [['batches', String(batches)] as const]),
    ...(skipped === undefined ? [] : [['rows skipped', String(skipped)] as const]),
  ]);
  const notes = [
    ...(!algorithm && advantages === 'grpo' ? [GRPO_NOTE] : []),
    ...(!algorithm && gradEntropyNorm !== undefined ? [ENTROPY_NOTE] : []),
  ].map((note) => fitted(note));
  return quiet || notes.length === 0 ? lines : `${lines}\n\n${styled('dim', notes.join('\n'))}`;
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

/** The note that is printed if a loss depends on the entropies of the tokens. */
const ENTROPY_NOTE =
  'The loss also has a gradient with respect to the entropy (H). The library returns it as gradEntropy.';

/** The note that is printed when the files have no advantages, and a loss's advantages were therefore computed. */
const GRPO_NOTE =
  "Advantages are computed from reward and task_id by GRPO's rule: (reward − mean) / (std + 1e-6) within each task.";
