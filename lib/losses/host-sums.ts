// Sums over the tokens of a batch on the host, for the advantage functions that are computed there. They are in float64 and
// in the order of the tokens.
import { inSlices, type Steps } from '../base/steps.js';
import { find } from '../batch/batch.js';
import { inputRow } from '../batch/columns.js';
import { readRowNumbers } from '../batch/convert.js';
import { notFinite } from './advantage-arrays.js';
import type { HostTokens } from './host-tokens.js';

/** Returns each row's sum over its unmasked tokens, and their number. */
export function* sumsByRow(
  x: HostTokens,
  values: Float64Array,
): Steps<{ sums: Float64Array; counts: Float64Array }> {
  const { mask, layout } = x;
  const [sums, counts] = [new Float64Array(layout.rows), new Float64Array(layout.rows)];
  yield* x.pieces((row, from, to) => {
    for (let i = from; i < to; i++) {
      if (mask[i] === 0) continue;
      sums[row]! += values[i]!;
      counts[row]!++;
    }
  });
  return { sums, counts };
}

/** Returns the mean over the rows of the means over their unmasked tokens. The mean of a row without tokens is 0. */
export function* meanOfRowMeans(x: HostTokens, values: Float64Array): Steps<number> {
  const { sums, counts } = yield* sumsByRow(x, values);
  const total = sums.reduce((sum, ofRow, row) => sum + ofRow / Math.max(counts[row]!, 1), 0);
  return total / Math.max(sums.length, 1);
}

/**
 * Returns the mean and the sample variance over the unmasked tokens. The variance of fewer than two is 0.
 * @param further is added to the number of tokens where a mean is taken.
 */
export function* momentsOf(
  x: HostTokens,
  values: Float64Array,
  further = 0,
): Steps<{ mean: number; variance: number }> {
  const { mask, unmasked } = x;
  let [sum, squares] = [0, 0];
  yield* inSlices(values.length, (begin, end) => {
    for (let i = begin; i < end; i++) if (mask[i] !== 0) sum += values[i]!;
  });
  const count = unmasked > 0 ? unmasked + further : 1;
  const mean = sum / count;
  yield* inSlices(values.length, (begin, end) => {
    for (let i = begin; i < end; i++) if (mask[i] !== 0) squares += (values[i]! - mean) ** 2;
  });
  return { mean, variance: unmasked > 1 ? (squares / count) * (unmasked / (unmasked - 1)) : 0 };
}

/** Shifts and scales the values of the unmasked tokens to mean 0 and variance 1. `further` is as in {@link momentsOf}. */
export function* whiten(x: HostTokens, values: Float64Array, further = 0): Steps<void> {
  const { mean, variance } = yield* momentsOf(x, values, further);
  const scale = 1 / Math.sqrt(variance + 1e-8);
  yield* inSlices(values.length, (begin, end) => {
    for (let i = begin; i < end; i++) if (x.mask[i] !== 0) values[i] = (values[i]! - mean) * scale;
  });
}

/** Replaces values by their discounted sums from each token, masked or not, to the end of its row. */
export function* addToGoSums(x: HostTokens, values: Float64Array, discount: number): Steps<void> {
  yield* x.pieces((row, from, to) => {
    const end = x.begin(row + 1);
    for (let i = to - 1; i >= from; i--) if (i + 1 < end) values[i]! += discount * values[i + 1]!;
  }, true);
}

/**
 * Returns the discounted sums of the rewards of the unmasked tokens from each token to the end of its row. A row's reward
 * counts at its last unmasked token.
 * @throws LossError `ERR_INVALID_INPUT` for a reward that is not finite, `ERR_MISSING_INPUT` without rewards.
 */
export function* rewardsToGo(x: HostTokens, gamma: number): Steps<Float64Array> {
  const { mask, mapper, batch } = x;
  const toGo = x.zeros();
  const { hint } = inputRow('rewards');
  const rewards = find(batch, mapper.keys('token_level_rewards'))
    ? undefined
    : find(batch, mapper.keys('rewards'));
  const set = (i: number, key: string, index: number, reward: number) => {
    if (!Number.isFinite(reward)) throw notFinite(key, index, reward, hint);
    toGo[i] = reward;
  };
  if (rewards) {
    const perRow = yield* readRowNumbers(rewards.key, rewards.value, x.layout.rows, hint);
    const last = new Float64Array(x.layout.rows).fill(-1);
    yield* x.pieces((row, from, to) => {
      for (let i = from; i < to; i++) if (mask[i] !== 0) last[row] = i;
    });
    yield* inSlices(last.length, (begin, end) => {
      for (let row = begin; row < end; row++)
        if (last[row]! >= 0) set(last[row]!, rewards.key, row, perRow[row]!);
    });
  } else {
    const perToken = yield* x.floats('token_level_rewards');
    yield* inSlices(toGo.length, (begin, end) => {
      for (let i = begin; i < end; i++) if (mask[i] !== 0) set(i, 'token_level_rewards', i, perToken[i]!);
    });
  }
  yield* addToGoSums(x, toGo, gamma);
  return toGo;
}

/** Clips values to ± a limit. Returns how many were clipped. */
export function* clipTo(values: Float64Array, limit: number): Steps<number> {
  let clipped = 0;
  yield* inSlices(values.length, (begin, end) => {
    for (let i = begin; i < end; i++) {
      if (Math.abs(values[i]!) <= limit || Number.isNaN(values[i])) continue;
      values[i] = Math.sign(values[i]!) * limit;
      clipped++;
    }
  });
  return clipped;
}
