// The results of one subject (a policy loss or an algorithm): collected part by part, and merged over all shards.
import { ExactSum } from '../core/exact-sum.js';
import { LossError, type Metrics, type Normalizer } from '../index.js';
import { joinRowValues, metricsOver, type RowValues } from './row-metrics.js';
import type { Subject, SubjectResult } from './subject.js';
import type { Whole } from './whole.js';

/** A sum of squares, which does not depend on how the rows are divided. */
export interface SquareSum {
  /** Numbers whose exact sum is that of all rows' finite sums of squares. */
  partials: readonly number[];
  /** The sum of the sums that are not finite; 0 if there are none. */
  nonFinite: number;
}

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
  /** The sum of the squared gradients ∂loss/∂logprob. */
  squares: SquareSum;
  /** The same for ∂loss/∂entropy. Absent without an entropy loss or without entropies. */
  entropySquares?: SquareSum;
  /** The origin of the advantages; see SubjectEvaluation. */
  advantages?: string;
}

/** The results of a subject over all rows. */
export interface SubjectEvaluation<S extends Subject = Subject> {
  subject: S;
  loss: number;
  metrics: Partial<Metrics>;
  /** The Euclidean norm of the gradient ∂loss/∂logprob over all tokens. */
  gradNorm: number;
  /**
   * The Euclidean norm of the gradient ∂loss/∂entropy over all tokens. Absent if there is no entropy loss or the rows
   * have no entropy.
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
  readonly #squares = new Squares();
  #entropySquares: Squares | undefined;
  #advantages: string | undefined;

  constructor(subject: S) {
    this.subject = subject;
  }

  /**
   * Adds the result of a part.
   * @param offsets the index of each row's first token, followed by the number of tokens.
   * @param normalizer the counts over all rows with which the part was computed; undefined if it has all rows.
   * @param computedAdvantages whether the part's advantages were computed, instead of read from the files.
   */
  add(
    { loss, metrics, grad, gradEntropy, part }: SubjectResult,
    offsets: Int32Array,
    normalizer: Normalizer | undefined,
    computedAdvantages: boolean,
  ): void {
    if (normalizer) {
      this.#parts.push(part!);
      this.#normalizer = normalizer;
    } else {
      this.#whole = { loss, metrics: metrics as Metrics };
    }
    this.#hasFiniteLoss &&= Number.isFinite(loss);
    this.#squares.add(grad!, offsets);
    if (metrics.entropy_loss !== undefined && gradEntropy) {
      this.#entropySquares ??= new Squares();
      this.#entropySquares.add(gradEntropy, offsets);
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
    // A policy loss that is evaluated without an algorithm reports only its own metrics, not the advantages' metrics.
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
    gradNorm: normOf(shards.map(({ squares }) => squares)),
    ...(entropy.length > 0 && { gradEntropyNorm: normOf(entropy) }),
    ...(first.advantages !== undefined && { advantages: first.advantages }),
  };
}

/** Adds up the squares of gradients: within each row in the order of its tokens, and exactly over the rows. */
class Squares {
  readonly #rows = new ExactSum();
  #nonFinite = 0;

  add(values: Float32Array, offsets: Int32Array): void {
    for (let row = 0; row + 1 < offsets.length; row++) {
      let sum = 0;
      for (let t = offsets[row]!; t < offsets[row + 1]!; t++) sum += values[t]! * values[t]!;
      if (Number.isFinite(sum)) this.#rows.add(sum);
      else this.#nonFinite += sum;
    }
  }

  get sum(): SquareSum {
    return { partials: this.#rows.partials, nonFinite: this.#nonFinite };
  }
}

function normOf(sums: readonly SquareSum[]): number {
  const exact = new ExactSum();
  let nonFinite = 0;
  for (const sum of sums) {
    for (const partial of sum.partials) exact.add(partial);
    nonFinite += sum.nonFinite;
  }
  return Math.sqrt(nonFinite === 0 ? exact.value : nonFinite);
}
