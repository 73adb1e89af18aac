// GRPO's advantages, for data that has a reward per row and no advantages yet.
import { LossError } from '../errors.js';

/** Options of {@link groupAdvantages}. */
export interface GroupAdvantagesOptions {
  /** Added to a group's standard deviation, in the unit of the rewards; 1e-6 by default. */
  epsilon?: number;
}

/**
 * Advantages relative to the group: (R − mean) / (std + epsilon), with the mean and the sample standard deviation
 * (n − 1) of the rewards that share a group id. A group of one has nothing to be compared with: its mean counts as
 * 0 and its standard deviation as 1.
 *
 * Source: GRPO, arXiv 2402.03300; Trinity-RFT's GRPO advantage with its default arguments.
 *
 * @param rewards [B]
 * @param groupIds [B]; rows of one group may stand anywhere.
 * @returns [B], one advantage for all tokens of a row.
 * @throws LossError `ERR_SHAPE_MISMATCH` where there are not as many ids as rewards.
 */
export function groupAdvantages(
  rewards: ArrayLike<number>,
  groupIds: ArrayLike<number | string>,
  { epsilon = 1e-6 }: GroupAdvantagesOptions = {},
): Float64Array {
  if (groupIds.length !== rewards.length)
    throw new LossError(
      'ERR_SHAPE_MISMATCH',
      `groupIds: expected [${rewards.length}], one per reward, not ${groupIds.length} values`,
    );
  const groups = new Map<number | string, number[]>();
  for (let row = 0; row < rewards.length; row++) {
    const rows = groups.get(groupIds[row]!);
    if (rows) rows.push(row);
    else groups.set(groupIds[row]!, [row]);
  }
  const advantages = new Float64Array(rewards.length);
  for (const rows of groups.values()) {
    const { mean, std } = moments(rows.map((row) => rewards[row]!));
    for (const row of rows) advantages[row] = (rewards[row]! - mean) / (std + epsilon);
  }
  return advantages;
}

function moments(values: readonly number[]): { mean: number; std: number } {
  if (values.length === 1) return { mean: 0, std: 1 };
  const mean = values.reduce((sum, x) => sum + x, 0) / values.length;
  const squares = values.reduce((sum, x) => sum + (x - mean) ** 2, 0);
  return { mean, std: Math.sqrt(squares / (values.length - 1)) };
}
