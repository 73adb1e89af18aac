// The trainer's log-probabilities against those that the rollout engine reported for the same tokens and weights.

import { ExactSum } from '../../../base/exact-sum.js';
import { Growing } from '../../parts/growing.js';
import { type Check, LONG_ENOUGH, type Need } from '../check.js';
import { Equality, equalTokens } from '../equality.js';
import { differences, equal, type Row, sizesOf } from '../row.js';
import { RowSet } from '../row-table.js';
import { meanOf, sumOf, TokenMean } from '../sums.js';

const NEEDS: readonly Need[] = ['rollout_logprobs', ['old_logprobs', 'logprobs']];

/**
 * Returns the log-probabilities of the rollout engine and those of the trainer to compare them with. These are the old
 * ones, which belong to the same weights (`isOld`). If the dump lacks them, or if they are a copy of the engine's
 * (`updated`), the current ones take their place, which may be some updates ahead.
 */
function enginePair(row: Row) {
  const rollout = row.values('rollout_logprobs')!;
  const old = row.values('old_logprobs');
  const copied = old !== undefined && equal(old, rollout);
  const trainer = old && !copied ? old : row.values('logprobs');
  return trainer && { trainer, rollout, updated: copied, isOld: trainer === old };
}

/** Returns |trainer − rollout| for a row, if the two belong to the same weights as far as the dump tells. */
function engineDifferences(row: Row): Float64Array | undefined {
  const pair = enginePair(row);
  return pair && !pair.updated ? sizesOf(differences(pair.trainer, pair.rollout)) : undefined;
}

/** Returns the mean of a row's differences; NaN for a row that is too short to look at it alone. */
function meanIfLong(values: Float64Array): number {
  return values.length < LONG_ENOUGH ? Number.NaN : meanOf(values);
}

const NOISE =
  'engines that compute in bfloat16 differ from a trainer by about 0.01 nats per token, mixtures of experts by a few times as much';

const difference: Check = {
  name: 'rollout-difference',
  title: "The trainer's log-probabilities are far from the rollout engine's",
  needs: NEEDS,
  meaning:
    'The tokens were sampled from another distribution than the trainer assumes, so the gradient is biased. Training often collapses from this.',
  advice:
    'Look at the other rollout findings first: an offset, a scale, a shift or a drift names the cause. Otherwise check that the engine had the same weights, precision and chat template, or weight tokens by a correction (docs/corrections.md).',
  rule: `warning if the mean |difference| exceeds 0.1 over the dump, or 0.5 over a single row; error if it exceeds 0.5 over the dump: ${NOISE}`,
  measure(row) {
    const sizes = engineDifferences(row);
    return sizes && [...TokenMean.sumsOf(sizes), meanIfLong(sizes)];
  },
  start() {
    const all = new TokenMean();
    const rows = new RowSet();
    let alone = false;
    return {
      add({ 0: count, 1: sum, 2: squares, 3: mean }, index) {
        all.add(count!, sum!, squares!);
        if (!(mean! > 0.1)) return;
        rows.add(index);
        alone ||= mean! > 0.5;
      },
      finish() {
        const { mean } = all;
        const severity = mean > 0.5 ? 'error' : mean > 0.1 || alone ? 'warning' : undefined;
        return { severity, evidence: { meanAbsoluteDifference: mean, tokens: all.count }, rows };
      },
    };
  },
};

const offset: Check = {
  name: 'rollout-offset',
  title: "The trainer's log-probabilities are offset from the rollout engine's",
  needs: NEEDS,
  meaning:
    'Nearly all tokens differ in the same direction. A trainer below the engine is the mark of truncated sampling (top-p, top-k, min-p): the engine renormalises what is left, the trainer does not.',
  advice:
    'Sample with top_p 1, top_k off and min_p 0, or let the engine report log-probabilities before these (raw or processed_logprobs settings). Check logit bias and vocabulary padding too.',
  rule:
    'warning if the mean difference exceeds 0.02, half a standard deviation of the differences, and 5 standard errors. ' +
    'Noise of standard deviation s moves the mean only by s²/2, far below half of s',
  measure(row) {
    const pair = enginePair(row);
    if (!pair) return undefined;
    const d = differences(pair.trainer, pair.rollout);
    return [...TokenMean.sumsOf(d), meanIfLong(d)];
  },
  start() {
    const all = new TokenMean();
    const [above, below] = [new RowSet(), new RowSet()];
    return {
      add({ 0: count, 1: sum, 2: squares, 3: mean }, index) {
        all.add(count!, sum!, squares!);
        if (Math.abs(mean!) > 0.02) (mean! > 0 ? above : below).add(index);
      },
      finish() {
        const { mean, deviation, error, count } = all;
        const size = Math.abs(mean);
        const found = count >= 50 && size > 0.02 && size > 0.5 * deviation && size > 5 * error;
        return {
          severity: found ? 'warning' : undefined,
          evidence: { meanDifference: mean, standardDeviation: deviation, standardError: error },
          rows: mean > 0 ? above : below,
        };
      },
    };
  },
};

