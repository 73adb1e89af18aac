/**
 * Computes Trinity-RFT's advantage functions in plain float64, without the library's code. Tests compare the library with these
 * results. Some functions choose rows or groups at random. The reference is told which ones the library chose and
 * computes what follows from the choice. Tests check separately that the choice was allowed.
 */
import { type Args, option, type ReferenceBatch, rowPositions } from './batch.js';

/** A batch with the inputs of advantage functions. Columns with a value per token have shape B×T (rows × columns). */
export interface RewardedBatch extends ReferenceBatch {
  runIds?: ArrayLike<number | string>;
  tokenLevelRewards?: ArrayLike<number>;
  values?: ArrayLike<number>;
  rewardBaselines?: ArrayLike<number>;
  /** For each token, the sum of the squared probabilities of the vocabulary. */
  sumPiSquared?: ArrayLike<number>;
  rolloutIsWeights?: ArrayLike<number>;
  /** One value per row: rows with the same id are of one data set. */
  datasetIds?: ArrayLike<number | string>;
}

export interface ReferenceAdvantages {
  /** Shape B×T (rows × columns), with 0 beyond the end of each row. */
  advantages: Float64Array;
  returns: Float64Array;
  /** One flag per row: false if the advantage function dropped the row. */
  kept: boolean[];
  metrics: Record<string, number>;
  /** For metrics whose terms may cancel: the sum of the terms' absolute values, as in ReferenceResult. */
  magnitude: Record<string, number>;
}

/**
 * An advantage function of the reference. `leftOut` holds the rows that the library dropped at random. It is only for
 * rec with drop='balance'.
 */
export type Advantage = (
  args: Args,
  batch: RewardedBatch,
  leftOut?: ReadonlySet<number>,
) => ReferenceAdvantages;

export const rowsOf = (batch: RewardedBatch) => Array.from({ length: batch.rows }, (_, b) => b);
export const zeros = (batch: RewardedBatch) => new Float64Array(batch.rows * batch.columns);
export const sum = (values: readonly number[]) => values.reduce((total, x) => total + x, 0);
/**
 * Returns the mean. Sums differences from the first value, so that the mean of equal numbers is exactly that number.
 */
export const mean = (values: readonly number[]) => {
  const origin = values[0]!;
  return origin + sum(values.map((x) => x - origin)) / values.length;
};
const squares = (values: readonly number[]) => {
  const m = mean(values);
  return sum(values.map((x) => (x - m) ** 2));
};
export const sampleStd = (values: readonly number[]) => Math.sqrt(squares(values) / (values.length - 1));
const populationStd = (values: readonly number[]) => Math.sqrt(squares(values) / values.length);

export function unmaskedPositions(batch: RewardedBatch, b: number): number[] {
  return rowPositions(batch, b).filter((at) => batch.actionMask[at]);
}

/**
 * Returns a reward per token, B×T: the batch's token-level rewards if it has them. Otherwise each row's reward is at
 * its last unmasked token, and all other tokens have 0.
 */
export function tokenRewards(batch: RewardedBatch): Float64Array {
  if (batch.tokenLevelRewards) return Float64Array.from(batch.tokenLevelRewards);
  const rewards = zeros(batch);
  for (const b of rowsOf(batch)) {
    const last = unmaskedPositions(batch, b).at(-1);
    if (last !== undefined) rewards[last] = batch.rewards![b]!;
  }
  return rewards;
}

/** Returns the sum of each row's rewards, those of masked tokens included. */
export function rowRewards(batch: RewardedBatch): number[] {
  const rewards = tokenRewards(batch);
  return rowsOf(batch).map((b) => sum(rowPositions(batch, b).map((at) => rewards[at]!)));
}

/** Groups items by key. The groups are in the order in which their keys first appear. */
function gather<K, T>(items: readonly T[], key: (item: T) => K): Map<K, T[]> {
  const groups = new Map<K, T[]>();
  for (const item of items) {
    const known = groups.get(key(item));
    if (known) known.push(item);
    else groups.set(key(item), [item]);
  }
  return groups;
}

/** Returns the rows of each group. */
export const groupsOf = (batch: RewardedBatch): number[][] => [
  ...gather(rowsOf(batch), (b) => batch.groupIds![b]!).values(),
];

/** Returns the rows of each run of each group. Run ids are unique only within a group. */
export const runsOf = (batch: RewardedBatch): number[][][] =>
  groupsOf(batch).map((rows) => [...gather(rows, (b) => batch.runIds![b]!).values()]);

function overGroups(name: string, values: readonly number[]): Record<string, number> {
  const [average, most, least] = values.length
    ? [mean(values), values.reduce((a, b) => Math.max(a, b)), values.reduce((a, b) => Math.min(a, b))]
    : [0, 0, 0];
  return {
    [`group_advantages/${name}/mean`]: average,
    [`group_advantages/${name}/max`]: most,
    [`group_advantages/${name}/min`]: least,
  };
}

