/**
 * verl's advantage functions. The reward of a row is the sum of its tokens' rewards, masked tokens included. Every
 * function keeps every row.
 */
import {
  everyRow,
  groupsOf,
  masked,
  mean,
  type ReferenceAdvantages,
  type RewardedBatch,
  rowRewards,
  rowsOf,
  sampleStd,
  scored,
  sum,
  unmaskedPositions,
  zeros,
} from '../advantage.js';
import { type Args, camelCase, option, rowPositions } from '../batch.js';

export type VerlAdvantage = (args: Args, batch: RewardedBatch) => ReferenceAdvantages;

/**
 * Centers and scales values by the mean and the variance of those under the mask. Masked ones are changed too. verl
 * refuses fewer than two unmasked tokens. The library takes the variance of one as 0, and gives 0 to a batch with none.
 */
function whitened(batch: RewardedBatch, x: Float64Array): Float64Array {
  const counted = rowsOf(batch).flatMap((b) => unmaskedPositions(batch, b).map((at) => x[at]!));
  const n = counted.length;
  if (n === 0) return zeros(batch);
  // verl divides sums by n + 1e-8, so its center lies below the mean by `bias`. Adding the bias to the distances from
  // the mean keeps more digits than subtracting the center does.
  const average = (values: number[]) => sum(values) / (n + 1e-8);
  const middle = mean(counted);
  const bias = middle * (1e-8 / (n + 1e-8));
  const distance = (value: number) => value - middle + bias;
  const variance = n > 1 ? (average(counted.map((value) => distance(value) ** 2)) * n) / (n - 1) : 0;
  const out = zeros(batch);
  for (const b of rowsOf(batch)) {
    for (const at of rowPositions(batch, b)) out[at] = distance(x[at]!) / Math.sqrt(variance + 1e-8);
  }
  return out;
}

/** Computes a score for each row from its group's rewards. `rows` holds the group's rows. */
function grouped(
  batch: RewardedBatch,
  rewards: readonly number[],
  scoresOf: (rewards: number[], rows: number[]) => number[],
): number[] {
  const scores: number[] = [];
  for (const rows of groupsOf(batch)) {
    const group = scoresOf(
      rows.map((b) => rewards[b]!),
      rows,
    );
    rows.forEach((b, i) => {
      scores[b] = group[i]!;
    });
  }
  return scores;
}

/** Returns rewards minus their mean. A reward without others in its group stays as it is. */
const centered = (rewards: number[]) =>
  rewards.length > 1 ? rewards.map((reward) => reward - mean(rewards)) : rewards;

/** Returns what a group's scores are divided by. */
function scaleOf(args: Args, rewards: number[]): number {
  if (!option(args, 'norm_adv_by_std_in_grpo', true)) return 1;
  return (rewards.length > 1 ? sampleStd(rewards) : 1) + option(args, 'epsilon', 1e-6);
}

const grpo = (args: Args) => (rewards: number[]) =>
  centered(rewards).map((score) => score / scaleOf(args, rewards));

// Functions that go through each row from its end. They skip masked tokens.

const gae: VerlAdvantage = (args, batch) => {
  const [gamma, lambda] = [option(args, 'gamma', 1), option(args, 'lam', 1)];
  const values = batch.values!;
  const advantages = zeros(batch);
  const returns = zeros(batch);
  for (const b of rowsOf(batch)) {
    let next = 0;
    let nextValue = 0;
    for (const at of rowPositions(batch, b).reverse()) {
      if (batch.actionMask[at]) {
        const delta = batch.tokenLevelRewards![at]! + gamma * nextValue - values[at]!;
        next = delta + gamma * lambda * next;
        nextValue = values[at]!;
      }
      advantages[at] = next;
      returns[at] = next + values[at]!;
    }
  }
  return everyRow(batch, whitened(batch, advantages), returns);
};

const reinforcePlusPlus: VerlAdvantage = (args, batch) => {
  const returns = zeros(batch);
  for (const b of rowsOf(batch)) {
    let next = 0;
    for (const at of unmaskedPositions(batch, b).reverse()) {
      next = batch.tokenLevelRewards![at]! + option(args, 'gamma', 1) * next;
      returns[at] = next;
    }
  }
  return everyRow(batch, masked(batch, whitened(batch, returns)), returns);
};

// Functions that compute one score per row from the rewards of the row's group.

const reinforcePlusPlusBaseline: VerlAdvantage = (_args, batch) => {
  const scores = grouped(batch, rowRewards(batch), centered);
  return everyRow(batch, masked(batch, whitened(batch, scored(batch, scores, {}).advantages)));
};

const grpoVectorized: VerlAdvantage = (args, batch) =>
  scored(batch, grouped(batch, rowRewards(batch), grpo(args)), {});

/** A group's only row gets 0. */
const rlooVectorized: VerlAdvantage = (_args, batch) => {
  const scores = grouped(batch, rowRewards(batch), (rewards) =>
    rewards.map((reward) => (rewards.length * reward - sum(rewards)) / Math.max(rewards.length - 1, 1)),
  );
  return scored(batch, scores, {});
};

/** Only the best row of a group gets an advantage. verl refuses groups of one row, to which the library gives 0. */
const grpoPassk: VerlAdvantage = (args, batch) => {
  const scores = grouped(batch, rowRewards(batch), (rewards) => {
    if (rewards.length < 2) return [0];
    const [best, second] = rewards.toSorted((a, b) => b - a);
    const winner = rewards.indexOf(best!);
    return rewards.map((_, i) => (i === winner ? (best! - second!) / scaleOf(args, rewards) : 0));
  });
  return scored(batch, scores, {});
};

