// Computes the advantages of rows that are read in parts. They are equal to the advantages that all rows would get in
// one batch. An advantage function over groups needs only one reward and one group per row. The first pass keeps these
// for all rows, and the function then computes one batch in which each row has a single token. An advantage function
// that looks at each row alone computes a part when the second pass reaches it.
import type { ComputedAdvantages } from '../core/computed-advantages.js';
import type { Batch, Metrics } from '../index.js';
import type { RolloutPart } from '../rollouts/index.js';
import { errorAt } from '../rollouts/source.js';
import type { AdvantageStep } from './advantage-step.js';
import { Growing } from './growing.js';
import { RowMetrics } from './row-metrics.js';

/**
 * Computes the advantages of all rows in two passes: survey() sees every part first, then of() returns the advantages.
 */
export interface WholeAdvantages {
  /** Collects a part's inputs of the advantages. The parts must be passed in the order of their rows. */
  survey(part: RolloutPart): Promise<void>;
  /** Ends the first pass. Must be called after survey() has seen the last part. */
  settle(): Promise<void>;
  /** How often each row counts (0 if it is dropped); undefined if every row counts once. Available after settle(). */
  readonly repeats: Uint32Array | undefined;
  /** Returns the advantages of a part. Must be called after settle(), once for each part. */
  of(part: RolloutPart): Promise<ComputedAdvantages>;
  /** The advantage function's metrics. They cover all rows once of() was called for every part. */
  readonly metrics: Metrics;
}

/**
 * Returns an object that computes the advantages of all rows by a step whose scope is 'row' or 'group'.
 * @param unmasked the number of unmasked tokens of each row. The caller must add a part's numbers before it calls
 * survey() with this part.
 */
export function wholeAdvantages(step: AdvantageStep, unmasked: Growing<Uint32Array>): WholeAdvantages {
  return step.scope === 'group' ? new GroupAdvantages(step, unmasked) : new RowAdvantages(step);
}

/** Computes advantages over groups. The rows of a group may be in different parts. */
class GroupAdvantages implements WholeAdvantages {
  repeats: Uint32Array | undefined;
  readonly #step: AdvantageStep;
  readonly #unmasked: Growing<Uint32Array>;
  readonly #rewards = new Growing((length) => new Float64Array(length));
  readonly #groups = new Growing((length) => new Int32Array(length));
  readonly #runs = new Growing((length) => new Int32Array(length));
  readonly #meanOldLogprobs = new Growing((length) => new Float64Array(length));
  #rewardsTokens = false;
  readonly #penalty = new RowMetrics();
  #scores = new Float32Array(0);
  #metrics: Metrics = {};

  constructor(step: AdvantageStep, unmasked: Growing<Uint32Array>) {
    this.#step = step;
    this.#unmasked = unmasked;
  }

  async survey(part: RolloutPart): Promise<void> {
    const { readsTokenRewards, readsOldLogprob } = this.#step;
    const { batch, metrics } = await this.#step.penalise(part.batch);
    this.#penalty.add(metrics, part.rows);
    const tokenRewards = readsTokenRewards ? batch.tokenLevelRewards : undefined;
    this.#rewardsTokens = tokenRewards !== undefined;
    if (tokenRewards !== undefined) this.#addSums(part, tokenRewards as Float32Array);
    else this.#addRewards(part, batch.rewards as Float64Array);
    this.#groups.append(batch.groupIds as Int32Array);
    if (batch.runIds) this.#runs.append(batch.runIds as Int32Array);
    if (readsOldLogprob) this.#addMeans(part, batch.oldLogprob as Float32Array);
  }

  async settle(): Promise<void> {
    const rows = this.#unmasked.length;
    // An advantage function that reads token rewards puts a row's only reward on the row's last unmasked token. A row
    // without unmasked tokens then has no reward, which a mask of 0 expresses here.
    const onLastToken = this.#step.readsTokenRewards && !this.#rewardsTokens;
    const batch: Batch = {
      shape: [rows, 1],
      actionMask: Uint8Array.from(this.#unmasked.values, (n) => (n > 0 || !onLastToken ? 1 : 0)),
      rewards: this.#rewards.values,
      groupIds: this.#groups.values,
    };
    if (this.#runs.length > 0) batch.runIds = this.#runs.values;
    if (this.#meanOldLogprobs.length > 0) batch.oldLogprob = ranks(this.#meanOldLogprobs.values);
    const { computed, metrics } = await this.#step.computeRows(batch);
    this.#scores = computed.column as Float32Array<ArrayBuffer>;
    this.repeats = computed.repeats;
    this.#metrics = { ...metrics, ...this.#penalty.whole };
  }

  async of({ first, rows }: RolloutPart): Promise<ComputedAdvantages> {
    return {
      column: this.#scores.subarray(first, first + rows),
      perRow: true,
      repeats: this.repeats?.subarray(first, first + rows),
    };
  }

  get metrics(): Metrics {
    return this.#metrics;
  }

  #addRewards({ places }: RolloutPart, rewards: Float64Array): void {
    rewards.forEach((reward, row) => {
      if (!Number.isFinite(reward))
        throw errorAt(places[row]!, 'ERR_INVALID_INPUT', {
          key: 'reward',
          expected: 'a finite number',
          received: String(reward),
        });
      this.#rewards.push(reward);
    });
  }

  #addSums({ batch, rows, places }: RolloutPart, rewards: Float32Array): void {
    for (let row = 0; row < rows; row++) {
      let sum = 0;
      for (let t = batch.cuSeqlens[row]!; t < batch.cuSeqlens[row + 1]!; t++) sum += rewards[t]!;
      if (!Number.isFinite(sum))
        throw errorAt(places[row]!, 'ERR_INVALID_INPUT', {
          key: 'token_level_rewards',
          expected: 'finite numbers',
          received: `numbers whose sum is ${sum}`,
        });
      this.#rewards.push(sum);
    }
  }

  #addMeans({ batch, first, rows }: RolloutPart, values: Float32Array): void {
    const unmasked = this.#unmasked.values;
    for (let row = 0; row < rows; row++) {
      let sum = 0;
      for (let t = batch.cuSeqlens[row]!; t < batch.cuSeqlens[row + 1]!; t++)
        if (batch.actionMask[t] !== 0) sum += values[t]!;
      const count = unmasked[first + row]!;
      this.#meanOldLogprobs.push(count > 0 ? sum / count : 0);
    }
  }
}

/** Computes advantages that depend on nothing but the row itself. */
class RowAdvantages implements WholeAdvantages {
  readonly repeats = undefined;
  readonly #step: AdvantageStep;
  readonly #all = new RowMetrics();

  constructor(step: AdvantageStep) {
    this.#step = step;
  }

  async survey(): Promise<void> {}

  async settle(): Promise<void> {}

  async of({ batch, rows }: RolloutPart): Promise<ComputedAdvantages> {
    const { computed, metrics } = await this.#step.compute(batch);
    this.#all.add(metrics, rows);
    return computed;
  }

  get metrics(): Metrics {
    return this.#all.whole;
  }
}

/**
 * Returns each value's rank among the distinct values. The ranks have the same order as the values. They replace the
 * values where only the order matters, because float32 holds ranks exactly but would round the values.
 */
function ranks(values: Float64Array): Float32Array {
  const sorted = Float64Array.from(new Set(values)).sort();
  const rank = new Map<number, number>();
  sorted.forEach((value, i) => {
    rank.set(value, i);
  });
  return Float32Array.from(values, (value) => rank.get(value)!);
}
