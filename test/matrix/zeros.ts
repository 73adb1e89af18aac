/** Factors of 0 (advantages, weights, coefficients) where the other factor of a product overflows: the product is 0. */
import assert from 'node:assert/strict';
import fc from 'fast-check';
import { KL_FN, POLICY_LOSS_FN } from '../../lib/index.js';
import { LARGEST_FLOAT } from '../../lib/losses/statistics.js';
import type { ReferenceBatch } from '../reference/index.js';
import { ARGUMENTS, requiredArgs } from '../support/draw-arguments.js';
import { within } from './forms.js';
import { assertExpected, type Expected, expectedOf, isOnEdge, layAny } from './reference.js';
import { LOSS, type Result, type Tested, tested } from './tested.js';

/** The log-ratios of one token in each row whose advantages are 0. float32 holds the exponential of 88, not of 89. */
const FAR = [60, 88, 89, 100, 150, 1e4].flatMap((x) => [x, -x]);

const SHORT = { seed: 11, rows: 4, columns: 5, values: 'moderate', mask: 'ones', packed: false } as const;

/** The columns that are far from logprob. */
const COLUMNS = [
  ['oldLogprob'],
  ['rolloutLogprob'],
  ['proxLogprob'],
  ['oldLogprob', 'rolloutLogprob', 'proxLogprob'],
] as const;

/**
 * Returns a batch in which every second row has nothing to learn: its advantages are 0, and the other policies that a loss
 * compares with are the current one. Its first token has a far log-ratio.
 */
function farBatch(
  on: Tested,
  columns: readonly (typeof COLUMNS)[number][number][],
  far: number,
): ReferenceBatch {
  const batch = on.draw(SHORT) as Required<ReferenceBatch>;
  const { rows, columns: length, logprob } = batch;
  const isZero = (i: number) => Math.floor(i / length) % 2 === 0;
  const changed = (values: ArrayLike<number>, change: (i: number) => number) =>
    Float64Array.from(values, (x, i) => (isZero(i) ? change(i) : x));
  const ofRows = (values: ArrayLike<number>, zero: number) =>
    Array.from({ length: rows }, (_, b) => (b % 2 === 0 ? zero : values[b]!));
  return {
    ...batch,
    advantages: changed(batch.advantages, () => 0),
    refLogprob: changed(batch.refLogprob, (i) => logprob[i]!),
    teacherLogprob: changed(batch.teacherLogprob, (i) => logprob[i]!),
    rewards: ofRows(batch.rewards, 0),
    vStar: ofRows(batch.vStar, 0),
    probability: ofRows(batch.probability, 0.5),
    ...Object.fromEntries(
      columns.map((name) => [
        name,
        changed(batch[name], (i) => Math.fround(i % length === 0 ? logprob[i]! - far : batch[name][i]!)),
      ]),
    ),
  };
}

const numbersOf = (tokens: Expected['tokens'] | Result['tokens'], rows: object) =>
  Object.values({ ...tokens, ...rows } as Expected['tokens']).flatMap((x) =>
    x === 'zeros' ? [] : [...Array.from(x)],
  );

async function assertZeros(on: Tested, compute: (on: Tested, batch: ReferenceBatch) => Promise<Result>) {
  for (const columns of COLUMNS)
    for (const far of FAR) {
      const batch = farBatch(on, columns, far);
      const expected = expectedOf('policy', on.name, on.args, batch);
      const reference = [expected.loss!, ...numbersOf(expected.tokens, expected.rows)];
      // Some terms are not multiplied by an advantage, such as a KL divergence to the sampler.
      if (reference.some((x) => Math.abs(x) > LARGEST_FLOAT)) continue;
      await within(`${columns}: ${far}`, async () => {
        const { numbers, tokens, rows } = await compute(on, batch);
        for (const x of [numbers[LOSS]!, ...numbersOf(tokens, rows)])
          assert.ok(Number.isFinite(x), `it gives ${x}`);
        // The reference multiplies 0 by Infinity where float64 overflows. GVPO subtracts means over groups, which keep the
        // rounding errors of a sum with a term of 1e4.
        if (!reference.every(Number.isFinite) || (on.name === 'verl/gvpo' && Math.abs(far) > 150)) return;
        if (isOnEdge('policy', on.name, on.args, batch)) return;
        // The metrics are means of ratios, which may overflow. So may the sum of absolute values that bounds errors.
        const result = { numbers: { [LOSS]: numbers[LOSS]! }, tokens, rows };
        const magnitude = Number.isFinite(expected.magnitude?.loss) ? expected.magnitude!.loss! : 0;
        assertExpected(batch, result, {
          ...expected,
          metrics: {},
          magnitude: { loss: magnitude, metrics: {} },
        });
      });
    }
}

