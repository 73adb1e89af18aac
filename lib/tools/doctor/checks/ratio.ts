// The ratios of the current policy to the old one: how much of the batch they leave, and how much clipping cuts.

import { ExactSum } from '../../../base/exact-sum.js';
import { type Check, LONG_ENOUGH, type Need } from '../check.js';
import { Equality, equalTokens } from '../equality.js';
import { differences, type Row } from '../row.js';
import { RowSet } from '../row-table.js';
import { meanOf } from '../sums.js';

const NEEDS: readonly Need[] = ['logprobs', 'old_logprobs'];

const logRatios = (row: Row) => differences(row.values('logprobs')!, row.values('old_logprobs')!);

/** Returns the ratio, bounded as in the losses so that squares do not overflow. */
const ratioOf = (logRatio: number) => Math.exp(Math.min(Math.max(logRatio, -20), 20));

const sampleSize: Check = {
  name: 'ratio-sample-size',
  title: 'Ratios leave a small effective sample',
  needs: NEEDS,
  meaning:
    'Weighted by their ratios, the tokens are worth far fewer than there are: a few with large ratios decide the gradient. The policy has moved too far from the one that sampled.',
  advice: 'Make fewer updates per batch, lower the learning rate, or use fresher rollouts.',
  rule:
    'warning if (Σr)² / (N·Σr²) is below 0.5 over 50 tokens or more, where half of the sample is lost: the ratios vary ' +
    'by more than their mean. Healthy training stays above 0.9',
  measure(row) {
    let [n, s, ss, whole] = [0, 0, 0, 0];
    for (const d of logRatios(row)) {
      if (Number.isNaN(d)) continue;
      const r = ratioOf(d);
      n++;
      s += r;
      ss += r * r;
      whole += d;
    }
    return n > 0 ? [n, s, ss, ratioOf(whole)] : undefined;
  },
  start() {
    const [sum, squares, rowSum, rowSquares] = [
      new ExactSum(),
      new ExactSum(),
      new ExactSum(),
      new ExactSum(),
    ];
    const poor = new RowSet();
    let [tokens, rows] = [0, 0];
    return {
      add(numbers, index) {
        const [n, s, ss, w] = [numbers[0]!, numbers[1]!, numbers[2]!, numbers[3]!];
        tokens += n;
        rows++;
        sum.add(s);
        squares.add(ss);
        rowSum.add(w);
        rowSquares.add(w * w);
        if (n >= LONG_ENOUGH && s * s < 0.5 * n * ss) poor.add(index);
      },
      finish() {
        const ofTokens = sum.value ** 2 / (tokens * squares.value);
        return {
          severity: tokens >= 50 && ofTokens < 0.5 ? 'warning' : undefined,
          evidence: {
            shareOfTokens: ofTokens,
            shareOfRows: rowSum.value ** 2 / (rows * rowSquares.value),
            rowsBelowHalf: poor.size,
          },
          rows: poor,
        };
      },
    };
  },
};

/** The clips whose cuts are counted. The bounds are those of the losses that made them usual. */
const CLIPS = [
  { name: 'ppoClip01', low: 0.9, high: 1.1 },
  { name: 'ppoClip02', low: 0.8, high: 1.2 },
  { name: 'ppoClip02To028', low: 0.8, high: 1.28 },
  { name: 'cispoClip', low: 0, high: 1.28 },
] as const;