const scale: Check = {
  name: 'rollout-scale',
  title: "The trainer's log-probabilities are scaled against the rollout engine's",
  needs: NEEDS,
  meaning:
    'The two agree but for a factor. This is what a sampling temperature does that only one of the two applies.',
  advice:
    'Let the trainer divide its logits by the temperature of the rollouts. A factor below 1 means that the rollouts were sampled at a lower temperature than the trainer assumes; the temperature is usually farther from 1 than the factor.',
  rule:
    'warning if the ratio of the standard deviations is off 1 by more than 2% and by more than 5 standard errors, at a ' +
    'correlation above 0.9. Noise of 0.02 nats changes this ratio by less than 0.3%, even with heavy tails. The limit is ' +
    '5% if the trainer has only current log-probabilities, because updates change the ratio by a percent or two',
  measure(row) {
    const pair = enginePair(row);
    if (!pair) return undefined;
    const { trainer, rollout } = pair;
    let count = 0;
    let sx = 0;
    let sy = 0;
    let sxx = 0;
    let syy = 0;
    let sxy = 0;
    for (let t = 0; t < trainer.length; t++) {
      const a = rollout[t]!;
      const b = trainer[t]!;
      if (!Number.isFinite(a - b)) continue;
      count++;
      sx += a;
      sy += b;
      sxx += a * a;
      syy += b * b;
      sxy += a * b;
    }
    return [count, sx, sy, sxx, syy, sxy, Number(pair.isOld)];
  },
  start() {
    // One number per row: its values, and their sums, squares and products in the two columns.
    const ofRows = () => new Growing((length) => new Float64Array(length));
    const columns = [ofRows(), ofRows(), ofRows(), ofRows(), ofRows(), ofRows()] as const;
    const [n, x, y, xx, yy, xy] = columns;
    let limit = 1.02;
    return {
      add(numbers) {
        columns.forEach((column, i) => {
          column.push(numbers[i]!);
        });
        if (numbers[columns.length] === 0) limit = 1.05;
      },
      finish() {
        const count = sumOf(n.values);
        const [meanX, meanY] = [sumOf(x.values) / count, sumOf(y.values) / count];
        const varianceX = sumOf(xx.values) / count - meanX ** 2;
        const varianceY = sumOf(yy.values) / count - meanY ** 2;
        const covariance = sumOf(xy.values) / count - meanX * meanY;
        const correlation = covariance / Math.sqrt(varianceX * varianceY);
        const factor = Math.sqrt(varianceY / varianceX);
        // How much each row moves ln(factor). Rare tokens dominate a variance, so its error must come from the data.
        const moves = n.values.map((rowCount, i) => {
          const squaresX = xx.values[i]! - 2 * meanX * x.values[i]! + rowCount * meanX ** 2;
          const squaresY = yy.values[i]! - 2 * meanY * y.values[i]! + rowCount * meanY ** 2;
          return (squaresY / varianceY - squaresX / varianceX) / (2 * count);
        });
        const error = Math.sqrt(sumOf(moves.map((move) => move * move)));
        const size = Math.abs(Math.log(factor));
        const found = count >= 50 && correlation > 0.9 && size > Math.log(limit) && size > 5 * error;
        return {
          severity: found ? 'warning' : undefined,
          evidence: { factor, correlation, relativeStandardError: error },
        };
      },
    };
  },
};

