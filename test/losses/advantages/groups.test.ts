/** Tests the advantages of batches with many rows and groups, and with any number of threads. */
import assert from 'node:assert/strict';
import type { RewardedBatch } from '../../reference/advantage.js';
import { referenceAdvantages } from '../../reference/advantages.js';
import type { Args } from '../../reference/index.js';
import {
  assertAdvantages,
  assertFinite,
  assertSameAdvantages,
  computed,
  OF_GROUPS,
  OF_ROW_REWARDS,
} from '../../support/advantages.js';
import { layOut } from '../../support/draw.js';
import { generator } from '../../support/random.js';

const SEED = Number(process.env.FC_SEED ?? 2025);

describe('advantages of many groups', () => {
  // The engine divides the work among threads in pieces of 512 groups, or of 16,384 rows of one token. This number of
  // groups makes several pieces of either kind.
  const GROUPS = 20_000;

  /**
   * Draws a batch whose rows have one token each. `sizeOf` draws the number of rows of each group. The rows are
   * shuffled.
   */
  function manyGroups(
    groups: number,
    sizeOf: (random: ReturnType<typeof generator>) => number,
  ): RewardedBatch {
    const random = generator(SEED);
    const rows = Array.from({ length: groups }, (_, id) => new Array<number>(sizeOf(random)).fill(id)).flat();
    for (let i = rows.length - 1; i > 0; i--) {
      const j = random.integer(0, i);
      [rows[i], rows[j]] = [rows[j]!, rows[i]!];
    }
    return {
      rows: rows.length,
      columns: 1,
      actionMask: rows.map(() => 1),
      oldLogprob: rows.map(() => Math.fround(-random.uniform())),
      sumPiSquared: rows.map(() => Math.fround(1 + random.uniform())),
      rewards: rows.map(() => Math.fround(random.normal())),
      groupIds: rows,
      runIds: rows.map(() => random.integer(0, 3)),
    };
  }

  let many: RewardedBatch;
  let two: RewardedBatch;
  before(() => {
    many = manyGroups(GROUPS, ({ integer }) => integer(1, 4));
    two = manyGroups(2, () => GROUPS);
  });

  const cases: [string, Args][] = [
    ['rloo', {}],
    ['grpo', { std_threshold: 0.5, rank_penalty: 0.3 }],
    ['grpo', { std_cal_level: 'batch' }],
    ['step_wise_grpo', { std_threshold: 0.5, enable_step_norm: true }],
    ['reinforce', {}],
    ['opmd', { opmd_baseline: 'logavgexp' }],
    ['asymre', {}],
    ['rec', { std_normalize: true }],
    ...OF_GROUPS.filter((name) => name.startsWith('verl/')).map((name): [string, Args] => [name, {}]),
  ];
  for (const [name, args] of cases)
    it(`${name} ${JSON.stringify(args)}: ${GROUPS} groups of random sizes, as numbers and as strings`, () => {
      const laid = layOut(many);
      const result = computed(name, args, laid);
      assertAdvantages(result, referenceAdvantages[name]!(args, many));
      const groupIds = Array.from(many.groupIds!, (id) => `prompt-${id}`);
      assertSameAdvantages(computed(name, args, { ...laid, groupIds }), result);
    });

  for (const [name, args] of cases.filter(([each]) => OF_ROW_REWARDS.includes(each)))
    it(`${name} ${JSON.stringify(args)}: two groups of ${GROUPS} rows`, () => {
      assertAdvantages(computed(name, args, layOut(two)), referenceAdvantages[name]!(args, two));
    });

  it(`random choices in ${GROUPS} groups`, () => {
    const batch = layOut(many);
    assertFinite(computed('rec', { drop: 'balance' }, batch));
    const { copies, keptRows } = computed('grpo', { std_threshold: 0.5, duplicate_experiences: true }, batch);
    assert.equal(copies!.length, keptRows.length);
  });
});
