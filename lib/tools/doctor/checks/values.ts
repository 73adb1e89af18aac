// Values that no log-probability and no advantage can have.
import type { RolloutColumn } from '../../rollouts/index.js';
import {
  type Check,
  LOGPROB_COLUMNS,
  LONG_ENOUGH,
  NUMBER_COLUMNS,
  type Numbers,
  TOKEN_COLUMNS,
} from '../check.js';
import { RowSet } from '../row-table.js';

/** Adds up counts by column, as evidence. */
class ByColumn {
  readonly rows = new RowSet();
  readonly counts: Record<string, number> = {};
  readonly #columns: readonly RolloutColumn[];

  constructor(columns: readonly RolloutColumn[]) {
    this.#columns = columns;
  }

  /** @param counts one number per column. */
  add(counts: Numbers, row: number): void {
    this.#columns.forEach((column, i) => {
      if (counts[i] === 0) return;
      this.rows.add(row);
      this.counts[column] = (this.counts[column] ?? 0) + counts[i]!;
    });
  }

  /** Returns the counts in a fixed order of the columns. */
  get evidence(): Record<string, number> {
    return Object.fromEntries(Object.entries(this.counts).sort(([a], [b]) => (a < b ? -1 : 1)));
  }
}

/** Returns the number of values for which a condition is true. */
function countOf(values: Float32Array | undefined, condition: (x: number) => boolean): number {
  let count = 0;
  for (const x of values ?? []) if (condition(x)) count++;
  return count;
}

const nonFinite: Check = {
  name: 'non-finite',
  title: 'Unmasked values are NaN or infinite',
  needs: [],
  meaning:
    'One such value makes the loss and the gradient of the whole batch NaN. A reward of NaN is that of a completion ' +
    'that was not scored: trainers leave it out of its group, count it as 0, or give its whole group NaN.',
  advice:
    'Find the first step that has them. Typical causes: a division by a standard deviation of 0, log(0) of a filtered ' +
    'token, an overflow in float16. Tokens that do not count belong under the mask.',
  rule: 'error for any unmasked NaN or infinite value, and for a reward that is missing though other rows have one',
  measure(row) {
    const counts = [
      ...TOKEN_COLUMNS.map((column) => countOf(row.values(column), (x) => !Number.isFinite(x))),
      // The reward of a masked row counts in its group.
      ...NUMBER_COLUMNS.map((column) =>
        Number((row.tokens > 0 || column === 'reward') && !Number.isFinite(row.number(column) ?? 0)),
      ),
    ];
    return counts.some((count) => count > 0) ? counts : undefined;
  },
  start() {
    const found = new ByColumn([...TOKEN_COLUMNS, ...NUMBER_COLUMNS]);
    return {
      add: (counts, index) => found.add(counts, index),
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
  measure(row) {
    let largest = 0;
    const counts = LOGPROB_COLUMNS.map((column) =>
      countOf(row.values(column), (x) => {
        const found = x > ROUNDING && x < Number.POSITIVE_INFINITY;
        if (found) largest = Math.max(largest, x);
        return found;
      }),
    );
    return largest > 0 ? [...counts, largest] : undefined;
  },
  start() {
    const found = new ByColumn(LOGPROB_COLUMNS);
    let largest = 0;
    return {
      add(numbers, index) {
        found.add(numbers, index);
        largest = Math.max(largest, numbers[LOGPROB_COLUMNS.length]!);
      },
      finish: () => ({
        severity: found.rows.size > 0 ? 'error' : undefined,
        evidence: { ...found.evidence, ...(largest > 0 && { largest }) },
        rows: found.rows,
      }),
    };
  },
};

const MANY_ZEROS = 32;

// What a row has in a column: too few values, few zeros, many consecutive zeros, or nothing else.
const [TOO_FEW, FEW_ZEROS, MANY, ONLY_ZEROS] = [0, 1, 2, 3] as const;

function zerosIn(values: Float32Array | undefined): number {
  if (!values || values.length < LONG_ENOUGH) return TOO_FEW;
  let [zeros, longest] = [0, 0];
  for (const x of values) {
    zeros = x === 0 ? zeros + 1 : 0;
    longest = Math.max(longest, zeros);
  }
  if (longest === values.length) return ONLY_ZEROS;
  return longest >= MANY_ZEROS ? MANY : FEW_ZEROS;
}

const zeroLogprob: Check = {
  name: 'zero-logprob',
  title: 'Log-probabilities are exactly 0 on long stretches',
  needs: [LOGPROB_COLUMNS],
  meaning:
    'Exactly 0 stands for a probability of 1. On a long stretch it is almost always a placeholder: padding, a prompt ' +
    'or a tool result that the mask does not cover, or a column that was never filled. A response that repeats itself endlessly can have it too.',
  advice: 'Mask these tokens, or drop the column if it is 0 everywhere.',
  rule:
    `error if a column is 0 on all tokens of all rows (of ${LONG_ENOUGH} tokens or more); warning for ${MANY_ZEROS} ` +
    'zeros in a row, or a whole row of zeros: a greedy model can be certain of a few tokens in a row',
  measure: (row) => LOGPROB_COLUMNS.map((column) => zerosIn(row.values(column))),
  start() {
    const found = new ByColumn(LOGPROB_COLUMNS);
    const onlyZeros = new Map<RolloutColumn, boolean>();
    return {
      add(zeros, index) {
        LOGPROB_COLUMNS.forEach((column, i) => {
          if (zeros[i] === TOO_FEW) return;
          onlyZeros.set(column, zeros[i] === ONLY_ZEROS && onlyZeros.get(column) !== false);
        });
        found.add(
          LOGPROB_COLUMNS.map((_, i) => Number(zeros[i]! >= MANY)),
          index,
        );
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
