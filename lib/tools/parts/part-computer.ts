// Computes all subjects (losses and algorithms to evaluate) on the parts of the rows, one part after another.
import type { ComputedAdvantages } from '../../call/computed-advantages.js';
import type { Batch } from '../../index.js';
import type { RolloutPart } from '../rollouts/index.js';
import { perToken } from './advantage-method.js';
import type { EvaluationSettings, OnNonFinite, ShardResult } from './evaluation.js';
import { PairProducts } from './gradient-products.js';
import { firstNonFiniteRow } from './non-finite.js';
import { termsOfFiles } from './row-errors.js';
import {
  entropyGradientOf,
  gradientOffsets,
  type Subject,
  type SubjectOptions,
  type SubjectResult,
} from './subject.js';
import { SubjectTotal } from './subject-result.js';
import type { Whole } from './whole.js';

/** A subject's results for one part. Its arrays are valid only until the next part is computed. */
export interface PartResult {
  /** The gradient; see Subject.variable. */
  grad: Float32Array;
  /** Where the gradient of each row begins, followed by its length. */
  offsets: Int32Array;
  gradEntropy?: Float32Array;
  /** One advantage per token; absent if the subject does not read advantages. */
  advantages?: Float32Array;
}

/** A function that receives every part together with its results, one per subject in the order of the subjects. */
export type PartWatcher = (part: RolloutPart, results: readonly PartResult[]) => void | Promise<void>;

/** The inputs with which a subject is computed on a part. `advantages` is undefined if they are not computed. */
interface Prepared {
  subject: Subject;
  advantages: ComputedAdvantages | undefined;
  options: SubjectOptions;
}

/** Computes all subjects part by part, and adds each subject's results to its total. */
export class PartComputer {
  readonly #files: readonly string[];
  readonly #totals: readonly SubjectTotal[];
  readonly #device: Pick<SubjectOptions, 'device'>;
  readonly #watch: PartWatcher | undefined;
  readonly #products: PairProducts | undefined;
  // Undefined after its first call.
  #onNonFinite: OnNonFinite | undefined;
  // Arrays for the gradients: one for each subject if the gradients of all subjects are needed together, and otherwise a
  // single one.
  readonly #needsAll: boolean;
  readonly #arrays: Float32Array[] = [];

  constructor(
    files: readonly string[],
    subjects: readonly Subject[],
    { device, compares, onNonFinite }: Pick<EvaluationSettings, 'device' | 'compares' | 'onNonFinite'>,
    watch: PartWatcher | undefined,
  ) {
    this.#files = files;
    this.#totals = subjects.map((subject) => new SubjectTotal(subject));
    this.#device = device === undefined ? {} : { device };
    this.#watch = watch;
    this.#products = compares ? new PairProducts(subjects.length) : undefined;
    this.#needsAll = compares === true || watch !== undefined;
    this.#onNonFinite = onNonFinite;
  }

  /**
   * Computes all subjects on a part and adds the results to the totals.
   * @param whole the advantages and counts over all rows.
   * @param onShare receives the fraction of the subjects that are done, from 0 to 1.
   */
  async compute(part: RolloutPart, whole: Whole, onShare: (share: number) => void): Promise<void> {
    const { batch } = part;
    const results: PartResult[] = [];
    for (const [i, total] of this.#totals.entries()) {
      const { subject } = total;
      const prepared = await this.#prepare(subject, part, whole, this.#needsAll ? i : 0);
      const { advantages, options } = prepared;
      const result = await termsOfFiles(this.#files, subject, part, () =>
        subject.compute(batch, advantages, options),
      );
      total.add(result, gradientOffsets(subject, batch), options.normalizer, advantages !== undefined);
      if (!total.isFinite) await this.#explain(subject, result.loss, part, advantages, options);
      if (this.#needsAll) results.push(partResult(part, prepared, result));
      onShare((i + 1) / this.#totals.length);
    }
    this.#products?.add(
      results.map(({ grad }) => grad),
      results[0]!.offsets,
    );
    await this.#watch?.(part, results);
  }

  /** Returns the results over the rows of all parts that were computed. */
  finish(whole: Whole): Pick<ShardResult, 'subjects' | 'products'> {
    return {
      subjects: this.#totals.map((total) => total.finish(whole)),
      ...(this.#products && { products: this.#products.sums }),
    };
  }

  /** Reports the row that makes a part's loss or gradient NaN or infinite, unless a row was reported before. */
  async #explain(
    subject: Subject,
    loss: number,
    part: RolloutPart,
    advantages: ComputedAdvantages | undefined,
    options: SubjectOptions,
  ): Promise<void> {
    const report = this.#onNonFinite;
    this.#onNonFinite = undefined;
    if (report) report(subject, loss, await firstNonFiniteRow(part, subject, advantages, options));
  }

  async #prepare(subject: Subject, part: RolloutPart, whole: Whole, slot: number): Promise<Prepared> {
    const normalizer = whole.normalizer(subject);
    const options: SubjectOptions = {
      ...this.#device,
      grad: this.#array(slot, gradientOffsets(subject, part.batch).at(-1)!),
      ...(normalizer && { normalizer, part: true }),
    };
    const advantages = await termsOfFiles(this.#files, subject, part, () =>
      whole.advantagesOf(subject, part),
    );
    return { subject, advantages, options };
  }

  #array(slot: number, length: number): Float32Array {
    const array = this.#arrays[slot];
    if (array && array.length >= length) return array.subarray(0, length);
    const made = new Float32Array(length);
    this.#arrays[slot] = made;
    return made;
  }
}

function partResult(
  { batch }: RolloutPart,
  { subject, advantages: computed, options }: Prepared,
  result: SubjectResult,
): PartResult {
  const gradEntropy = entropyGradientOf(subject, result);
  const advantages = computed ? perToken(batch, computed) : batch.advantages;
  return {
    grad: options.grad,
    offsets: gradientOffsets(subject, batch),
    ...(gradEntropy && { gradEntropy }),
    ...(subject.readsAdvantages && advantages !== undefined && { advantages: advantages as Float32Array }),
  };
}

/**
 * Computes every subject on an empty batch that has a part's columns. This reports a missing column before the other
 * parts are read.
 * @throws LossError about the columns.
 */
export async function checkColumns(
  part: RolloutPart,
  subjects: readonly Subject[],
  files: readonly string[],
): Promise<void> {
  const batch = withoutRows(part.batch);
  for (const subject of subjects)
    await termsOfFiles(files, subject, part, async () => {
      const { advantages: method } = subject;
      const made = method?.appliesTo(batch) ? await method.compute(batch) : undefined;
      await subject.compute(batch, made?.computed, { grad: new Float32Array(0) });
    });
}

function withoutRows(batch: RolloutPart['batch']): Batch {
  return Object.fromEntries(
    Object.entries(batch).map(([key, value]) => {
      if (key === 'cuSeqlens') return [key, Int32Array.of(0)];
      return [key, (value as Float32Array).subarray(0, 0)];
    }),
  );
}
