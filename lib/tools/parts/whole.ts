// What is needed from all rows to compute some of them: the advantages, and the counts of tokens and rows.

import { readStep } from '../../batch/step.js';
import type { ComputedAdvantages } from '../../call/computed-advantages.js';
import { type Counts, LossError, type Metrics } from '../../index.js';
import { describePlace, type RolloutPart } from '../rollouts/index.js';
import type { RowValues } from './row-metrics.js';
import { type ShardCounts, whitensRows } from './shard-counts.js';
import type { Subject } from './subject.js';
import { groupAdvantages, onlyAdvantages, rowAdvantages, type WholeAdvantages } from './whole-advantages.js';

/** The advantages and the counts of all rows. */
export class Whole {
  readonly rows: number;
  /** The number of unmasked tokens. */
  readonly tokens: number;
  readonly #counts: ShardCounts;
  readonly #isOnePart: boolean;
  readonly #advantages = new Map<string, WholeAdvantages>();
  // The advantages of the part that was asked for last, so that subjects with equal methods compute them once.
  #part: RolloutPart | undefined;
  readonly #ofPart = new Map<string, ComputedAdvantages>();
  readonly #normalizers = new Map<string, Counts>();

  private constructor(counts: ShardCounts, isOnePart: boolean) {
    this.rows = counts.rows;
    this.tokens = counts.tokens;
    this.#counts = counts;
    this.#isOnePart = isOnePart;
  }

  /**
   * Prepares to compute rows.
   * @param counts the counts of all shards, merged.
   * @param only the part that has all rows; undefined if the rows are in several parts.
   * @param batchTokens the capacity of a part.
   * @throws LossError if the rows cannot be computed in parts, if a pair of rows is incomplete, or if the rows do not
   * all have the same `step`.
   */
  static async of(
    subjects: readonly Subject[],
    counts: ShardCounts,
    only: RolloutPart | undefined,
    batchTokens: number,
  ): Promise<Whole> {
    const whole = new Whole(counts, only !== undefined);
    if (!only) checkPartable(subjects, counts, batchTokens);
    for (const { advantages: method } of subjects) {
      if (!method || whole.#advantages.has(method.key)) continue;
      const inputs = counts.inputs[method.key];
      const spreads = counts.spreads[method.key];
      if (inputs) whole.#advantages.set(method.key, await groupAdvantages(method, counts, inputs));
      else if (spreads) whole.#advantages.set(method.key, rowAdvantages(method, spreads));
      // Without inputs and spreads, the rows have advantages, so that the method is not needed.
      else if (method.scope === 'group' || whitensRows(method)) continue;
      else if (method.scope === 'row') whole.#advantages.set(method.key, rowAdvantages(method));
      else whole.#advantages.set(method.key, onlyAdvantages(method));
    }
    return whole;
  }

  /**
   * Returns the advantages of a part's rows; undefined if the subject does not compute advantages or the rows already
   * have them.
   */
  async advantagesOf(
    { advantages: method }: Subject,
    part: RolloutPart,
  ): Promise<ComputedAdvantages | undefined> {
    if (!method?.appliesTo(part.batch)) return undefined;
    if (this.#part !== part) this.#ofPart.clear();
    this.#part = part;
    const advantages = this.#advantages.get(method.key);
    if (!advantages)
      throw new LossError('ERR_INVALID_INPUT', {
        at: describePlace(part.places[0]!),
        expected: 'rows with the same columns as when they were counted',
        received: 'rows without advantages',
      });
    const computed = this.#ofPart.get(method.key) ?? (await advantages.of(part));
    this.#ofPart.set(method.key, computed);
    return computed;
  }

  /** Returns the advantage function's metrics over all rows. */
  metricsOf({ advantages: method }: Subject): Metrics {
    return (method && this.#advantages.get(method.key)?.metrics) ?? {};
  }

  /** Begins a shard. Must be called before its first part. */
  beginShard(): void {
    for (const advantages of this.#advantages.values()) advantages.begin?.();
  }

  /** Returns the numbers of each row of the shard, in the parts so far, from which further metrics are computed. */
  rowValuesOf({ advantages: method }: Subject): RowValues {
    return (method && this.#advantages.get(method.key)?.rowValues) ?? {};
  }

  /** Returns the counts over all rows, to pass as normalizer; undefined if all rows are in one part. */
  normalizer({ advantages: method, readsExperts }: Subject): Counts | undefined {
    if (this.#isOnePart) return undefined;
    const repeats = method && this.#advantages.get(method.key)?.repeats;
    const key = `${readsExperts} ${repeats && method.key}`;
    const known = this.#normalizers.get(key);
    if (known) return known;
    const counts = this.#count(repeats, readsExperts);
    this.#normalizers.set(key, counts);
    return counts;
  }

  #count(repeats: Uint32Array | undefined, readsExperts: boolean): Counts {
    const { rows, longestRow, unmasked, expert } = this.#counts;
    const counts: Counts = { tokens: 0, rows: 0, columns: longestRow };
    if (readsExperts) counts.expert = { tokens: 0, rows: 0 };
    for (let row = 0; row < rows; row++) {
      const times = repeats ? repeats[row]! : 1;
      const tokens = times * unmasked[row]!;
      counts.tokens += tokens;
      counts.rows += times;
      if (!counts.expert || !expert || expert[row] === 0) continue;
      counts.expert.tokens += tokens;
      counts.expert.rows += times;
    }
    return counts;
  }
}

function checkPartable(subjects: readonly Subject[], counts: ShardCounts, batchTokens: number): void {
  if (counts.obstacle !== undefined)
    throw new LossError('ERR_INVALID_OPTION', {
      at: counts.obstacle,
      option: 'batchTokens',
      expected: `at least ${Math.ceil(counts.size)}, to compute all rows at once`,
      received: String(batchTokens),
    });
  if (subjects.some(({ pairs }) => pairs) && counts.rows % 2 !== 0)
    throw new LossError('ERR_SHAPE_MISMATCH', {
      expected: 'an even number of rows (chosen, rejected, chosen, …) for a loss over pairs',
      received: String(counts.rows),
    });
  if (counts.steps) readStep('step', counts.steps, counts.rows);
}
