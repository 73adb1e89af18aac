// Advantages of rows that come in parts, equal to the advantages of all rows at once. A function over groups needs only
// one reward and one group name per row, so these are kept for all rows; the function then computes all rows as a batch
// of one token each. A function that looks at each row alone computes a part when the second pass reaches it.
import type { ComputedAdvantages } from '../core/evaluator.js';
import type { Batch, Metrics } from '../index.js';
import type { RolloutPart } from '../rollouts/index.js';
import { errorAt } from '../rollouts/source.js';
import type { AdvantageStep } from './advantage-step.js';
import { Growing } from './growing.js';
import { RowMetrics } from './row-metrics.js';

/** The advantages of all rows, part by part. */
export interface WholeAdvantages {
  /** Collects what is needed from a part. Parts must come in the order of their rows. */
  survey(part: RolloutPart): Promise<void>;
  /** Ends the first pass, after the last part. */
  settle(): Promise<void>;
  /** How often each row counts, after settle(); undefined if every row counts once. */
  readonly repeats: Uint32Array | undefined;
  /** Returns the advantages of a part, after settle(). Call it once for each part. */
  of(part: RolloutPart): Promise<ComputedAdvantages>;
  /** The metrics over all rows, after of() of every part. */
  readonly metrics: Metrics;
}

/**
 * Returns the advantages of a step whose scope is a row or a group.
 * @param unmasked the unmasked tokens of each row, which the caller adds before it calls survey() with the same part.
 */
export function wholeAdvantages(step: AdvantageStep, unmasked: Growing<Uint32Array>): WholeAdvantages {
  return step.scope === 'group' ? new GroupAdvantages(step, unmasked) : new RowAdvantages(step);
}

/** Advantages over groups, whose rows may be in different parts. */
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
    // A function of token rewards puts a row's reward on its last unmasked token, so a row without one has no reward.
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

/** Advantages that depend on one row only. */
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
 * Returns each value's rank among the distinct values. Ranks order rows as the float64 values do, and unlike these they
 * are exact in float32.
 */
function ranks(values: Float64Array): Float32Array {
  const sorted = Float64Array.from(new Set(values)).sort();
  const rank = new Map<number, number>();
  sorted.forEach((value, i) => {
    rank.set(value, i);
  });
  return Float32Array.from(values, (value) => rank.get(value)!);
}
