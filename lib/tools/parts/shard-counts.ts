// The first phase: counts the rows of a shard, and collects what advantages over groups need of them. A shard is some of
// the rows of the files; the counts of all shards together tell what is needed to compute each of them.
import { COLUMNS, type RolloutColumn } from '../rollouts/columns.js';
import { columnOfKey, type Place, type RolloutPart } from '../rollouts/index.js';
import { errorAt } from '../rollouts/source.js';
import type { AdvantageMethod } from './advantage-method.js';
import { Growing } from './growing.js';
import { termsOfFiles } from './row-errors.js';
import { RowMetrics, type RowValues } from './row-metrics.js';
import type { Subject } from './subject.js';

/** One id per row: its number, and the ids in the order of their numbers. */
export interface NumberedIds {
  numbers: Int32Array;
  ids: readonly (number | string)[];
}

/** What an advantage function over groups needs of each row. */
export interface GroupInputs {
  rewards: Float64Array;
  /** Whether the rewards are sums of rewards per token. */
  areSums: boolean;
  /** Absent if the function does not read old log-probabilities. */
  meanOldLogprobs?: Float64Array;
  /** The metrics of the KL penalty. Without a penalty, the object is empty. */
  penalty: RowValues;
}

/** The result of the first phase for the rows of a shard. */
export interface ShardCounts {
  rows: number;
  /** The number of unmasked tokens. */
  tokens: number;
  /** A value for StreamOptions.maxTokens with which all rows would fit into one part. */
  size: number;
  longestRow: number;
  /** The number of parts that were read. */
  parts: number;
  /** The columns of the rows. */
  columns: readonly RolloutColumn[];
  /** The reason why rows with these columns cannot be computed in parts; absent if they can. */
  obstacle?: string;
  /** The place of the first row; undefined if there are no rows. */
  first?: Place;
  /** The number of unmasked tokens of each row. */
  unmasked: Uint32Array;
  /** Whether an expert wrote each row; absent if the rows have no such column. */
  expert?: Uint8Array;
  /** The step of each row; absent if the rows have no such column. */
  steps?: Float64Array;
  /** The groups of the rows; absent unless an advantage function needs them, and so are the runs. */
  groups?: NumberedIds;
  runs?: NumberedIds;
  /** The inputs of advantages over groups, by the keys of the methods that compute them. */
  inputs: Readonly<Record<string, GroupInputs>>;
  /**
   * The spreads of the rows' advantages before they are whitened, by the keys of the methods that compute each row alone:
   * for each row a NativeSpread (see binding.d.ts), whose count is that of the row's unmasked tokens.
   */
  spreads: Readonly<Record<string, Float64Array>>;
}

/** Returns whether a method's advantages are whitened but otherwise depend on nothing but the row itself. */
export function whitensRows({ scope, whitens }: AdvantageMethod): boolean {
  return scope === 'row' && whitens;
}

/** Counts the rows of a shard. */
export class ShardCounter {
  #rows = 0;
  #tokens = 0;
  #size = 0;
  #longestRow = 0;
  #parts = 0;
  #last: RolloutPart | undefined;
  #first: Place | undefined;
  #columns: RolloutColumn[] = [];
  #obstacle: string | undefined;
  readonly #unmasked = new Growing((length) => new Uint32Array(length));
  readonly #expert = new Growing((length) => new Uint8Array(length));
  readonly #steps = new Growing((length) => new Float64Array(length));
  readonly #groups = new Growing((length) => new Int32Array(length));
  readonly #runs = new Growing((length) => new Int32Array(length));
  // For each, by the key of a method, the first subject that has the method.
  readonly #inputs = new Map<string, { subject: Subject; collector: InputCollector }>();
  readonly #spreads = new Map<string, { subject: Subject; collector: SpreadCollector }>();
  readonly #files: readonly string[];
  readonly #subjects: readonly Subject[];

  /** @param files the names of the files, for error messages. */
  constructor(files: readonly string[], subjects: readonly Subject[]) {
    this.#files = files;
    this.#subjects = subjects;
  }

