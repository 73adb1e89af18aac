// The sum of one subject's results over all parts.
import type { Metrics } from '../index.js';
import type { Subject, SubjectResult } from './subject.js';

/** The results of a subject for all rows. */
export interface SubjectEvaluation<S extends Subject = Subject> {
  subject: S;
  loss: number;
  metrics: Partial<Metrics>;
  /** The norm of ∂loss/∂logprob over all tokens. */
  gradNorm: number;
  /** The norm of ∂loss/∂entropy over all tokens. Absent without an entropy loss, or if the rows have no entropy. */
  gradEntropyNorm?: number;
  /**
   * 'given' if the files have advantages, else the name of the advantage function that computed them. Absent if the
   * subject reads none.
   */
  advantages?: string;
}

/** Adds up the results of a subject, part by part. */
export class SubjectTotal<S extends Subject = Subject> {
  readonly subject: S;
  #loss: number | undefined;
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
   * @param computedAdvantages whether the subject computed the part's advantages.
   * @param advantageMetrics the metrics of the advantages over all rows so far.
   */
  add(
    { loss, metrics, grad, gradEntropy }: SubjectResult,
    computedAdvantages: boolean,
    advantageMetrics: Metrics,
  ): void {
    this.#loss = this.#loss === undefined ? loss : this.#loss + loss;
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

  /** Returns the results for all rows. */
  finish(): SubjectEvaluation<S> {
    return {
      subject: this.subject,
      loss: this.#loss!,
      metrics: { ...this.#metrics, ...this.#advantageMetrics },
      gradNorm: Math.sqrt(this.#squares),
      ...(this.#entropySquares !== undefined && { gradEntropyNorm: Math.sqrt(this.#entropySquares) }),
      ...(this.#advantages !== undefined && { advantages: this.#advantages }),
    };
  }
}

/** Metrics that are equal in every part, so they must not be added up. */
const COEFFICIENTS: ReadonlySet<string> = new Set(['kl_coef', 'mu']);

function addSquares(sum: number, values: Float32Array): number {
  let squares = sum;
  for (let i = 0; i < values.length; i++) squares += values[i]! * values[i]!;
  return squares;
}