// Advantage functions that add up the rewards of the rest of a row: ppo, reinforceplusplus and remax. Masked tokens
// count too, except where masked() removes them.

function whitened(batch: RewardedBatch, x: Float64Array): Float64Array {
  const counted = rowsOf(batch).flatMap((b) => unmaskedPositions(batch, b).map((at) => x[at]!));
  const out = zeros(batch);
  if (counted.length === 0) return out;
  const variance = counted.length > 1 ? squares(counted) / (counted.length - 1) : 0;
  const center = mean(counted);
  for (const b of rowsOf(batch)) {
    for (const at of rowPositions(batch, b)) out[at] = (x[at]! - center) / Math.sqrt(variance + 1e-8);
  }
  return out;
}

/** Returns results without metrics. */
export const everyRow = (
  batch: RewardedBatch,
  advantages: Float64Array,
  returns = advantages,
): ReferenceAdvantages => ({
  advantages,
  returns,
  kept: rowsOf(batch).map(() => true),
  metrics: {},
  magnitude: {},
});

const ppo: Advantage = (args, batch) => {
  const gamma = option(args, 'gamma', 1);
  const lambda = option(args, 'lam', 1);
  const rewards = tokenRewards(batch);
  const values = batch.values!;
  const advantages = zeros(batch);
  const returns = zeros(batch);
  for (const b of rowsOf(batch)) {
    let next = 0;
    let nextValue = 0;
    for (const at of rowPositions(batch, b).reverse()) {
      next = rewards[at]! + gamma * nextValue - values[at]! + gamma * lambda * next;
      nextValue = values[at]!;
      advantages[at] = next;
      returns[at] = next + nextValue;
    }
  }
  return everyRow(batch, whitened(batch, advantages), returns);
};

/**
 * Returns for each token the sum of its reward and all later rewards of its row. A reward that comes n tokens later is
 * multiplied by gamma^n.
 */
function rewardToGo(batch: RewardedBatch, rewards: Float64Array, gamma: number): Float64Array {
  const out = zeros(batch);
  for (const b of rowsOf(batch)) {
    let next = 0;
    for (const at of rowPositions(batch, b).reverse()) {
      next = rewards[at]! + gamma * next;
      out[at] = next;
    }
  }
  return out;
}

export const masked = (batch: RewardedBatch, x: Float64Array) =>
  x.map((value, i) => (batch.actionMask[i] ? value : 0));

const reinforceplusplus: Advantage = (args, batch) => {
  const returns = rewardToGo(batch, tokenRewards(batch), option(args, 'gamma', 1));
  return everyRow(batch, masked(batch, whitened(batch, returns)), returns);
};

const remax: Advantage = (_args, batch) => {
  const returns = rewardToGo(batch, masked(batch, tokenRewards(batch)), 1);
  const advantages = returns.map((value, i) =>
    batch.actionMask[i] ? value - batch.rewardBaselines![Math.floor(i / batch.columns)]! : value,
  );
  return everyRow(batch, advantages, returns);
};

// Advantage functions that compute one score per row, from the rewards of the row's group.

export function scored(
  batch: RewardedBatch,
  scores: readonly number[],
  metrics: Record<string, number>,
  kept = scores.map(() => true),
): ReferenceAdvantages {
  const advantages = zeros(batch);
  for (const b of rowsOf(batch)) {
    if (kept[b]) for (const at of unmaskedPositions(batch, b)) advantages[at] = scores[b]!;
  }
  return { advantages, returns: advantages, kept, metrics, magnitude: {} };
}

const rloo: Advantage = (_args, batch) => {
  const perRow = rowRewards(batch);
  const scores: number[] = [];
  for (const rows of groupsOf(batch)) {
    for (const b of rows) {
      const others = rows.filter((other) => other !== b).map((other) => perRow[other]!);
      scores[b] = others.length ? perRow[b]! - mean(others) : perRow[b]!;
    }
  }
  return scored(batch, scores, {});
};

/**
 * Returns the standard deviation of all rewards if std_cal_level is `batch`. Otherwise returns undefined, because each
 * group uses its own standard deviation.
 */
function batchStd(args: Args, all: readonly number[]): number | undefined {
  if (option<string>(args, 'std_cal_level', 'group') !== 'batch') return undefined;
  return all.length > 1 ? sampleStd(all) : 1;
}

