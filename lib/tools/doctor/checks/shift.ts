// Pairs of columns of which one is a token ahead of the other.

import { ExactSum } from '../../../base/exact-sum.js';
import type { RolloutColumn } from '../../rollouts/index.js';
import { type Check, LONG_ENOUGH } from '../check.js';
import { differences, sizesOf } from '../row.js';
import { RowSet } from '../row-table.js';
import { meanOf } from '../sums.js';

// Below this mean |difference|, the columns agree as they are.
const AGREES = 0.1;

// By how many tokens the other column is moved.
const LAGS = [-1, 0, 1] as const;

/**
 * Makes a check for columns that agree only if one is moved by a token.
 * @param other the column that may be shifted.
 * @param others the columns with which it is compared: the first of them that the dump has.
 */
function shiftCheck(
  name: string,
  title: string,
  other: RolloutColumn,
  others: readonly RolloutColumn[],
): Check {
  return {
    name,
    title,
    needs: [other, others],
    meaning:
      'Each token is trained with the log-probability of its neighbour. Ratios and KL terms are then noise, and nothing else looks wrong.',
    advice:
      "Logits at position t predict the token at t + 1. Check where labels and masks are moved by one, and whether one side counts the prompt's last token or the end-of-sequence token.",
    rule:
      `error if the mean |difference| exceeds ${AGREES} and falls below half of that when one column is moved by a token ` +
      `(over all rows of ${LONG_ENOUGH} tokens or more), or below 0.3 times that in a single row. Neighbouring tokens ` +
      'have unrelated log-probabilities, so moving a column that is right makes the difference larger',
    measure(row) {
      const [a, b] = [row.firstOf(...others)!, row.values(other)!];
      if (a.length < LONG_ENOUGH) return undefined;
      const means = LAGS.map((lag) => meanOf(sizesOf(differences(a, b, lag))));
      return means.every(Number.isFinite) ? means : undefined;
    },
    start() {
      const sums = LAGS.map(() => new ExactSum());
      const rows = new RowSet();
      let n = 0;
      return {
        add(means, index) {
          n++;
          sums.forEach((sum, i) => {
            sum.add(means[i]!);
          });
          const { 0: before, 1: here, 2: after } = means;
          if (here! > 2 * AGREES && Math.min(before!, after!) < 0.3 * here!) rows.add(index);
        },
        finish() {
          const [before, here, after] = sums.map((sum) => sum.value / n) as [number, number, number];
          const least = Math.min(before, after);
          const whole = n > 1 && here > AGREES && least < 0.5 * here;
          return {
            severity: whole || rows.size > 0 ? 'error' : undefined,
            evidence: {
              differenceAsIs: here,
              differenceOneEarlier: before,
              differenceOneLater: after,
              shiftedRows: rows.size,
            },
            rows: rows.size > 0 ? rows : undefined,
          };
        },
      };
    },
  };
}

export const SHIFT_CHECKS: readonly Check[] = [
  shiftCheck(
    'rollout-shift',
    "The rollout engine's log-probabilities are shifted by one token",
    'rollout_logprobs',
    ['old_logprobs', 'logprobs'],
  ),
  shiftCheck('old-shift', 'The old log-probabilities are shifted by one token', 'old_logprobs', ['logprobs']),
  shiftCheck('ref-shift', "The reference's log-probabilities are shifted by one token", 'ref_logprobs', [
    'old_logprobs',
    'logprobs',
  ]),
];