/**
 * A group's baseline is its mean reward, weighted by the rows' tokens. A group's only row keeps its reward. verl gives
 * NaN to a group without tokens.
 */
const opo: VerlAdvantage = (_args, batch) => {
  const scores = grouped(batch, rowRewards(batch), (rewards, rows) => {
    if (rows.length === 1) return rewards;
    const lengths = rows.map((b) => unmaskedPositions(batch, b).length);
    const baseline = sum(rewards.map((reward, i) => reward * lengths[i]!)) / (sum(lengths) || 1);
    return rewards.map((reward) => reward - baseline);
  });
  return scored(batch, scores, {});
};

const gpg: VerlAdvantage = (args, batch) => {
  const rewards = rowRewards(batch);
  const alpha = rewards.length / Math.max(1, rewards.filter((reward) => reward !== 0).length);
  const scale = alpha / option(args, 'f_norm', 1);
  const scores = grouped(batch, rewards, centered).map((score) => scale * score);
  return scored(batch, scores, {});
};

/** Each key of `gdpo_reward_keys` names a column with a reward per row. The batch has it in camel case. */
const gdpo: VerlAdvantage = (args, batch) => {
  const columns = batch as unknown as Record<string, ArrayLike<number>>;
  const keys = option<string[] | null>(args, 'gdpo_reward_keys', null);
  const rewards = keys ? keys.map((key) => Array.from(columns[camelCase(key)]!)) : [rowRewards(batch)];
  const weights = option(
    args,
    'gdpo_reward_weights',
    rewards.map(() => 1),
  );
  const scores = rewards.map((ofKey) => grouped(batch, ofKey, grpo(args)));
  const total = rowsOf(batch).map((b) => sum(scores.map((ofKey, k) => weights[k]! * ofKey[b]!)));
  return everyRow(batch, masked(batch, whitened(batch, scored(batch, total, {}).advantages)));
};

// Optimal token baselines: each token is compared with the same token of the other rows of its group.

/** Returns for each token the sum of the unmasked rewards from this token to the end of its row. */
function rewardsToGo(batch: RewardedBatch): Float64Array {
  const out = masked(batch, Float64Array.from(batch.tokenLevelRewards!));
  for (const b of rowsOf(batch))
    for (const at of rowPositions(batch, b).slice(0, -1).reverse()) out[at]! += out[at + 1]!;
  return out;
}

/** Returns for each token the sum, up to this token, of the squared lengths of the unmasked tokens' gradients. */
function energies(batch: RewardedBatch): Float64Array {
  const ofTokens = zeros(batch).map((_, at) => {
    const energy = 1 - 2 * Math.exp(batch.oldLogprob![at]!) + batch.sumPiSquared![at]!;
    return energy * (batch.rolloutIsWeights?.[at] ?? 1) ** 2;
  });
  const out = masked(batch, ofTokens);
  for (const b of rowsOf(batch)) for (const at of rowPositions(batch, b).slice(1)) out[at]! += out[at - 1]!;
  return out;
}

/**
 * Computes the advantages. `positionsOf` lists the tokens of a row. Tokens with the same place in the lists of a group
 * are compared. A row without listed tokens does not belong to its group.
 */
const tokenBaseline =
  (positionsOf: (batch: RewardedBatch, b: number) => number[]): VerlAdvantage =>
  (args, batch) => {
    const advantages = zeros(batch);
    const returns = rewardsToGo(batch);
    const weights = energies(batch);
    const isCounted = (at: number | undefined) => at !== undefined && Boolean(batch.actionMask[at]);
    const baseline = (here: number[]) =>
      sum(here.map((at) => returns[at]! * weights[at]!)) /
      (sum(here.map((at) => weights[at]!)) + option(args, 'epsilon', 1e-8));
    for (const rows of groupsOf(batch)) {
      const group = rows
        .map((b) => ({ positions: positionsOf(batch, b), length: unmaskedPositions(batch, b).length }))
        .filter((row) => row.positions.length > 0);
      const [longest, second] = group.map((row) => row.length).sort((a, b) => b - a);
      // Beyond the second longest row, the longest would be compared with itself only.
      const tail = option(args, 'handle_zero_tail', true) ? second! : Number.POSITIVE_INFINITY;
      for (const { positions, length } of group) {
        const isLongest = length === longest && length > second!;
        positions.forEach((at, i) => {
          if (!isCounted(at)) return;
          const here = group.map((row) => row.positions[i]!).filter(isCounted);
          const hasBaseline = group.length > 1 && !(isLongest && i >= tail);
          advantages[at] = returns[at]! - (hasBaseline ? baseline(here) : 0);
        });
      }
    }
    return everyRow(batch, advantages, returns);
  };

/** verl's advantage functions, by name. */
export const advantages: Record<string, VerlAdvantage> = {
  gae,
  reinforce_plus_plus: reinforcePlusPlus,
  reinforce_plus_plus_baseline: reinforcePlusPlusBaseline,
  grpo_vectorized: grpoVectorized,
  rloo_vectorized: rlooVectorized,
  grpo_passk: grpoPassk,
  opo,
  gpg,
  gdpo,
  optimal_token_baseline: tokenBaseline(rowPositions),
  tir_optimal_token_baseline: tokenBaseline(unmaskedPositions),
};