/**
 * Prepares the normalisation of one group for grpo and step_wise_grpo.
 * @param shaped the rewards from which the group's mean and standard deviation are computed: one per row (grpo) or per
 * run (step_wise_grpo).
 * @param ofBatch the standard deviation of the whole batch, if rewards are divided by it instead of the group's own.
 * @returns a function that turns a reward into a score, whether the group is kept, and the group's mean (`center`) and
 * standard deviation.
 */
function normalised(args: Args, shaped: readonly number[], ofBatch: number | undefined) {
  const alone = shaped.length === 1;
  const center = alone ? 0 : mean(shaped);
  const std = alone ? 1 : sampleStd(shaped);
  const scale = (ofBatch ?? std) + option(args, 'epsilon', 1e-6);
  const threshold = option<number | null>(args, 'std_threshold', null);
  return {
    score: (reward: number) => (reward - center) / scale,
    kept: threshold === null || (!alone && std > threshold),
    center,
    std,
  };
}

const grpo: Advantage = (args, batch) => {
  const rewards = Array.from(batch.rewards!);
  const ofBatch = batchStd(args, rewards);
  const penalty = option<number | null>(args, 'rank_penalty', null);
  const likelihood = (b: number) => {
    const old = unmaskedPositions(batch, b).map((at) => batch.oldLogprob![at]!);
    return old.length ? mean(old) : 0;
  };
  const scores: number[] = [];
  const kept: boolean[] = [];
  const groups = groupsOf(batch).map((rows) => {
    let shaped = rows.map((b) => rewards[b]!);
    if (penalty !== null && rows.length > 1) {
      const likelihoods = new Map(rows.map((b) => [b, likelihood(b)]));
      const order = rows.toSorted((x, y) => likelihoods.get(x)! - likelihoods.get(y)!);
      const rank = new Map(order.map((b, position) => [b, position]));
      shaped = rows.map((b) => rewards[b]! * (1 - (rank.get(b)! / rows.length) * penalty));
    }
    const group = normalised(args, shaped, ofBatch);
    for (const b of rows) {
      scores[b] = group.score(rewards[b]!);
      kept[b] = group.kept;
    }
    return group;
  });
  const metrics = {
    ...overGroups(
      'reward_mean',
      groups.map((group) => group.center),
    ),
    ...overGroups(
      'reward_std',
      groups.map((group) => group.std),
    ),
    filtered_count: kept.filter((is) => !is).length,
  };
  return scored(batch, scores, metrics, kept);
};

const stepWiseGrpo: Advantage = (args, batch) => {
  const runs = runsOf(batch);
  const rewardOf = (run: readonly number[]) => batch.rewards![run.at(-1)!]!;
  const ofBatch = batchStd(args, runs.flat().map(rewardOf));
  const scores: number[] = [];
  const kept: boolean[] = [];
  const groups = runs.map((ofGroup) => {
    const group = normalised(args, ofGroup.map(rewardOf), ofBatch);
    for (const run of ofGroup) {
      const score = group.score(rewardOf(run));
      for (const b of run) {
        scores[b] = option(args, 'enable_step_norm', false) ? score / run.length : score;
        kept[b] = group.kept;
      }
    }
    return group;
  });
  const dropped = groups.filter((group) => !group.kept).length;
  const metrics = {
    ...overGroups(
      'reward_mean',
      groups.map((group) => group.center),
    ),
    ...overGroups(
      'reward_std',
      groups.map((group) => group.std),
    ),
    experience_count: kept.filter((is) => is).length,
    filtered_count: kept.filter((is) => !is).length,
    skipped_group_ratio: groups.length ? dropped / groups.length : 0,
  };
  return scored(batch, scores, metrics, kept);
};

const reinforce: Advantage = (_args, batch) => {
  const rewards = Array.from(batch.rewards!);
  const means = groupsOf(batch).map((rows) => mean(rows.map((b) => rewards[b]!)));
  return scored(batch, rewards, overGroups('reward_mean', means));
};

/** Subtracts from each reward the baseline of its group. A group of one row has baseline 0. */
function overBaseline(batch: RewardedBatch, baselineOf: (rewards: number[]) => number) {
  const scores: number[] = [];
  const groups = groupsOf(batch).map((rows) => {
    const rewards = rows.map((b) => batch.rewards![b]!);
    const baseline = rewards.length > 1 ? baselineOf(rewards) : 0;
    for (const b of rows) scores[b] = batch.rewards![b]! - baseline;
    return { baseline, mean: mean(rewards) };
  });
  return { scores, groups };
}

const opmd: Advantage = (args, batch) => {
  const tau = option(args, 'tau', 1);
  const logAverageExp = (rewards: number[]) => {
    const top = rewards.reduce((a, b) => Math.max(a, b));
    return top + tau * Math.log(mean(rewards.map((reward) => Math.exp((reward - top) / tau))));
  };
  const baselineOf = option<string>(args, 'opmd_baseline', 'mean') === 'mean' ? mean : logAverageExp;
  const { scores, groups } = overBaseline(batch, baselineOf);
  return scored(batch, scores, {
    ...overGroups(
      'group_baseline',
      groups.map((group) => group.baseline),
    ),
    ...overGroups(
      'reward_mean',
      groups.map((group) => group.mean),
    ),
  });
};

