// The first of two passes over rows that do not fit into one part. It counts the rows and collects the inputs that
// advantages over groups need. With these, the second pass can compute one part at a time so that the results of all
// parts add up.
import { readStep } from '../core/batch-reader.js';
import type { ComputedAdvantages } from '../core/computed-advantages.js';
import { KeyMapper } from '../core/key-mapper.js';
import { type Batch, type Counts, LossError, type Metrics } from '../index.js';
import type { RolloutPart } from '../rollouts/index.js';
import { Growing } from './growing.js';
import type { Subject } from './subject.js';
import { type WholeAdvantages, wholeAdvantages } from './whole-advantages.js';

/** What is needed from all rows to compute one part of them: the advantages and the counts of tokens and rows. */
export interface Whole {
  /**
   * Returns the advantages of a part's rows; undefined if the subject does not compute advantages or the rows already
   * have them.
   */
  advantagesOf(subject: Subject, part: RolloutPart): Promise<ComputedAdvantages | undefined>;
  /** Returns the advantage function's metrics over all rows whose advantages were computed so far. */
  advantageMetrics(subject: Subject): Metrics;
  /** Returns the counts over all rows, to pass as normalizer; undefined if all rows are in one part. */
  normalizer(subject: Subject): Counts | undefined;
}

/**
 * Returns the advantages and counts for rows that are all in one part. Subjects whose advantage steps have equal keys
 * share their advantages.
 */
export function wholeOf({ batch }: RolloutPart): Whole {
  const made = new Map<string, { computed: ComputedAdvantages; metrics: Metrics }>();
  return {
    async advantagesOf({ advantages: step }) {
      if (!step?.appliesTo(batch)) return undefined;
      const result = made.get(step.key) ?? (await step.compute(batch));
      made.set(step.key, result);
      return result.computed;
    },
    advantageMetrics: ({ advantages: step }) => (step && made.get(step.key)?.metrics) ?? {},
    normalizer: () => undefined,
  };
}

/** The first pass over rows in several parts, and what it collects for the second pass. */
export class Survey implements Whole {
  rows = 0;
  /** The number of unmasked tokens. */
  tokens = 0;
  // A value for StreamOptions.maxTokens with which all rows would fit into one part.
  #size = 0;
  #longestRow = 0;
  // These lists hold one number per row of all parts.
  readonly #unmasked = new Growing((length) => new Uint32Array(length));
  readonly #expert = new Growing((length) => new Uint8Array(length));
  readonly #steps = new Growing((length) => new Float64Array(length));
  readonly #advantages = new Map<string, WholeAdvantages>();
  readonly #subjects: readonly Subject[];
  readonly #batchTokens: number;
  // The reason why the rows cannot be computed in parts; undefined if they can.
  readonly #obstacle: string | undefined;
  readonly #counts = new Map<string, Counts>();
  // The part for which advantagesOf() was last called, and its advantages, by the keys of the advantage steps.
  #part: RolloutPart | undefined;
  readonly #ofPart = new Map<string, ComputedAdvantages>();

  /**
   * @param batch the batch of the first part. It shows which columns the rows have, because all parts have the same
   * ones.
   * @param batchTokens the capacity of a part, in tokens, for an error message.
   */
  constructor(subjects: readonly Subject[], batch: Batch, batchTokens: number) {
    this.#subjects = subjects;
    this.#batchTokens = batchTokens;
    this.#obstacle = subjects.flatMap((subject) => subject.obstacle(batch) ?? [])[0];
    if (this.#obstacle) return;
    for (const { advantages: step } of subjects)
      if (step?.appliesTo(batch) && !this.#advantages.has(step.key))
        this.#advantages.set(step.key, wholeAdvantages(step, this.#unmasked));
  }

  /** Adds a part. The parts must be added in the order of their rows. */
  async add(part: RolloutPart): Promise<void> {
    const { batch, rows, kept } = part;
    const { cuSeqlens: offsets, actionMask: mask } = batch;
    for (let row = 0; row < rows; row++) {
      let unmasked = 0;
      for (let t = offsets[row]!; t < offsets[row + 1]!; t++) if (mask[t] !== 0) unmasked++;
      this.#unmasked.push(unmasked);
      const length = offsets[row + 1]! - offsets[row]!;
      this.#longestRow = Math.max(this.#longestRow, length);
      this.#size += Math.max(length, 1);
    }
    if (kept.some((row) => Object.keys(row).length > 0)) this.#size += JSON.stringify(kept).length / 2;
    if (batch.expertMask) this.#expert.append(batch.expertMask as Uint8Array);
    if (batch.step) this.#steps.append(batch.step as Float64Array);
    this.rows += rows;
    this.tokens += part.tokens;
    for (const advantages of this.#advantages.values()) await advantages.survey(part);
  }

  /**
   * Ends the first pass. Must be called after the last part was added.
   * @throws LossError if the rows cannot be computed in parts, if a pair of rows is incomplete, or if the rows do not
   * all have the same `step`.
   */
  async settle(): Promise<void> {
    if (this.#obstacle)
      throw new LossError('ERR_INVALID_OPTION', {
        at: this.#obstacle,
        option: 'batchTokens',
        expected: `at least ${Math.ceil(this.#size)}, to compute all rows at once`,
        received: String(this.#batchTokens),
      });
    if (this.#subjects.some(({ pairs }) => pairs) && this.rows % 2 !== 0)
      throw new LossError('ERR_SHAPE_MISMATCH', {
        expected: 'an even number of rows (chosen, rejected, chosen, …) for a loss over pairs',
        received: String(this.rows),
      });
    if (this.#steps.length > 0) readStep({ step: this.#steps.values }, KeyMapper.get('verl'), this.rows);
    for (const advantages of this.#advantages.values()) await advantages.settle();
  }

  async advantagesOf(
    { advantages: step }: Subject,
    part: RolloutPart,
  ): Promise<ComputedAdvantages | undefined> {
    if (!step?.appliesTo(part.batch)) return undefined;
    if (this.#part !== part) this.#ofPart.clear();
    this.#part = part;
    const computed = this.#ofPart.get(step.key) ?? (await this.#advantages.get(step.key)!.of(part));
    this.#ofPart.set(step.key, computed);
    return computed;
  }

  advantageMetrics({ advantages: step }: Subject): Metrics {
    return (step && this.#advantages.get(step.key)?.metrics) ?? {};
  }

  normalizer({ advantages: step, readsExperts }: Subject): Counts {
    const repeats = step && this.#advantages.get(step.key)?.repeats;
    const key = `${readsExperts} ${repeats && step.key}`;
    const known = this.#counts.get(key);
    if (known) return known;
    const counts = this.#count(repeats, readsExperts);
    this.#counts.set(key, counts);
    return counts;
  }

  #count(repeats: Uint32Array | undefined, readsExperts: boolean): Counts {
    const counts: Counts = { tokens: 0, rows: 0, columns: this.#longestRow };
    if (readsExperts) counts.expert = { tokens: 0, rows: 0 };
    const unmasked = this.#unmasked.values;
    const expert = this.#expert.values;
    for (let row = 0; row < this.rows; row++) {
      const times = repeats ? repeats[row]! : 1;
      const tokens = times * unmasked[row]!;
      counts.tokens += tokens;
      counts.rows += times;
      if (!counts.expert || expert[row] === 0) continue;
      counts.expert.tokens += tokens;
      counts.expert.rows += times;
    }
    return counts;
  }
}