const drift: Check = {
  name: 'rollout-drift',
  title: "The trainer's log-probabilities move away from the rollout engine's along the response",
  needs: NEEDS,
  meaning:
    'The difference grows with the position, so late tokens of long responses are trained with wrong ratios. Differences in the cache, in position ids or in the attention window look like this, and weights that change during generation.',
  advice:
    'Check position ids and rope scaling, the precision of the key-value cache, the attention window, and whether weights were updated while responses were generated.',
  rule:
    'warning if the mean |difference| in the last quarter of the rows (of 16 tokens or more; at least 8 rows) is twice ' +
    'that in the first, larger by 0.02, and by 4 standard errors over rows',
  measure(row) {
    const d = engineDifferences(row);
    if (!d || d.length < 16) return undefined;
    const quarter = d.length >> 2;
    const [begin, end] = [meanOf(d, 0, quarter), meanOf(d, d.length - quarter)];
    return Number.isFinite(begin + end) ? [begin, end] : undefined;
  },
  start() {
    const [first, last, growth, squares] = [new ExactSum(), new ExactSum(), new ExactSum(), new ExactSum()];
    const rows = new RowSet();
    let n = 0;
    return {
      add(numbers, index) {
        const [begin, end] = [numbers[0]!, numbers[1]!];
        n++;
        first.add(begin);
        last.add(end);
        growth.add(end - begin);
        squares.add((end - begin) ** 2);
        if (end > 2 * begin && end - begin > 0.02) rows.add(index);
      },
      finish() {
        const [begin, end, mean] = [first.value / n, last.value / n, growth.value / n];
        const error = Math.sqrt(Math.max(squares.value / n - mean ** 2, 0) / n);
        const found = n >= 8 && end > 2 * begin && mean > 0.02 && mean > 4 * error;
        return {
          severity: found ? 'warning' : undefined,
          evidence: { firstQuarter: begin, lastQuarter: end, standardError: error },
          rows,
        };
      },
    };
  },
};

const outlier: Check = {
  name: 'rollout-outlier',
  title: 'Single tokens differ by a nat or more between trainer and rollout engine',
  needs: NEEDS,
  meaning:
    'The two agree except at a few tokens, which get ratios beyond 2.7 or below 0.37 before any update. One such token can dominate the gradient of its row.',
  advice:
    'Read these tokens. Special tokens, tokens that the tokenizer merges differently after detokenising, and the last token of a response are the usual ones. A truncated correction weight bounds them.',
  rule:
    'warning if |difference| exceeds 1 at some token while the mean is at most 0.1 and at most 1% of the tokens exceed it; ' +
    'info if these are at most one token in 100,000, which happens without a fault in long runs',
  measure(row) {
    const sizes = engineDifferences(row);
    if (!sizes) return undefined;
    let [outliers, largest] = [0, 0];
    for (const size of sizes) {
      if (!(size > 1 && size < Number.POSITIVE_INFINITY)) continue;
      outliers++;
      largest = Math.max(largest, size);
    }
    return [...TokenMean.sumsOf(sizes), outliers, largest];
  },
  start() {
    const all = new TokenMean();
    const rows = new RowSet();
    let [outliers, largest] = [0, 0];
    return {
      add({ 0: count, 1: sum, 2: squares, 3: outliersHere, 4: largestHere }, index) {
        all.add(count!, sum!, squares!);
        if (outliersHere === 0) return;
        outliers += outliersHere!;
        largest = Math.max(largest, largestHere!);
        rows.add(index);
      },
      finish() {
        const share = outliers / all.count;
        const found = outliers > 0 && all.mean <= 0.1 && share <= 0.01;
        return {
          severity: found ? (share > 1e-5 ? 'warning' : 'info') : undefined,
          evidence: { tokens: outliers, largestDifference: largest, meanAbsoluteDifference: all.mean },
          rows,
        };
      },
    };
  },
};

const copied: Check = {
  name: 'old-is-rollout',
  title: "The old log-probabilities are the rollout engine's",
  needs: ['rollout_logprobs', 'old_logprobs'],
  meaning:
    'The trainer did not recompute them (bypass mode). Ratios then include the difference between the engines, and no correction can see it apart.',
  advice:
    'If this is not intended, let the trainer recompute the old log-probabilities before the first update.',
  rule: 'info if the two columns are equal on all tokens, which is a choice of the configuration',
  measure: (row) => equalTokens(row.values('old_logprobs')!, row.values('rollout_logprobs')!),
  start() {
    const equality = new Equality();
    return {
      add: ({ 0: tokens, 1: equal }) => equality.add(tokens!, equal!),
      finish: () => ({ severity: equality.isWhole ? 'info' : undefined, evidence: equality.evidence }),
    };
  },
};

export const ROLLOUT_CHECKS: readonly Check[] = [difference, offset, scale, drift, outlier, copied];
