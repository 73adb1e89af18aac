// Adds up the results of one subject (a policy loss or an algorithm) over all parts of the rows.
import type { Metrics, Normalizer } from '../index.js';
import type { Subject, SubjectResult } from './subject.js';

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
  // The loss and the metrics, if all rows are in one part; otherwise the sums of every part, and the counts over all rows.
  #result: Pick<SubjectResult, 'loss' | 'metrics'> | undefined;
  readonly #parts: Float64Array[] = [];
  #normalizer: Normalizer | undefined;
  #advantageMetrics: Metrics = {};
  #hasFiniteLoss = true;
  #squares = 0;
  #entropySquares: number | undefined;
  #advantages: string | undefined;

  constructor(subject: S) {
    this.subject = subject;
  }

  /**
   * Adds the result of a part.
   * @param normalizer the counts over all rows with which the part was computed; undefined if it has all rows.
   * @param computedAdvantages whether the part's advantages were computed, instead of read from the files.
   * @param advantageMetrics the advantage function's metrics over all rows so far. They replace the metrics from
   * the previous call.
   */
  add(
    { loss, metrics, grad, gradEntropy, part }: SubjectResult,
    normalizer: Normalizer | undefined,
    computedAdvantages: boolean,
    advantageMetrics: Metrics,
  ): void {
    if (normalizer) {
      this.#parts.push(part!);
      this.#normalizer = normalizer;
    } else {
      this.#result = { loss, metrics };
    }
    this.#hasFiniteLoss &&= Number.isFinite(loss);
    this.#advantageMetrics = advantageMetrics;
    this.#squares = addSquares(this.#squares, grad!);
    if (metrics.entropy_loss !== undefined && gradEntropy)
      this.#entropySquares = addSquares(this.#entropySquares ?? 0, gradEntropy);
    const { readsAdvantages, advantages: step } = this.subject;
    if (readsAdvantages) this.#advantages = computedAdvantages ? step!.name : 'given';
  }

  /** Whether the losses and the gradients of all parts so far are finite. */
  get isFinite(): boolean {
    return this.#hasFiniteLoss && Number.isFinite(this.#squares + (this.#entropySquares ?? 0));
  }

  /** Returns the results over all rows. Must be called after the last part was added. */
  finish(): SubjectEvaluation<S> {
    const { loss, metrics } = this.#result ?? this.subject.merge(this.#parts, this.#normalizer!);
    return {
      subject: this.subject,
      loss,
      metrics: { ...metrics, ...this.#advantageMetrics },
      gradNorm: Math.sqrt(this.#squares),
      ...(this.#entropySquares !== undefined && { gradEntropyNorm: Math.sqrt(this.#entropySquares) }),
      ...(this.#advantages !== undefined && { advantages: this.#advantages }),
    };
  }
}

function addSquares(sum: number, values: Float32Array): number {
  let squares = sum;
  for (let i = 0; i < values.length; i++) squares += values[i]! * values[i]!;
  return squares;
}
