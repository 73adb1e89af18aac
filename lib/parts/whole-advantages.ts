// The advantages of rows that come in parts, as they are where all rows come at once. What a function over groups looks
// at is one number or name per row: these are kept of every part, and the function then sees them as a batch whose rows
// have one token each. Functions that look at each row by itself make the advantages of a part when its turn comes.

import { Growing } from '../cli/growing.js';
import type { AdvantageStep } from '../cli/subject.js';
import type { ComputedAdvantages } from '../core/evaluator.js';
import type { Batch, Metrics } from '../index.js';
import type { RolloutPart } from '../rollouts/index.js';
import { at } from '../rollouts/source.js';

/** The advantages of one function over all parts of a stream. */
export interface WholeAdvantages {
  /** Takes what it needs to know of a part, the parts in their order. */
  survey(part: RolloutPart): Promise<void>;
  /** To be called once all have been surveyed. */
  settle(): Promise<void>;
  /** How often each row counts, once settled; undefined: each once. */
  readonly copies: Uint32Array | undefined;
  /** The advantages of a part, once settled; to be asked for once for each part. */
  of(part: RolloutPart): Promise<ComputedAdvantages>;
  /** The metrics of all rows, once every part's advantages have been asked for. */
  readonly metrics: Metrics;
}

/**
 * @param step what makes the advantages of a batch.
 * @param unmasked of each row surveyed so far how many tokens count; the caller's, who surveys the part there first.
 * @throws LossError `ERR_INVALID_OPTION` for functions that must have all rows at once.
 */
export function wholeAdvantages(step: AdvantageStep, unmasked: Growing<Uint32Array>): WholeAdvantages {
  return step.fn.definition.perRow ? new GroupAdvantages(step, unmasked) : new RowAdvantages(step);
}

/** Advantages over groups, whose rows may be in any parts. */
class GroupAdvantages implements WholeAdvantages {
  copies: Uint32Array | undefined;
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
    const { inputs } = this.#step.fn.definition;
    const { batch, metrics } = await this.#step.penalised(part.batch);
    this.#penalty.add(metrics, part.rows);
    const tokenRewards = inputs.includes('token_level_rewards') ? batch.tokenLevelRewards : undefined;
    this.#rewardsTokens = tokenRewards !== undefined;
    if (tokenRewards !== undefined) this.#addSums(part, tokenRewards as Float32Array);
    else this.#addRewards(part, batch.rewards as Float64Array);
    this.#groups.append(batch.groupIds as Int32Array);
    if (batch.runIds) this.#runs.append(batch.runIds as Int32Array);
    if (inputs.includes('old_logprob')) this.#addMeans(part, batch.oldLogprob as Float32Array);
  }

  async settle(): Promise<void> {
    const rows = this.#unmasked.length;
    // Where a row's reward stands on its last token that counts, there is none without such a token.
    const onLast = this.#step.fn.definition.inputs.includes('token_level_rewards') && !this.#rewardsTokens;
    const batch: Batch = {
      shape: [rows, 1],
      actionMask: Uint8Array.from(this.#unmasked.values, (n) => (n > 0 || !onLast ? 1 : 0)),
      rewards: this.#rewards.values,
      groupIds: this.#groups.values,
    };
    if (this.#runs.length > 0) batch.runIds = this.#runs.values;
    if (this.#meanOldLogprobs.length > 0) batch.oldLogprob = ranks(this.#meanOldLogprobs.values);
    const { fn, seed } = this.#step;
    const { computed, metrics } = await fn.computeFor(batch, seed === undefined ? {} : { seed }, false);
    this.#scores = computed.column as Float32Array<ArrayBuffer>;
    this.copies = computed.copies;
    this.#metrics = { ...metrics, ...this.#penalty.whole };
  }

  async of({ first, rows }: RolloutPart): Promise<ComputedAdvantages> {
    return {
      column: this.#scores.subarray(first, first + rows),
      perRow: true,
      copies: this.copies?.subarray(first, first + rows),
    };
  }

  get metrics(): Metrics {
    return this.#metrics;
  }

  #addRewards({ places }: RolloutPart, rewards: Float64Array): void {
    rewards.forEach((reward, row) => {
      if (!Number.isFinite(reward))
        throw at(places[row]!, 'ERR_INVALID_INPUT', `reward: expected a finite number, not ${reward}`);
      this.#rewards.push(reward);
    });
  }

  #addSums({ batch, rows, places }: RolloutPart, rewards: Float32Array): void {
    for (let row = 0; row < rows; row++) {
      let sum = 0;
      for (let t = batch.cuSeqlens[row]!; t < batch.cuSeqlens[row + 1]!; t++) sum += rewards[t]!;
      if (!Number.isFinite(sum))
        throw at(places[row]!, 'ERR_INVALID_INPUT', 'token_level_rewards: expected finite numbers');
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

/** Advantages of rows each by itself. */
class RowAdvantages implements WholeAdvantages {
  readonly copies = undefined;
  readonly #step: AdvantageStep;
  readonly #all = new RowMetrics();

  constructor(step: AdvantageStep) {
    this.#step = step;
  }

  async survey(): Promise<void> {}

  async settle(): Promise<void> {}

  async of({ batch, rows }: RolloutPart): Promise<ComputedAdvantages> {
    const { computed, metrics } = await this.#step.make(batch);
    this.#all.add(metrics, rows);
    return computed;
  }

  get metrics(): Metrics {
    return this.#all.whole;
  }
}

/** Metrics that are taken over rows: means, sample deviations (`…/std` beside `…/mean`), and coefficients. */
class RowMetrics {
  #rows = 0;
  #means: Metrics = {};
  // Of each deviation, the sum of squared distances from the mean.
  readonly #squares: Metrics = {};

  add(metrics: Metrics, rows: number): void {
    const all = this.#rows + rows;
    const before = this.#means;
    this.#means = {};
    for (const [name, value] of Object.entries(metrics)) {
      if (!name.endsWith('/std')) {
        const mean = before[name] ?? value;
        // Equal ones, as a coefficient's, stay what they are to the bit.
        this.#means[name] = all > 0 ? mean + ((value - mean) * rows) / all : mean;
        continue;
      }
      const ofMean = name.replace(/std$/, 'mean');
      const difference = metrics[ofMean]! - (before[ofMean] ?? metrics[ofMean]!);
      this.#squares[name] =
        (this.#squares[name] ?? 0) +
        value * value * Math.max(rows - 1, 0) +
        (all > 0 ? (difference * difference * this.#rows * rows) / all : 0);
      this.#means[name] = 0;
    }
    this.#rows = all;
  }

  get whole(): Metrics {
    return Object.fromEntries(
      Object.entries(this.#means).map(([name, mean]) => {
        const squares = this.#squares[name];
        return [
          name,
          squares === undefined ? mean : this.#rows > 1 ? Math.sqrt(squares / (this.#rows - 1)) : 0,
        ];
      }),
    );
  }
}

// Numbers that stand in the order of the given ones, and equal where those are; whole, so that float32 holds them.
function ranks(values: Float64Array): Float32Array {
  const sorted = Float64Array.from(new Set(values)).sort();
  const rank = new Map<number, number>();
  sorted.forEach((value, i) => {
    rank.set(value, i);
  });
  return Float32Array.from(values, (value) => rank.get(value)!);
}