const asymre: Advantage = (args, batch) => {
  const shift = option(args, 'baseline_shift', -0.1);
  const { scores, groups } = overBaseline(batch, (rewards) => mean(rewards) + shift);
  return scored(batch, scores, {
    ...overGroups(
      'group_baseline',
      groups.map((group) => group.baseline),
    ),
    // As in Trinity-RFT, this metric is the baseline without the shift. For a group of one row that is not the mean
    // reward, because its baseline is 0 and contains no shift.
    ...overGroups(
      'reward_mean',
      groups.map((group) => group.baseline - shift),
    ),
  });
};

const rec: Advantage = (args, batch, leftOut = new Set()) => {
  const scores: number[] = [];
  const groups = groupsOf(batch).map((rows) => {
    const rest = rows.filter((b) => !leftOut.has(b)).map((b) => batch.rewards![b]!);
    const [center, std] = rest.length > 1 ? [mean(rest), populationStd(rest)] : [0, 1];
    const scale = option(args, 'std_normalize', false) ? std + option(args, 'epsilon', 1e-6) : 1;
    for (const b of rows) scores[b] = leftOut.has(b) ? 0 : (batch.rewards![b]! - center) / scale;
    return { dropped: (rows.length - rest.length) / rows.length, center, std };
  });
  return scored(batch, scores, {
    ...overGroups(
      'drop_balance',
      groups.map((group) => group.dropped),
    ),
    ...overGroups(
      'reward_mean',
      groups.map((group) => group.center),
    ),
    ...overGroups(
      'reward_std',
      groups.map((group) => group.std),
    ),
  });
};

// Advantage functions that compare two policies at each token: the policy that sampled it and a teacher.

function distilled(
  batch: RewardedBatch,
  name: string,
  coef: number,
  divergence: (old: number, teacher: number) => number,
): ReferenceAdvantages {
  const advantages = zeros(batch);
  const perRow: { divergence: number; advantage: number; magnitude: number }[] = [];
  for (const b of rowsOf(batch)) {
    const row = { divergence: 0, advantage: 0, magnitude: 0 };
    for (const at of unmaskedPositions(batch, b)) {
      const value = divergence(batch.oldLogprob![at]!, batch.teacherLogprob![at]!);
      advantages[at] = -coef * value;
      row.divergence += value;
      row.advantage -= coef * value;
      row.magnitude += Math.abs(value);
    }
    perRow.push(row);
  }
  const divergences = perRow.map((row) => row.divergence);
  const largest = perRow.reduce((most, row) => Math.max(most, row.magnitude), 0);
  return {
    advantages,
    returns: advantages,
    kept: perRow.map(() => true),
    metrics: {
      [`${name}/mean`]: perRow.length ? mean(divergences) : 0,
      [`${name}/std`]: perRow.length > 1 ? sampleStd(divergences) : 0,
      'advantages/mean': perRow.length ? mean(perRow.map((row) => row.advantage)) : 0,
    },
    magnitude: {
      [`${name}/mean`]: largest,
      [`${name}/std`]: largest,
      'advantages/mean': Math.abs(coef) * largest,
    },
  };
}

const onPolicyDistill: Advantage = (args, batch) =>
  distilled(batch, 'kl', option(args, 'kl_coef', 1), (old, teacher) => old - teacher);

const jsd: Advantage = (args, batch) => {
  const beta = option<number>(args, 'lambda_coef', 0.5);
  const temperature = option(args, 'temperature', 1);
  return distilled(batch, 'jsd', option(args, 'kl_coef', 1), (old, teacher) => {
    const [s, t] = [old / temperature, teacher / temperature];
    if (beta === 0) return s - t;
    if (beta === 1) return t - s;
    const [x, y] = [s + Math.log(1 - beta), t + Math.log(beta)];
    const top = Math.max(x, y);
    const mixture = top + Math.log(Math.exp(x - top) + Math.exp(y - top));
    return beta * (t - mixture) + (1 - beta) * (s - mixture);
  });
};

/** The reference's advantage functions, by registry name. */
export const trinityAdvantages: Record<string, Advantage> = {
  ppo,
  reinforceplusplus,
  remax,
  rloo,
  grpo,
  step_wise_grpo: stepWiseGrpo,
  reinforce,
  opmd,
  asymre,
  rec,
  on_policy_distill: onPolicyDistill,
  jsd,
};
