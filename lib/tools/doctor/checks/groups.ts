// Rewards and advantages, within groups and over the batch.

import { ExactSum } from '../../../base/exact-sum.js';
import type { Check } from '../check.js';
import type { Row } from '../row.js';
import type { RowTable } from '../row-table.js';
import { meanOf } from '../sums.js';

/** The sums of one group over its rows. */
interface Group {
  rows: number;
  reward: Spread;
  advantage: Spread;
  /** The sum of reward · advantage. */
  product: number;
}

/** The range, the sum and the sum of squares of some numbers. */
class Spread {
  least = Number.POSITIVE_INFINITY;
  most = Number.NEGATIVE_INFINITY;
  sum = 0;
  squares = 0;

  add(x: number): void {
    this.include(x, x);
    this.sum += x;
    this.squares += x * x;
  }

  /** Widens the range. */
  include(least: number, most: number): void {
    this.least = Math.min(this.least, least);
    this.most = Math.max(this.most, most);
  }

  get isConstant(): boolean {
    return this.least === this.most;
  }
}

class Groups {
  readonly all = new Map<number, Group>();

  readonly #table: RowTable;

  constructor(table: RowTable) {
    this.#table = table;
  }

  /** Adds a row, with its reward and the mean of its advantages. Missing ones count as 0. */
  add(index: number, reward = 0, advantage = 0): void {
    const id = this.#table.groupOf(index);
    if (Number.isNaN(id) || !Number.isFinite(reward + advantage)) return;
    let group = this.all.get(id);
    if (!group) {
      group = { rows: 0, reward: new Spread(), advantage: new Spread(), product: 0 };
      this.all.set(id, group);
    }
    group.rows++;
    group.reward.add(reward);
    group.advantage.add(advantage);
    group.product += reward * advantage;
  }

  /** Returns the ids of the groups for which a condition is true. */
  where(condition: (group: Group) => boolean): Set<number> {
    return new Set([...this.all].filter(([, group]) => condition(group)).map(([id]) => id));
  }
}

function meanAdvantage(row: Row): number {
  return meanOf(row.values('advantages')!);
}

const constantAdvantages: Check = {
  name: 'advantages-constant',
  title: 'All advantages are equal',
  needs: ['advantages'],
  meaning:
    'The loss does not tell good responses from bad ones. If all advantages are 0, there is no policy gradient at all.',
  advice:
    'Check the rewards and how they become advantages. Losses that imitate (RAFT, SFT) have this on purpose.',
  rule: 'error if all are 0, warning if all have another equal value, in two or more rows',
  measure(row) {
    const here = new Spread();
    for (const x of row.values('advantages')!) here.add(x);
    return row.tokens > 0 ? [here.least, here.most] : undefined;
  },
  start() {
    const all = new Spread();
    let rows = 0;
    return {
      add({ 0: least, 1: most }) {
        rows++;
        all.include(least!, most!);
      },
      finish() {
        const found = rows > 1 && all.isConstant;
        return {
          severity: found ? (all.most === 0 ? 'error' : 'warning') : undefined,
          evidence: { least: rows > 0 ? all.least : undefined, most: rows > 0 ? all.most : undefined },
        };
      },
    };
  },
};

const centred: Check = {
  name: 'advantages-not-centred',
  title: 'Advantages are centred neither in groups nor in the batch',
  needs: ['advantages'],
  meaning:
    'Advantages of one sign push all responses up, or all down, whatever their quality. The gradient is noisier, and the policy drifts.',
  advice:
    "Subtract a baseline: the mean of the group, of the batch, or a critic's value. A dump of one rank or micro-batch may hold only parts of the groups; then join the files.",
  rule:
    'warning if the mean over the rows exceeds 0.1 standard deviations and 4 standard errors, weighted by rows and by ' +
    'tokens, and more than 10% of the groups of two or more rows have a mean above 0.1 of their root mean square',
  measure(row) {
    const mean = meanAdvantage(row);
    return Number.isFinite(mean) ? [mean, row.tokens] : undefined;
  },
  start(table) {
    const groups = new Groups(table);
    const [sum, squares, tokenSum] = [new ExactSum(), new ExactSum(), new ExactSum()];
    let [rows, tokens] = [0, 0];
    return {
      add(numbers, index) {
        const [mean, tokensHere] = [numbers[0]!, numbers[1]!];
        rows++;
        tokens += tokensHere;
        sum.add(mean);
        squares.add(mean * mean);
        tokenSum.add(mean * tokensHere);
        groups.add(index, undefined, mean);
      },
      finish() {
        const mean = sum.value / rows;
        const ofTokens = tokenSum.value / tokens;
        const deviation = Math.sqrt(Math.max(squares.value / rows - mean * mean, 0));
        const limit = Math.max(0.1 * deviation, (4 * deviation) / Math.sqrt(rows));
        const comparable = groups.where(({ rows, advantage }) => rows > 1 && advantage.squares > 0);
        const off = groups.where(
          ({ rows, advantage: { sum, squares } }) =>
            rows > 1 && Math.abs(sum / rows) > 0.1 * Math.sqrt(squares / rows),
        );
        const uncentredGroups = comparable.size === 0 || off.size > 0.1 * comparable.size;
        // Equal advantages are reported by advantages-constant.
        const uncentredBatch =
          deviation > 1e-6 * Math.abs(mean) && Math.min(Math.abs(mean), Math.abs(ofTokens)) > limit;
        return {
          severity: uncentredGroups && uncentredBatch ? 'warning' : undefined,
          evidence: {
            meanOfRows: mean,
            meanOfTokens: ofTokens,
            standardDeviation: deviation,
            groupsNotCentred: off.size,
            groups: comparable.size,
          },
          rows: off.size > 0 ? table.rowsOf(off) : undefined,
        };
      },
    };
  },
};

