/** The rollouts that a valid file holds. Every format can hold them exactly. */
import { generator } from '../support/random.js';

/** A short description of some rollouts. */
export interface ContentSpec {
  seed: number;
  rows: number;
  /** The length of the longest row. */
  tokens: number;
}

export interface RolloutRow {
  logprobs: number[];
  old_logprobs: number[];
  entropy: number[];
  action_mask: number[];
  reward: number;
  task_id: number;
  run_id: string;
}

export const TOKEN_COLUMNS = ['logprobs', 'old_logprobs', 'entropy', 'action_mask'] as const;

/** Makes rows of equal or of various lengths. */
export function rowsOf({ seed, rows, tokens }: ContentSpec, equal: boolean): RolloutRow[] {
  const { integer } = generator(seed);
  // A float32 holds a multiple of 1/64 exactly.
  const numbers = (length: number, low: number, high: number) =>
    Array.from({ length }, () => integer(64 * low, 64 * high) / 64);
  return Array.from({ length: rows }, (_, row) => {
    const length = equal ? tokens : integer(1, tokens);
    return {
      logprobs: numbers(length, -4, 0),
      old_logprobs: numbers(length, -4, 0),
      entropy: numbers(length, 0, 3),
      action_mask: Array.from({ length }, () => integer(0, 1)),
      reward: integer(-64, 64) / 64,
      task_id: row >> 1,
      run_id: `run ${row % 3}`,
    };
  });
}

/** What a reader must return for a valid file. */
export interface Expected {
  lengths: number[];
  logprob: number[];
  actionMask: number[];
  rewards: number[];
  groupIds: number[];
}

export function expectedOf(rows: readonly RolloutRow[]): Expected {
  return {
    lengths: rows.map(({ logprobs }) => logprobs.length),
    logprob: rows.flatMap(({ logprobs }) => logprobs),
    actionMask: rows.flatMap(({ action_mask }) => action_mask),
    rewards: rows.map(({ reward }) => reward),
    groupIds: rows.map(({ task_id }) => task_id),
  };
}
