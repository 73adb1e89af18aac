// The entropy of the policy's distribution, which every token reports.
import type { Check, Numbers } from '../check.js';
import type { Row } from '../row.js';
import { RowSet } from '../row-table.js';
import { TokenMean } from '../sums.js';

/** Returns the number of bad entropies of a row, the least and the greatest one. */
function countBad(row: Row, isBad: (entropy: number) => boolean): number[] {
  let [bad, least, most] = [0, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
  for (const h of row.values('entropy')!) {
    least = Math.min(least, h);
    most = Math.max(most, h);
    if (isBad(h)) bad++;
  }
  return [bad, least, most];
}

/** Adds up what countBad() returns. Returns members of an examiner: the rows and the number of bad values. */
function counter() {
  const rows = new RowSet();
  const found = { tokens: 0, least: Number.POSITIVE_INFINITY, most: Number.NEGATIVE_INFINITY };
  return {
    rows,
    found,
    add({ 0: bad, 1: least, 2: most }: Numbers, index: number) {
      found.least = Math.min(found.least, least!);
      found.most = Math.max(found.most, most!);
      if (bad === 0) return;
      found.tokens += bad!;
      rows.add(index);
    },
  };
}

const COLLAPSED = 0.05;

const collapse: Check = {
  name: 'entropy-collapse',
  title: 'The entropy has collapsed',
  needs: ['entropy'],
  meaning:
    'The policy is almost certain of every token. Its responses are alike, groups lose their spread, and learning stops.',
  advice: 'Widen the upper clip, add an entropy bonus or a KL term, or go back to an earlier checkpoint.',
  rule: `warning if the mean is below ${COLLAPSED} nats per token; healthy training usually has 0.1 to 2`,
  measure(row) {
    const values = row.values('entropy')!;
    const isLow = values.length > 0 && values.every((h) => h < COLLAPSED);
    return [...TokenMean.sumsOf(values), Number(isLow)];
  },
  start() {
    const all = new TokenMean();
    const rows = new RowSet();
    return {
      add({ 0: count, 1: sum, 2: squares, 3: isLow }, index) {
        all.add(count!, sum!, squares!);
        if (isLow === 1) rows.add(index);
      },
      finish: () => ({
        severity: all.mean < COLLAPSED && all.mean > -COLLAPSED ? 'warning' : undefined,
        evidence: { meanEntropy: all.mean, tokens: all.count },
        rows,
      }),
    };
  },
};

const ROUNDING = 0.01;

const negative: Check = {
  name: 'entropy-negative',
  title: 'Entropies are negative',
  needs: ['entropy'],
  meaning:
    'The entropy of a choice of tokens cannot be negative. The column has the other sign, or another quantity.',
  advice:
    'Check the sign: the entropy is −Σ p·ln p. An entropy bonus with the wrong sign makes the policy collapse.',
  rule: `error below −${ROUNDING}, which is more than bfloat16 rounds an entropy of 0`,
  measure: (row) => countBad(row, (h) => h < -ROUNDING),
  start() {
    const { add, rows, found } = counter();
    return {
      add,
      finish: () => ({
        severity: found.tokens > 0 ? 'error' : undefined,
        evidence: { tokens: found.tokens, least: found.least },
        rows,
      }),
    };
  },
};

// ln(262,144), rounded up. The largest vocabularies in use have 262,144 words.
const MOST = 12.5;

const tooHigh: Check = {
  name: 'entropy-too-high',
  title: 'Entropies are higher than any vocabulary allows',
  needs: ['entropy'],
  meaning:
    "The entropy is at most the logarithm of the vocabulary's size. These values are sums over tokens, bits, or something else.",
  advice: 'Store one entropy per token, in nats.',
  rule: `error above ${MOST} nats, the logarithm of 268,000 words; the largest vocabularies have 262,144`,
  measure: (row) => countBad(row, (h) => h > MOST && h < Number.POSITIVE_INFINITY),
  start() {
    const { add, rows, found } = counter();
    return {
      add,
      finish: () => ({
        severity: found.tokens > 0 ? 'error' : undefined,
        evidence: { tokens: found.tokens, most: found.most },
        rows,
      }),
    };
  },
};

const mismatch: Check = {
  name: 'entropy-mismatch',
  title: 'The entropy does not fit the log-probabilities',
  needs: ['entropy', ['logprobs', 'old_logprobs']],
  meaning:
    'The mean of −logprob estimates the mean entropy if the tokens were sampled from this very distribution. They were not: a temperature or truncated sampling differs, or one of the columns is in other units.',
  advice:
    "Check whether the entropy is in nats (bits are 1.44 times as many), and whether temperature and top-p of the sampling are those of the trainer's distribution.",
  rule:
    'warning if the two means differ by 25% of the larger one, by 0.05 nats, and by 5 standard errors; a policy some updates ' +
    'of the one that sampled differs by a few percent',
  measure(row) {
    const h = row.values('entropy')!;
    const s = row.firstOf('logprobs', 'old_logprobs')!.map((x) => -x);
    return [h, s, s.map((x, t) => x - h[t]!)].flatMap((values) => TokenMean.sumsOf(values));
  },
  start() {
    const [entropy, surprise, gap] = [new TokenMean(), new TokenMean(), new TokenMean()];
    return {
      add: (numbers) => TokenMean.addAll([entropy, surprise, gap], numbers),
      finish() {
        const size = Math.abs(gap.mean);
        const larger = Math.max(entropy.mean, surprise.mean);
        const found = gap.count >= 50 && size > 0.25 * larger && size > 0.05 && size > 5 * gap.error;
        return {
          severity: found ? 'warning' : undefined,
          evidence: { meanEntropy: entropy.mean, meanSurprise: surprise.mean, standardError: gap.error },
        };
      },
    };
  },
};

export const ENTROPY_CHECKS: readonly Check[] = [collapse, negative, tooHigh, mismatch];