  /** Adds a part. The parts must be added in the order of their rows. */
  async add(part: RolloutPart): Promise<void> {
    const { batch, rows, kept, places } = part;
    if (rows === 0) return;
    this.#parts++;
    if (!this.#first) this.#begin(part);
    this.#last = part;
    this.#first ??= places[0];
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
    if (this.#inputs.size > 0) {
      this.#groups.append(batch.groupIds as Int32Array);
      if (batch.runIds) this.#runs.append(batch.runIds as Int32Array);
    }
    const unmasked = this.#unmasked.values.subarray(this.#rows);
    for (const { subject, collector } of [...this.#inputs.values(), ...this.#spreads.values()])
      await termsOfFiles(this.#files, subject, part, () => collector.add(part, unmasked));
    this.#rows += rows;
    this.#tokens += part.tokens;
  }

  /** Returns the counts of all parts that were added. */
  finish(): ShardCounts {
    const { values: expert } = this.#expert;
    const { values: steps } = this.#steps;
    const { values: groups } = this.#groups;
    const { values: runs } = this.#runs;
    const ids = (column: 'task_id' | 'run_id') => this.#last?.idsOf(column) ?? [];
    return {
      rows: this.#rows,
      tokens: this.#tokens,
      size: this.#size,
      longestRow: this.#longestRow,
      parts: this.#parts,
      columns: this.#columns,
      ...(this.#obstacle !== undefined && { obstacle: this.#obstacle }),
      ...(this.#first && { first: this.#first }),
      unmasked: this.#unmasked.values,
      ...(expert.length > 0 && { expert }),
      ...(steps.length > 0 && { steps }),
      ...(groups.length > 0 && { groups: { numbers: groups, ids: ids('task_id') } }),
      ...(runs.length > 0 && { runs: { numbers: runs, ids: ids('run_id') } }),
      inputs: finishAll(this.#inputs),
      spreads: finishAll(this.#spreads),
    };
  }

  #begin({ batch }: RolloutPart): void {
    this.#columns = Object.keys(batch).flatMap((key) => columnOfKey(key) ?? []);
    this.#obstacle = this.#subjects.flatMap((subject) => subject.obstacle(batch) ?? [])[0];
    for (const subject of this.#subjects) {
      const { advantages: method } = subject;
      if (!method?.appliesTo(batch)) continue;
      if (method.scope === 'group' && !this.#inputs.has(method.key))
        this.#inputs.set(method.key, { subject, collector: new InputCollector(method) });
      if (whitensRows(method) && !this.#spreads.has(method.key))
        this.#spreads.set(method.key, { subject, collector: new SpreadCollector(method) });
    }
  }
}

function finishAll<T>(collectors: ReadonlyMap<string, { collector: { finish(): T } }>): Record<string, T> {
  return Object.fromEntries([...collectors].map(([key, { collector }]) => [key, collector.finish()]));
}

/** Collects the spreads of the rows of one advantage function that whitens. */
class SpreadCollector {
  readonly #method: AdvantageMethod;
  readonly #spreads = new Growing((length) => new Float64Array(length));

  constructor(method: AdvantageMethod) {
    this.#method = method;
  }

  async add({ batch }: RolloutPart): Promise<void> {
    this.#spreads.append(await this.#method.spreadsOf(batch));
  }

  finish(): Float64Array {
    return this.#spreads.values;
  }
}

/** Collects the inputs of one advantage function over groups. The KL penalty is subtracted from the rewards. */
class InputCollector {
  readonly #method: AdvantageMethod;
  readonly #rewards = new Growing((length) => new Float64Array(length));
  readonly #meanOldLogprobs = new Growing((length) => new Float64Array(length));
  readonly #penalty = new RowMetrics();
  #areSums = false;

  constructor(method: AdvantageMethod) {
    this.#method = method;
  }

  async add(part: RolloutPart, unmasked: Uint32Array): Promise<void> {
    const { readsTokenRewards, readsOldLogprob } = this.#method;
    const { batch, metrics } = await this.#method.penalise(part.batch);
    this.#penalty.add(metrics, part, this.#method.penaltyOfRow);
    const tokenRewards = readsTokenRewards ? batch.tokenLevelRewards : undefined;
    this.#areSums = tokenRewards !== undefined;
    if (tokenRewards !== undefined) this.#addSums(part, tokenRewards as Float32Array);
    else this.#addRewards(part, batch.rewards as Float64Array);
    if (readsOldLogprob) this.#addMeans(part, batch.oldLogprob as Float32Array, unmasked);
  }

  finish(): GroupInputs {
    const { values } = this.#meanOldLogprobs;
    return {
      rewards: this.#rewards.values,
      areSums: this.#areSums,
      ...(values.length > 0 && { meanOldLogprobs: values }),
      penalty: this.#penalty.values,
    };
  }

  #addRewards({ places }: RolloutPart, rewards: Float64Array): void {
    rewards.forEach((reward, row) => {
      if (!Number.isFinite(reward))
        throw errorAt(places[row]!, 'ERR_INVALID_INPUT', {
          key: 'reward',
          expected: 'a finite number',
          received: String(reward),
          hint: Number.isNaN(reward) ? COLUMNS.reward.hint : undefined,
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
          hint: Number.isNaN(sum) ? COLUMNS.token_level_rewards.hint : undefined,
        });
      this.#rewards.push(sum);
    }
  }

  #addMeans({ batch, rows }: RolloutPart, values: Float32Array, unmasked: Uint32Array): void {
    for (let row = 0; row < rows; row++) {
      let sum = 0;
      for (let t = batch.cuSeqlens[row]!; t < batch.cuSeqlens[row + 1]!; t++)
        if (batch.actionMask[t] !== 0) sum += values[t]!;
      this.#meanOldLogprobs.push(unmasked[row]! > 0 ? sum / unmasked[row]! : 0);
    }
  }
}