const againstReward: Check = {
  name: 'advantages-against-reward',
  title: 'Advantages run against the rewards',
  needs: ['advantages', 'reward', 'task_id'],
  meaning: 'Within groups, better rewards have lower advantages, so training makes the policy worse.',
  advice:
    'Look for a flipped sign, a cost that is called reward, or rows that got the advantages of other rows.',
  rule:
    'error if the correlation within groups is below −0.5 over 16 rows or more. It is about 1 for GRPO and its relatives, ' +
    'and lower, but not negative, with length penalties or critics',
  measure: (row) => [row.number('reward')!, meanAdvantage(row)],
  start(table) {
    const groups = new Groups(table);
    return {
      add: ({ 0: reward, 1: advantage }, index) => groups.add(index, reward, advantage),
      finish() {
        const [rr, aa, ra] = [new ExactSum(), new ExactSum(), new ExactSum()];
        let rows = 0;
        const against = groups.where(({ rows: n, reward: r, advantage: a, product }) => {
          if (n < 2 || r.isConstant || a.isConstant) return false;
          rows += n;
          const covariance = product - (r.sum * a.sum) / n;
          rr.add(r.squares - (r.sum * r.sum) / n);
          aa.add(a.squares - (a.sum * a.sum) / n);
          ra.add(covariance);
          return covariance < 0;
        });
        const correlation = ra.value / Math.sqrt(rr.value * aa.value);
        return {
          severity: rows >= 16 && correlation < -0.5 ? 'error' : undefined,
          evidence: { correlation, rows },
          rows: table.rowsOf(against),
        };
      },
    };
  },
};

const noSpread: Check = {
  name: 'group-without-spread',
  title: 'Groups have equal rewards',
  needs: ['reward', 'task_id'],
  meaning:
    'All responses to a prompt got the same reward, so their advantages over the group are 0. These rollouts cost time and teach nothing.',
  advice:
    'Filter prompts that are always or never solved (dynamic sampling), or sample more responses per prompt.',
  rule: 'info for any such group of two or more rows, warning from half of the groups, error if all are: then there is no gradient',
  measure: (row) => [row.number('reward')!],
  start(table) {
    const groups = new Groups(table);
    return {
      add: ({ 0: reward }, index) => groups.add(index, reward),
      finish() {
        const several = groups.where(({ rows }) => rows > 1).size;
        const flat = groups.where(({ rows, reward }) => rows > 1 && reward.isConstant);
        const share = flat.size / several;
        const severity = share === 1 ? 'error' : share >= 0.5 ? 'warning' : share > 0 ? 'info' : undefined;
        return {
          severity,
          evidence: { groups: several, withoutSpread: flat.size },
          rows: table.rowsOf(flat),
        };
      },
    };
  },
};

const sizes: Check = {
  name: 'group-sizes',
  title: 'Groups differ in size',
  needs: ['task_id'],
  meaning:
    'The baseline of a small group is noisier, and a group of one row has none. Groups are often split over ranks or files.',
  advice: 'Give the doctor all files of the step. If rows were filtered, drop what is left of broken groups.',
  rule:
    'info if sizes differ, as filters of single rows leave them; warning if some groups have one row and others have more: ' +
    'an advantage over a group of one is 0, or the reward itself',
  measure: () => [],
  start(table) {
    const groups = new Groups(table);
    return {
      add: (_, index) => groups.add(index),
      finish() {
        let [smallest, largest] = [Number.POSITIVE_INFINITY, 0];
        for (const { rows } of groups.all.values()) {
          smallest = Math.min(smallest, rows);
          largest = Math.max(largest, rows);
        }
        const found = smallest < largest;
        const odd = groups.where(({ rows }) => rows < largest);
        return {
          severity: found ? (smallest === 1 ? 'warning' : 'info') : undefined,
          evidence: { groups: groups.all.size, smallest, largest, smallerGroups: odd.size },
          rows: table.rowsOf(odd),
        };
      },
    };
  },
};

const constantRewards: Check = {
  name: 'rewards-constant',
  title: 'All rewards are equal',
  needs: ['reward'],
  meaning: 'The reward does not tell responses apart, so advantages over a baseline are 0.',
  advice:
    'Check that the reward function ran and did not fail on every row: a constant 0 is what failures often return.',
  rule: 'warning if two or more rows all have the same reward',
  measure(row) {
    const reward = row.number('reward')!;
    // Rewards that are missing are reported by non-finite.
    return Number.isNaN(reward) ? undefined : [reward];
  },
  start() {
    const all = new Spread();
    let rows = 0;
    return {
      add({ 0: reward }) {
        all.add(reward!);
        rows++;
      },
      finish: () => ({
        severity: rows > 1 && all.isConstant ? 'warning' : undefined,
        evidence: { least: all.least, most: all.most, rows },
      }),
    };
  },
};

export const GROUP_CHECKS: readonly Check[] = [
  constantAdvantages,
  centred,
  againstReward,
  noSpread,
  sizes,
  constantRewards,
];
