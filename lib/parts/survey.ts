// What parts of rows must know of the whole that they belong to: counts, and advantages that are made of all rows.
import type { MadeAdvantages } from '../algorithm/objective.js';
import { Growing } from '../cli/growing.js';
import { type Subject, takesPairs } from '../cli/subject.js';
import { readStep } from '../core/batch-reader.js';
import type { ComputedAdvantages } from '../core/evaluator.js';
import { KeyMapper } from '../core/key-mapper.js';
import { type Batch, type Counts, LossError, type Metrics } from '../index.js';
import type { RolloutPart } from '../rollouts/index.js';
import { type WholeAdvantages, wholeAdvantages } from './whole-advantages.js';

/** What a part's computation takes from the whole that it belongs to. */
export interface Whole {
  /** Of the subject's advantages, made of the part's rows. */
  advantagesOf(subject: Subject, part: RolloutPart): Promise<ComputedAdvantages | undefined>;
  /** The advantages' metrics over all rows so far. */
  advantageMetrics(subject: Subject): Metrics;
  /** undefined: the part is all there is. */
  normalizer(subject: Subject): Counts | undefined;
}

/** A part that is all there is. Subjects that make the same advantages share them. */
export function wholeOf({ batch }: RolloutPart): Whole {
  const made = new Map<string, MadeAdvantages>();
  return {
    async advantagesOf({ advantages: step }) {
      if (!step?.isFor(batch)) return undefined;
      const { computed, metrics } = made.get(step.key) ?? (await step.make(batch));
      made.set(step.key, { computed, metrics });
      return computed;
    },
    advantageMetrics: ({ advantages: step }) => (step && made.get(step.key)?.metrics) ?? {},
    normalizer: () => undefined,
  };
}

/** What is learned of all rows before any is computed. */
export class Survey implements Whole {
  rows = 0;
  /** Tokens that count. */
  tokens = 0;
  // What a part would have to hold to hold everything.
  #size = 0;
  #columns = 0;
  // Per row.
  readonly #unmasked = new Growing((length) => new Uint32Array(length));
  readonly #expert = new Growing((length) => new Uint8Array(length));
  readonly #steps = new Growing((length) => new Float64Array(length));
  readonly #advantages = new Map<string, WholeAdvantages>();
  readonly #subjects: readonly Subject[];
  // What cannot be computed by parts, if there is such a thing.
  readonly #obstacle: string | undefined;
  readonly #counts = new Map<string, Counts>();
  // Of the part at hand.
  #part: RolloutPart | undefined;
  readonly #ofPart = new Map<string, ComputedAdvantages>();

  /**
   * @param batch the first part's; the others have the same columns.
   * @param batchTokens what a part may hold.
   */
  constructor(subjects: readonly Subject[], batch: Batch, batchTokens: number) {
    this.#subjects = subjects;
    const obstacle = subjects.flatMap((subject) => needsAllAtOnce(subject, batch) ?? [])[0];
    this.#obstacle = obstacle && `${obstacle}, and there are more than the ${batchTokens} tokens of a part`;
    if (this.#obstacle) return;
    for (const { advantages: step } of subjects)
      if (step?.isFor(batch) && !this.#advantages.has(step.key))
        this.#advantages.set(step.key, wholeAdvantages(step, this.#unmasked));
  }

  /** Takes a part, the parts in their order. */
  async add(part: RolloutPart): Promise<void> {
    const { batch, rows, kept } = part;
    const { cuSeqlens: offsets, actionMask: mask } = batch;
    for (let row = 0; row < rows; row++) {
      let unmasked = 0;
      for (let t = offsets[row]!; t < offsets[row + 1]!; t++) if (mask[t] !== 0) unmasked++;
      this.#unmasked.push(unmasked);
      const length = offsets[row + 1]! - offsets[row]!;
      this.#columns = Math.max(this.#columns, length);
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
   * To be called once all have been added.
   * @throws LossError where the rows cannot be computed by parts.
   */
  async settle(): Promise<void> {
    if (this.#obstacle)
      throw new LossError(
        'ERR_INVALID_OPTION',
        `${this.#obstacle}: expected --batch-tokens ${Math.ceil(this.#size)} or more, to compute them all at once`,
      );
    if (this.#subjects.some(takesPairs) && this.rows % 2 !== 0)
      throw new LossError(
        'ERR_SHAPE_MISMATCH',
        `expected an even number of rows (chosen, rejected, chosen, …) for pairwise DPO, not ${this.rows}`,
      );
    if (this.#steps.length > 0) readStep({ step: this.#steps.values }, KeyMapper.get('tinker'), this.rows);
    for (const advantages of this.#advantages.values()) await advantages.settle();
  }

  async advantagesOf(
    { advantages: step }: Subject,
    part: RolloutPart,
  ): Promise<ComputedAdvantages | undefined> {
    if (!step?.isFor(part.batch)) return undefined;
    if (this.#part !== part) this.#ofPart.clear();
    this.#part = part;
    const computed = this.#ofPart.get(step.key) ?? (await this.#advantages.get(step.key)!.of(part));
    this.#ofPart.set(step.key, computed);
    return computed;
  }

  advantageMetrics({ advantages: step }: Subject): Metrics {
    return (step && this.#advantages.get(step.key)?.metrics) ?? {};
  }

  normalizer({ advantages: step, tellsExperts }: Subject): Counts {
    const copies = step && this.#advantages.get(step.key)?.copies;
    const key = `${tellsExperts} ${copies && step.key}`;
    const known = this.#counts.get(key);
    if (known) return known;
    const counts: Counts = { tokens: 0, rows: 0, columns: this.#columns };
    if (tellsExperts) counts.expert = { tokens: 0, rows: 0 };
    const unmasked = this.#unmasked.values;
    const expert = this.#expert.values;
    for (let row = 0; row < this.rows; row++) {
      const times = copies ? copies[row]! : 1;
      const tokens = times * unmasked[row]!;
      counts.tokens += tokens;
      counts.rows += times;
      if (!counts.expert || expert[row] === 0) continue;
      counts.expert.tokens += tokens;
      counts.expert.rows += times;
    }
    this.#counts.set(key, counts);
    return counts;
  }
}

function needsAllAtOnce({ name, policyLossFn, advantages: step }: Subject, batch: Batch): string | undefined {
  const { policyLoss } = policyLossFn;
  if (policyLoss.name === 'dpo' && policyLoss.options.pairwise === false)
    return `${name} with --no-pairwise is one margin of all rows`;
  if (!step?.isFor(batch)) return undefined;
  if (step.fn.definition.whitens)
    return `${name}'s advantages (${step.name}) are whitened over the tokens of all rows`;
  return step.adapts ? `${name}'s KL penalty adapts its coefficient to all rows` : undefined;
}