const ARGS_OF_REC = [
  { weight: 'importance_sampling' },
  { weight: 'gspo_importance_sampling', clip_mode: 'gspo-one-side' },
];

// Every token has a log-ratio of 100 to the old policy, and one of −100 to the reference policy.
const OVERFLOWING = {
  shape: [2, 2] as const,
  logprob: Float32Array.of(-2, -1, -2, -1),
  oldLogprob: Float32Array.of(-102, -101, -102, -101),
  rolloutLogprob: Float32Array.of(-2, -1, -2, -1),
  refLogprob: Float32Array.of(98, 99, 98, 99),
  advantages: Float32Array.of(-1, -2, -1, -2),
  actionMask: Uint8Array.of(1, 1, 1, 1),
};

export function describeZeros(place: 'cpu' | 'cuda:0'): void {
  const device = place === 'cpu' ? {} : { device: place };
  const assertZero = ({ loss, grad }: { loss: number; grad?: Float32Array }) =>
    assert.deepEqual([loss, ...grad!].map(Math.abs), [0, 0, 0, 0, 0]);
  const compute = async (on: Tested, batch: ReferenceBatch): Promise<Result> =>
    place === 'cpu'
      ? on.sync(layAny(batch), { gradients: 'all' })
      : on.async(layAny(batch), { gradients: 'all', ...device });
  describe(`matrix: factors of 0 where ratios overflow on ${place}`, () => {
    for (const name of POLICY_LOSS_FN.names())
      it(`policy ${name}`, async () => {
        const cls = POLICY_LOSS_FN.get(name);
        const required = { ...cls.defaultArgs(), ...requiredArgs(cls.declaration) };
        const drawn = fc.sample(ARGUMENTS.policy[name]!, { seed: 5, numRuns: 1 });
        const chosen = name === 'rec' ? ARGS_OF_REC.map((args) => ({ ...required, ...args })) : [];
        for (const args of [required, ...chosen, ...drawn])
          await within(JSON.stringify(args), () => assertZeros(tested('policy', name, args), compute));
      });

    for (const name of KL_FN.names())
      it(`kl ${name} with a coefficient of 0`, async () => {
        const kl = KL_FN.create(name, { kl_coef: 0 });
        assertZero(await kl.calculateKlLoss(OVERFLOWING, { grad: true, ...device }));
        const { tokenLevelRewards } = await kl.applyKlPenaltyToReward(
          { ...OVERFLOWING, tokenLevelScores: Float32Array.of(1, 2, 3, 4) },
          device,
        );
        assert.deepEqual(tokenLevelRewards, Float32Array.of(1, 2, 3, 4));
      });

    // A row's loss is multiplied by the geometric mean of its weights, which is not 0.
    for (const name of ['gspo', 'trl/grpo', 'prime_rl', 'verl/kl_cov'])
      it(`policy ${name} with weights of 0`, async () => {
        const infinite = await POLICY_LOSS_FN.create(name).compute(OVERFLOWING, { grad: true, ...device });
        assert.equal(infinite.loss, Number.POSITIVE_INFINITY);
        const correction = { rollout_is: 'token', rollout_is_threshold: '0.5_2' };
        const fn = POLICY_LOSS_FN.create(name, { correction });
        const { loss, grad } = await fn.compute(OVERFLOWING, { grad: true, ...device });
        assert.ok(Number.isFinite(loss) && grad!.every((x) => x === 0), `${loss} ${grad}`);
      });
  });
}
