// The results of one subject (a loss or an algorithm): collected part by part, and merged over all shards.
import { LossError, type Metrics, type Normalizer } from '../../index.js';
import { DotProduct, type ProductSum, totalOf } from './gradient-products.js';
import { joinRowValues, metricsOver, type RowValues } from './row-metrics.js';
import { entropyGradientOf, type Subject, type SubjectResult } from './subject.js';
import type { Whole } from './whole.js';

/** The results of a subject for the rows of a shard. */
export interface ShardSubject {
  /** The loss and the metrics, if all rows of all shards were computed as one batch. */
  whole?: { loss: number; metrics: Metrics };
  /** The exact sums of each part of the rows; empty if all rows were computed as one batch. */
  parts: readonly Float64Array[];
  /** The counts over all rows of all shards with which the parts were computed. */
  normalizer?: Normalizer;
  /** The metrics of the advantages over all rows of all shards, and numbers of each row for further ones. */
  advantageMetrics: Metrics;
  rowValues: RowValues;
  /** The sum of the squares of the gradient by the subject's variable. */
  squares: ProductSum;
  /** The same for ∂loss/∂entropy. Absent if the loss does not depend on entropies, or without entropies. */
  entropySquares?: ProductSum;
  /** The origin of the advantages; see SubjectEvaluation. */
  advantages?: string;
}

/** The results of a subject over all rows. */
export interface SubjectEvaluation<S extends Subject = Subject> {
  subject: S;
  loss: number;
  metrics: Partial<Metrics>;
  /** The Euclidean norm of the gradient by the subject's variable, over all tokens or, by rewards, over all rows. */
  gradNorm: number;
  /**
   * The Euclidean norm of the gradient ∂loss/∂entropy over all tokens. Absent if the loss does not depend on entropies,
   * or the rows have none.
   */
  gradEntropyNorm?: number;
  /**
   * The origin of the advantages: 'given' if the files contain them, otherwise the name of the advantage function that
   * computed them. Absent if the subject does not read advantages.
   */
  advantages?: string;
}

/** Adds up the results of one subject, part by part. */
export class SubjectTotal<S extends Subject = Subject> {
  readonly subject: S;
  #whole: ShardSubject['whole'];
  readonly #parts: Float64Array[] = [];
  #normalizer: Normalizer | undefined;
  #hasFiniteLoss = true;
  readonly #squares = new DotProduct();
  #entropySquares: DotProduct | undefined;
  #advantages: string | undefined;

  constructor(subject: S) {
    this.subject = subject;
  }

  /**
   * Adds the result of a part.
   * @param offsets where the gradient of each row begins, followed by its length.
   * @param normalizer the counts over all rows with which the part was computed; undefined if it has all rows.
   * @param computedAdvantages whether the part's advantages were computed, instead of read from the files.
   */
  add(
    result: SubjectResult,
    offsets: Int32Array,
    normalizer: Normalizer | undefined,
    computedAdvantages: boolean,
  ): void {
    const { loss, metrics, grad, part } = result;
    const gradEntropy = entropyGradientOf(this.subject, result);
    if (normalizer) {
      this.#parts.push(part!);
      this.#normalizer = normalizer;
    } else {
      this.#whole = { loss, metrics: metrics as Metrics };
    }
    this.#hasFiniteLoss &&= Number.isFinite(loss);
    this.#squares.add(grad!, grad!, offsets);
    if (gradEntropy) {
      this.#entropySquares ??= new DotProduct();
      this.#entropySquares.add(gradEntropy, gradEntropy, offsets);
    }
    const { readsAdvantages, advantages: step } = this.subject;
    if (readsAdvantages) this.#advantages = computedAdvantages ? step!.name : 'given';
  }

  /** Whether the losses and the gradients of all parts so far are finite. */
  get isFinite(): boolean {
    return this.#hasFiniteLoss && this.#squares.sum.nonFinite === 0 && !this.#entropySquares?.sum.nonFinite;
  }

  /** Returns the results over the rows of all parts that were added. */
  finish(whole: Whole): ShardSubject {
    // A loss that is evaluated without an algorithm reports only its own metrics, not the advantages' metrics.
    const reportsAdvantages = this.subject.functions !== undefined;
    return {
      ...(this.#whole && { whole: this.#whole }),
      parts: this.#parts,
      ...(this.#normalizer && { normalizer: this.#normalizer }),
      advantageMetrics: reportsAdvantages ? whole.metricsOf(this.subject) : {},
      rowValues: reportsAdvantages ? whole.rowValuesOf(this.subject) : {},
      squares: this.#squares.sum,
      ...(this.#entropySquares && { entropySquares: this.#entropySquares.sum }),
      ...(this.#advantages !== undefined && { advantages: this.#advantages }),
    };
  }
}

/**
 * Merges the results of all shards that have rows, in the order of the shards.
 * @throws LossError `ERR_INVALID_INPUT` if the results do not belong together.
 */
export function mergeSubject<S extends Subject>(
  subject: S,
  shards: readonly ShardSubject[],
): SubjectEvaluation<S> {
  const [first] = shards as [ShardSubject, ...ShardSubject[]];
  const shared = ({ normalizer, advantageMetrics, advantages }: ShardSubject) =>
    JSON.stringify([normalizer, Object.entries(advantageMetrics).map(String), advantages]);
  const other = shards.find((shard) => shared(shard) !== shared(first));
  if (other)
    throw new LossError('ERR_INVALID_INPUT', {
      at: subject.name,
      expected: 'parts that were computed with the same counts of all rows',
      received: `${shared(first)} and ${shared(other)}`,
    });
  const { loss, metrics } =
    first.whole ??
    subject.merge(
      shards.flatMap(({ parts }) => parts),
      first.normalizer!,
    );
  const rowMetrics = metricsOver(joinRowValues(shards.map(({ rowValues }) => rowValues)));
  const entropy = shards.flatMap(({ entropySquares }) => entropySquares ?? []);
  return {
    subject,
    loss,
    metrics: { ...metrics, ...first.advantageMetrics, ...rowMetrics },
    gradNorm: Math.sqrt(totalOf(shards.map(({ squares }) => squares))),
    ...(entropy.length > 0 && { gradEntropyNorm: Math.sqrt(totalOf(entropy)) }),
    ...(first.advantages !== undefined && { advantages: first.advantages }),
  };
}
