// The divergence from the reference policy, by the estimators k1, k2 and k3.

import { ExactSum } from '../../../base/exact-sum.js';
import type { Check, Need } from '../check.js';
import { Equality, equalTokens } from '../equality.js';
import { differences, type Row } from '../row.js';
import { RowSet } from '../row-table.js';
import { TokenMean } from '../sums.js';

const NEEDS: readonly Need[] = ['ref_logprobs', ['old_logprobs', 'logprobs']];

// The old policy sampled the tokens, so its estimates are the unbiased ones.
const policyOf = (row: Row) => row.firstOf('old_logprobs', 'logprobs')!;
const logRatios = (row: Row) => differences(policyOf(row), row.values('ref_logprobs')!);

/** Returns reference / policy − 1, bounded as in the KL functions. */
const excess = (d: number) => Math.expm1(Math.min(Math.max(-d, -20), 20));

const disagreement: Check = {
  name: 'kl-disagreement',
  title: 'Estimators of the KL divergence disagree',
  needs: NEEDS,
  meaning:
    "For tokens that the policy itself sampled, k1 and k3 estimate the same number: reference / policy is 1 on average. Here it is not, so the tokens come from another distribution, or the reference's log-probabilities are not normalised. The KL term depends on the estimator.",
  advice:
    'Look for truncated sampling, a temperature that only one model applies, other tokens or another vocabulary in the reference, and rows from an older policy. Until then, trust none of the estimates.',
  rule:
    'warning if |k3 − k1| exceeds 5 standard errors, 0.01 nats, and half of the larger one. k2 is shown too, but it is ' +
    'biased for distant policies, so it may differ',
  measure(row) {
    const d = logRatios(row);
    return [d, d.map((x) => (x * x) / 2), d.map(excess)].flatMap((values) => TokenMean.sumsOf(values));
  },
  start() {
    const [k1, k2, gap] = [new TokenMean(), new TokenMean(), new TokenMean()];
    return {
      add: (numbers) => TokenMean.addAll([k1, k2, gap], numbers),
      finish() {
        const k3 = k1.mean + gap.mean;
        const size = Math.abs(gap.mean);
        const larger = Math.max(Math.abs(k1.mean), Math.abs(k3));
        const found = gap.count >= 50 && size > 5 * gap.error && size > 0.01 && size > 0.5 * larger;
        return {
          severity: found ? 'warning' : undefined,
          evidence: { k1: k1.mean, k2: k2.mean, k3, standardErrorOfGap: gap.error },
        };
      },
    };
  },
};

const dominated: Check = {
  name: 'kl-dominated',
  title: 'A single token makes up most of the KL estimate',
  needs: NEEDS,
  meaning:
    'k3 grows exponentially where the reference prefers a token that the policy finds unlikely. One token then decides the KL term and its gradient.',
  advice: 'Read this token, and use k2 or a clipped k3 for the KL term if such tokens are genuine.',
  rule: 'warning if one token has more than half of the sum of k3 over 200 tokens or more, and a k3 above 5',
  measure(row) {
    let [total, tokens, largest] = [0, 0, Number.NEGATIVE_INFINITY];
    for (const d of logRatios(row)) {
      if (!Number.isFinite(d)) continue;
      const k3 = excess(d) + d;
      total += k3;
      tokens++;
      largest = Math.max(largest, k3);
    }
    return tokens > 0 ? [total, tokens, largest] : undefined;
  },
  start() {
    const sum = new ExactSum();
    let [tokens, largest] = [0, 0];
    let rows = new RowSet();
    return {
      add(numbers, index) {
        const k3 = numbers[2]!;
        sum.add(numbers[0]!);
        tokens += numbers[1]!;
        if (k3 < largest) return;
        if (k3 > largest) rows = new RowSet();
        largest = k3;
        rows.add(index);
      },
      finish() {
        const share = largest / sum.value;
        return {
          severity: tokens >= 200 && largest > 5 && share > 0.5 ? 'warning' : undefined,
          evidence: { largest, shareOfSum: share, tokens },
          rows,
        };
      },
    };
  },
};

const reference: Check = {
  name: 'reference-is-policy',
  title: 'The reference policy is the policy',
  needs: NEEDS,
  meaning:
    'Every KL estimate is exactly 0, so a KL term does nothing. This is right at the first step. Later, the reference follows the policy by mistake, or its column is a copy.',
  advice:
    'Check which weights the reference was loaded from, and whether it is synchronised with the policy.',
  rule: 'info if the columns are equal on all tokens; warning if `step` says that this is not the first step',
  measure: (row) => [
    ...equalTokens(policyOf(row), row.values('ref_logprobs')!),
    row.number('step') ?? Number.NaN,
  ],
  start() {
    const equality = new Equality();
    let step = Number.NaN;
    return {
      add(numbers) {
        equality.add(numbers[0]!, numbers[1]!);
        step = numbers[2]!;
      },
      finish: () => ({
        severity: equality.isWhole ? (step > 1 ? 'warning' : 'info') : undefined,
        evidence: equality.evidence,
      }),
    };
  },
};

export const KL_CHECKS: readonly Check[] = [disagreement, dominated, reference];
