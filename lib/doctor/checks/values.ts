// Values that no log-probability and no advantage can have.
import type { RolloutColumn } from '../../rollouts/index.js';
import { type Check, LOGPROB_COLUMNS, LONG_ENOUGH, TOKEN_COLUMNS } from '../check.js';
import { RowSet } from '../row-table.js';

const ROW_COLUMNS: readonly RolloutColumn[] = ['reward', 'reward_baseline'];

/** Returns counters by column, as evidence. */
class ByColumn {
  readonly rows = new RowSet();
  readonly counts: Record<string, number> = {};

  add(column: RolloutColumn, row: number, count: number): void {
    if (count === 0) return;
    this.rows.add(row);
    this.counts[column] = (this.counts[column] ?? 0) + count;
  }

  /** Returns the counts in a fixed order of the columns. */
  get evidence(): Record<string, number> {
    return Object.fromEntries(Object.entries(this.counts).sort(([a], [b]) => (a < b ? -1 : 1)));
  }
}

const nonFinite: Check = {
  name: 'non-finite',
  title: 'Unmasked values are NaN or infinite',
  needs: [],
  meaning: 'One such value makes the loss and the gradient of the whole batch NaN.',
  advice:
    'Find the first step that has them. Typical causes: a division by a standard deviation of 0, log(0) of a filtered ' +
    'token, an overflow in float16. Tokens that do not count belong under the mask.',
  rule: 'error for any unmasked NaN or infinite value',
  start() {
    const found = new ByColumn();
    return {
      row(row) {
        for (const column of TOKEN_COLUMNS) {
          let count = 0;
          for (const x of row.values(column) ?? []) if (!Number.isFinite(x)) count++;
          found.add(column, row.index, count);
        }
        for (const column of ROW_COLUMNS) {
          const x = row.number(column);
          if (x !== undefined && !Number.isFinite(x)) found.add(column, row.index, 1);
        }
      },
      finish: () => ({
        severity: found.rows.size > 0 ? 'error' : undefined,
        evidence: found.evidence,
        rows: found.rows,
      }),
    };
  },
};

// Rounding makes the logarithm of a probability of almost 1 positive: by up to 1e-6 in float32, and by up to 1e-3 in
// float16 arithmetic.
const ROUNDING = 1e-3;

const positiveLogprob: Check = {
  name: 'positive-logprob',
  title: 'Log-probabilities are positive',
  needs: [LOGPROB_COLUMNS],
  meaning: 'A probability cannot exceed 1. The values are probabilities, negated, or from another quantity.',
  advice:
    'Store log-probabilities: the logarithm of the softmax at the sampled token, with its negative sign.',
  rule: `error above ${ROUNDING}, which is more than float16 rounds a probability of 1`,
  start() {
    const found = new ByColumn();
    let largest = 0;
    return {
      row(row) {
        for (const column of LOGPROB_COLUMNS) {
          let count = 0;
          for (const x of row.values(column) ?? [])
            if (x > ROUNDING && x < Number.POSITIVE_INFINITY) {
              count++;
              largest = Math.max(largest, x);
            }
          found.add(column, row.index, count);
        }
      },
      finish: () => ({
        severity: found.rows.size > 0 ? 'error' : undefined,
        evidence: { ...found.evidence, ...(largest > 0 && { largest }) },
        rows: found.rows,
      }),
    };
  },
};

const LONG_STRETCH = 32;

const zeroLogprob: Check = {
  name: 'zero-logprob',
  title: 'Log-probabilities are exactly 0 on long stretches',
  needs: [LOGPROB_COLUMNS],
  meaning:
    'Exactly 0 stands for a probability of 1. On a long stretch it is almost always a placeholder: padding, a prompt ' +
    'or a tool result that the mask does not cover, or a column that was never filled. A response that repeats itself endlessly can have it too.',
  advice: 'Mask these tokens, or drop the column if it is 0 everywhere.',
  rule:
    `error if a column is 0 on all tokens of all rows (of ${LONG_ENOUGH} tokens or more); warning for ${LONG_STRETCH} ` +
    'zeros in a row, or a whole row of zeros: a greedy model can be certain of a few tokens in a row',
  start() {
    const found = new ByColumn();
    const onlyZeros = new Map<RolloutColumn, boolean>();
    return {
      row(row) {
        for (const column of LOGPROB_COLUMNS) {
          const values = row.values(column);
          if (!values || values.length < LONG_ENOUGH) continue;
          let [run, longest] = [0, 0];
          for (const x of values) {
            run = x === 0 ? run + 1 : 0;
            longest = Math.max(longest, run);
          }
          const whole = longest === values.length;
          onlyZeros.set(column, whole && onlyZeros.get(column) !== false);
          if (whole || longest >= LONG_STRETCH) found.add(column, row.index, 1);
        }
      },
      finish() {
        const emptyColumn = [...onlyZeros.values()].includes(true);
        const severity = emptyColumn ? 'error' : found.rows.size > 0 ? 'warning' : undefined;
        return { severity, evidence: found.evidence, rows: found.rows };
      },
    };
  },
};

export const VALUE_CHECKS: readonly Check[] = [nonFinite, positiveLogprob, zeroLogprob];
