// Adds up the results of one subject (a policy loss or an algorithm) over all parts of the rows.
import type { Metrics } from '../index.js';
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
  /** The loss over the rows of all parts so far. It begins as −0, to which even a loss of −0 can be added exactly. */
  loss = -0;
  #metrics: Metrics = {};
  #advantageMetrics: Metrics = {};
  #squares = 0;
  #entropySquares: number | undefined;
  #advantages: string | undefined;

  constructor(subject: S) {
    this.subject = subject;
  }

  /**
   * Adds the result of a part.
   * @param computedAdvantages whether the part's advantages were computed, instead of read from the files.
   * @param advantageMetrics the advantage function's metrics over all rows so far. They replace the metrics from
   * the previous call.
   */
  add(
    { loss, metrics, grad, gradEntropy }: SubjectResult,
    computedAdvantages: boolean,
    advantageMetrics: Metrics,
  ): void {
    this.loss += loss;
    for (const [name, value] of Object.entries(metrics)) {
      const before = this.#metrics[name];
      this.#metrics[name] = before === undefined || COEFFICIENTS.has(name) ? value! : before + value!;
    }
    this.#advantageMetrics = advantageMetrics;
    this.#squares = addSquares(this.#squares, grad!);
    if (metrics.entropy_loss !== undefined && gradEntropy)
      this.#entropySquares = addSquares(this.#entropySquares ?? 0, gradEntropy);
    const { readsAdvantages, advantages: step } = this.subject;
    if (readsAdvantages) this.#advantages = computedAdvantages ? step!.name : 'given';
  }

  /** Whether the loss and the gradients over the rows so far are finite. */
  get isFinite(): boolean {
    return [this.loss, this.#squares, this.#entropySquares ?? 0].every(Number.isFinite);
  }

  /** Returns the results over all rows. Must be called after the last part was added. */
  finish(): SubjectEvaluation<S> {
    return {
      subject: this.subject,
      loss: this.loss,
      metrics: { ...this.#metrics, ...this.#advantageMetrics },
      gradNorm: Math.sqrt(this.#squares),
      ...(this.#entropySquares !== undefined && { gradEntropyNorm: Math.sqrt(this.#entropySquares) }),
      ...(this.#advantages !== undefined && { advantages: this.#advantages }),
    };
  }
}

/** The metrics that are equal in every part. They are coefficients, which must not be added up. */
const COEFFICIENTS: ReadonlySet<string> = new Set(['kl_coef', 'mu']);

function addSquares(sum: number, values: Float32Array): number {
  let squares = sum;
  for (let i = 0; i < values.length; i++) squares += values[i]! * values[i]!;
  return squares;
}
