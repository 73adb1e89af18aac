// Evaluates losses and algorithms on the rows of files, in one process: as a plan with a single shard.
import type { EvaluationSettings, ShardResult } from './evaluation.js';
import { cosinesOf } from './gradient-products.js';
import type { PartWatcher } from './part-computer.js';
import { evaluateShard } from './shard.js';
import type { Subject } from './subject.js';
import { mergeSubject, type SubjectEvaluation } from './subject-result.js';

/** The results over all rows of the files. */
export interface FilesEvaluation<S extends Subject = Subject> {
  /** The results of each subject, in the order in which evaluateFiles() got the subjects. */
  subjects: SubjectEvaluation<S>[];
  rows: number;
  /** The number of unmasked tokens. */
  tokens: number;
  /** The number of parts into which the rows were divided. */
  parts: number;
  /** The number of bad rows that were skipped. */
  skipped: number;
  /**
   * cosines[i][j] is the cosine of the angle between the gradients of the subjects i and j. It is null if
   * one of the gradients is 0. Absent unless the gradients are compared.
   */
  cosines?: (number | null)[][];
}

/**
 * Evaluates subjects (losses and algorithms) on the rows of files. The rows are read in parts of limited size. If
 * all rows fit into one part, they are computed as one batch. Otherwise the files are read twice: to count all rows and
 * prepare their advantages, and to compute part by part. All subjects are computed on a part before the next part is
 * read.
 * @param watch receives every part with its gradients. Without it, the gradients are discarded after each part.
 * @throws LossError about the files or the subjects. It is `ERR_INVALID_OPTION` for the option batchTokens if a subject
 * needs all rows at once and they do not fit into one part.
 */
export async function evaluateFiles<S extends Subject>(
  files: readonly string[],
  subjects: readonly S[],
  settings: EvaluationSettings,
  watch?: PartWatcher,
): Promise<FilesEvaluation<S>> {
  return mergeResults(subjects, [await evaluateShard(files, subjects, settings, watch)]);
}

/**
 * Merges the results of all shards. The merged results have the same bits however the rows are divided.
 * @param shards the results in the order of the shards. At least one has rows.
 * @throws LossError `ERR_INVALID_INPUT` if the results do not belong together.
 */
export function mergeResults<S extends Subject>(
  subjects: readonly S[],
  shards: readonly ShardResult[],
): FilesEvaluation<S> {
  const withRows = shards.filter(({ rows }) => rows > 0);
  const sum = (of: (shard: ShardResult) => number) => shards.reduce((total, shard) => total + of(shard), 0);
  const merged = subjects.map((subject, i) =>
    mergeSubject(
      subject,
      withRows.map(({ subjects }) => subjects[i]!),
    ),
  );
  const norms = merged.map(({ gradNorm }) => gradNorm);
  const products = withRows.flatMap(({ products }) => (products ? [products] : []));
  return {
    subjects: merged,
    ...(products.length > 0 && { cosines: cosinesOf(norms, products) }),
    rows: sum(({ rows }) => rows),
    tokens: sum(({ tokens }) => tokens),
    parts: sum(({ parts }) => parts),
    skipped: sum(({ skipped }) => skipped),
  };
}