const clipped: Check = {
  name: 'ratio-clip',
  title: 'Clipping would cut many tokens',
  needs: NEEDS,
  meaning:
    "A clipped token has no gradient. The evidence has the share of the tokens that each usual clip would cut: PPO's at 0.1, at 0.2, and at 0.2 below and 0.28 above, its dual clip at 3, CISPO's at 0.28 (which bounds a weight and keeps the gradient), and GSPO's at 0.0003 and 0.0004 for whole rows. With advantages, only the side counts on which the loss clips.",
  advice:
    'Make fewer updates per batch, or widen the clip. On the first mini-batch of a step all shares should be 0; if they are not, the old log-probabilities are not those of the policy before the update.',
  rule: "warning if PPO's clip at 0.2 would cut more than 30% of the tokens; training usually has 0 to 20%",
  measure(row) {
    const d = logRatios(row);
    const advantages = row.values('advantages');
    const cut = CLIPS.map(() => 0);
    let dual = 0;
    d.forEach((x, t) => {
      const r = ratioOf(x);
      const a = advantages?.[t];
      CLIPS.forEach(({ name, low, high }, i) => {
        // CISPO bounds the weight of a token whatever its advantage.
        const bothSides = a === undefined || name === 'cispoClip';
        if ((r > high && (bothSides || a > 0)) || (r < low && (bothSides || a < 0))) cut[i]!++;
      });
      if (r > 3 && (a === undefined || a < 0)) dual++;
    });
    const mean = meanOf(d);
    const a = advantages?.[0];
    const gspo = (mean > Math.log(1.0004) && !(a! <= 0)) || (mean < Math.log(0.9997) && !(a! >= 0));
    return [d.length, dual, Number(gspo), ...cut];
  },
  start() {
    const cut = new Float64Array(CLIPS.length);
    const rows = new RowSet();
    let [tokens, rowsSeen, dual, gspo] = [0, 0, 0, 0];
    return {
      add(numbers, index) {
        const [length, cutFrom] = [numbers[0]!, 3];
        tokens += length;
        if (length > 0) rowsSeen++;
        dual += numbers[1]!;
        gspo += numbers[2]!;
        CLIPS.forEach(({ name }, i) => {
          const here = numbers[cutFrom + i]!;
          cut[i]! += here;
          if (name === 'ppoClip02' && length >= LONG_ENOUGH && here > 0.3 * length) rows.add(index);
        });
      },
      finish() {
        const shares = Object.fromEntries(CLIPS.map(({ name }, i) => [name, cut[i]! / tokens]));
        return {
          severity: tokens >= 50 && shares.ppoClip02! > 0.3 ? 'warning' : undefined,
          evidence: { ...shares, dualClip3: dual / tokens, gspoClipOfRows: gspo / rowsSeen },
          rows,
        };
      },
    };
  },
};

const EXTREME = 20;

const outlier: Check = {
  name: 'ratio-outlier',
  title: `Ratios are beyond ${EXTREME} or below 1/${EXTREME}`,
  needs: NEEDS,
  meaning:
    'No gradient step of a usual size changes the probability of a token this much. The two columns belong to different tokens or policies there, or the mask covers too little.',
  advice: 'Read these tokens. Check them against the mask, and look at the shift and rollout findings.',
  rule: `warning for any ratio beyond ${EXTREME} or below its inverse (3 nats); clipped training stays below 2 or 3`,
  measure(row) {
    let [tokens, largest] = [0, 0];
    for (const d of logRatios(row)) {
      const size = Math.abs(d);
      if (!(size < Number.POSITIVE_INFINITY)) continue;
      largest = Math.max(largest, size);
      if (size > Math.log(EXTREME)) tokens++;
    }
    return [tokens, largest];
  },
  start() {
    const rows = new RowSet();
    let [tokens, largest] = [0, 0];
    return {
      add({ 0: tokensHere, 1: largestHere }, index) {
        largest = Math.max(largest, largestHere!);
        if (tokensHere === 0) return;
        tokens += tokensHere!;
        rows.add(index);
      },
      finish: () => ({
        severity: tokens > 0 ? 'warning' : undefined,
        evidence: { tokens, largestLogRatio: largest },
        rows,
      }),
    };
  },
};

const samePolicy: Check = {
  name: 'same-policy',
  title: 'The current policy is the old one',
  needs: NEEDS,
  meaning:
    'All ratios are exactly 1, as on the first mini-batch of a step. Clips and corrections by ratio do nothing here, and many losses have the same gradient.',
  advice: 'To see what clipping does, dump a later mini-batch. To compare losses, compare gradients too.',
  rule: 'info if logprobs and old_logprobs are equal on all tokens',
  measure: (row) => equalTokens(row.values('logprobs')!, row.values('old_logprobs')!),
  start() {
    const equality = new Equality();
    return {
      add: ({ 0: tokens, 1: equal }) => equality.add(tokens!, equal!),
      finish: () => ({ severity: equality.isWhole ? 'info' : undefined, evidence: equality.evidence }),
    };
  },
};

export const RATIO_CHECKS: readonly Check[] = [sampleSize, clipped, outlier, samePolicy];
