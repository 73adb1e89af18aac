/** Tests objectives that compute advantages from rewards, including advantage functions that drop or repeat rows. */
import assert from 'node:assert/strict';
import fc from 'fast-check';
import { takeNow } from '../../lib/base/steps.js';
import { ADVANTAGE_FN, POLICY_LOSS_FN, type PolicyLossDeclaration } from '../../lib/index.js';
import type { RewardedBatch } from '../reference/advantage.js';
import type { Args } from '../reference/index.js';
import { objectiveStandsOnEdge, referenceObjective, takeRows } from '../reference/objective.js';
import { DEFAULTS } from '../support/algorithms.js';
import { without } from '../support/batch-keys.js';
import { layOut, makeRewarded, rewardSpec } from '../support/draw.js';
import { ADVANTAGE_ARGUMENTS } from '../support/draw-arguments.js';
import { isLossError } from '../support/loss-error.js';
import {
  assertObjective,
  assertSameObjective,
  objectiveOf,
  POLICIES_BY_ROW,
  partsOf,
  REWARDED,
  unadvised,
} from '../support/objective.js';
import { unpack } from '../support/subject.js';
import { assertArray, assertNumber } from '../support/tolerance.js';

const SEED = Number(process.env.FC_SEED ?? 2025);

/** Returns whether a loss treats advantages that it gets for whole rows as numbers of the rows. */
function readsAdvantagesOfRows(policyLoss: string): boolean {
  const { perRow = [] } = POLICY_LOSS_FN.get(policyLoss).declaration as PolicyLossDeclaration;
  return perRow.includes('advantages');
}

describe('objectives that compute advantages', () => {
  const COEFFICIENTS = { kl_loss_fn_args: { kl_coef: 0.2 }, entropy_loss_fn_args: { entropy_coef: 0.3 } };
  /** The algorithms that have an advantage function. */
  const WITH_ADVANTAGES = Object.keys(DEFAULTS).filter((name) => DEFAULTS[name]![1]);

  for (const name of WITH_ADVANTAGES)
    for (const packed of [false, true])
      it(`${name}, ${packed ? 'packed' : 'padded'}: first computes advantages by its function`, async () => {
        const advantageFn = DEFAULTS[name]![1]!;
        const samples = fc.sample(ADVANTAGE_ARGUMENTS[advantageFn]!, { seed: SEED, numRuns: 6 });
        for (const [i, args] of samples.entries()) {
          // Without std_threshold, no rows are dropped. Tests with dropped rows follow below.
          if ('std_threshold' in args) args.std_threshold = null;
          const batch = layOut(unadvised({ ...REWARDED, packed, seed: i, perToken: i % 2 === 1 }));
          const config = { ...COEFFICIENTS, loss_agg_mode: 'seq-mean-token-mean' };
          const objective = objectiveOf(name, { ...config, advantage_fn_args: args });
          const result = objective.computeSync(batch, { grad: true });
          assertSameObjective(await objective.compute(batch, { grad: true }), result);

          const { advantages, metrics } = ADVANTAGE_FN.create(advantageFn, args).computeSync(batch);
          const given = objectiveOf(name, config).computeSync({ ...batch, advantages }, { grad: true });
          assertNumber(result.loss, given.loss, 'loss');
          assert.deepEqual(
            Object.keys(result.metrics).sort(),
            Object.keys({ ...metrics, ...given.metrics }).sort(),
          );
          for (const [key, value] of Object.entries({ ...metrics, ...given.metrics }))
            assertNumber(result.metrics[key], value, key);
          assertArray(result.grad!, given.grad!, 'grad');
          assertArray(result.gradEntropy ?? [], given.gradEntropy ?? [], 'gradEntropy');
        }
      });

  it("ppo's masked_tokens is the same as with given advantages, which are 0 under the mask", () => {
    const policy_loss_fn_args = { enable_sequence_masking: true, delta_sequence_masking: -10 };
    for (const [name, advantageFn] of [
      ['grpo', 'grpo'],
      ['ppo', 'ppo'],
      ['on_policy_distill', 'on_policy_distill'],
    ] as const) {
      const batch = layOut(unadvised(REWARDED));
      const objective = objectiveOf(name, { policy_loss_fn_args });
      const { advantages } = ADVANTAGE_FN.create(advantageFn).computeSync(batch);
      const given = objective.computeSync({ ...batch, advantages });
      assert.ok(given.metrics['seq_mask/masked_tokens']! > 0);
      assertNumber(
        objective.computeSync(batch).metrics['seq_mask/masked_tokens'],
        given.metrics['seq_mask/masked_tokens']!,
        name,
      );
    }
  });

  it('uses the advantages of the batch if it has any', () => {
    const batch = makeRewarded(REWARDED);
    const objective = objectiveOf('grpo', { advantage_fn_args: { std_threshold: 1e9 } });
    const given = objective.computeSync(layOut(batch), { grad: true });
    const bare = without(layOut(batch), 'rewards', 'groupIds');
    assertSameObjective(objective.computeSync(bare, { grad: true }), given);
    assert.ok(!Object.keys(given.metrics).some((key) => /group_advantages|filtered/.test(key)));
  });

  it('accepts another advantage function by its name', () => {
    const batch = layOut(unadvised(REWARDED));
    const objective = objectiveOf('grpo', {
      advantage_fn: 'opmd',
      advantage_fn_args: { opmd_baseline: 'logavgexp' },
    });
    assertSameObjective(
      objective.computeSync(batch, { grad: true }),
      objectiveOf('grpo', {
        advantageFn: 'opmd',
        advantageFnArgs: { opmdBaseline: 'logavgexp' },
      }).computeSync(batch, {
        grad: true,
      }),
    );
    const { metrics } = objective.computeSync(batch);
    assert.ok('group_advantages/group_baseline/mean' in metrics);
  });

  it('names the column that the advantages need and the batch lacks', async () => {
    const batch = layOut(unadvised(REWARDED));
    for (const [name, key, says] of [
      ['grpo', 'rewards', /rewards/],
      ['grpo', 'groupIds', /group_?ids/i],
      ['multi_step_grpo', 'runIds', /run_?ids/i],
      ['ppo', 'values', /values/],
      ['jsd', 'teacherLogprob', /teacher_?logprob/i],
    ] as const) {
      const objective = objectiveOf(name);
      assert.throws(() => objective.computeSync(without(batch, key)), isLossError('ERR_MISSING_INPUT', says));
      const promise = objective.compute(without(batch, key));
      await assert.rejects(promise, isLossError('ERR_MISSING_INPUT', says));
    }
    const rewards = Array.from(batch.rewards as Float64Array);
    rewards[2] = Number.NaN;
    await assert.rejects(
      objectiveOf('grpo').compute({ ...batch, rewards }),
      isLossError('ERR_INVALID_INPUT', /rewards\[2\]/),
    );
    // raft has no advantage function, so the batch itself must contain advantages.
    const raft = objectiveOf('raft', { policy_loss_fn: 'ppo' });
    assert.throws(() => raft.computeSync(batch), isLossError('ERR_MISSING_INPUT', /advantages/));
  });

  describe('with dropped and repeated rows', () => {
    const dropping = fc.constantFrom(
      ...[
        { advantage_fn: 'grpo', advantage_fn_args: { std_threshold: 0.5 } },
        { advantage_fn: 'grpo', advantage_fn_args: { std_threshold: 0.5, duplicate_experiences: true } },
        {
          advantage_fn: 'grpo',
          advantage_fn_args: { std_threshold: 0.5, duplicate_experiences: true, seed: 4 },
        },
        { advantage_fn: 'step_wise_grpo', advantage_fn_args: { std_threshold: 0.5, enable_step_norm: true } },
        { advantage_fn: 'step_wise_grpo', advantage_fn_args: { std_threshold: 0, std_cal_level: 'batch' } },
        { advantage_fn: 'rec', advantage_fn_args: { drop: 'balance' } },
      ].map(({ advantage_fn, advantage_fn_args }): { advantage_fn: string; advantage_fn_args: Args } => ({
        advantage_fn,
        advantage_fn_args,
      })),
    );

    it('loss, metrics, gradients and counts include each row as often as the advantage function says', () => {
      const seen = { dropped: 0, repeated: 0, none: 0 };
      fc.assert(
        fc.property(
          partsOf(POLICIES_BY_ROW),
          dropping,
          rewardSpec,
          fc.nat({ max: 1000 }),
          ({ parts, config }, { advantage_fn, advantage_fn_args }, drawn, seed) => {
            const bare = unadvised({
              ...drawn,
              rewards: drawn.rewards === 'binary' ? 'binary' : 'normal',
              groups: drawn.seed % 8 ? 'some' : drawn.groups,
            });
            const laid = layOut(bare);
            const fn = ADVANTAGE_FN.create(advantage_fn, advantage_fn_args);
            // If the advantage function has no seed of its own, the call passes one.
            const options = 'seed' in advantage_fn_args ? {} : { seed };
            const { advantages, keptRows, copies, metrics } = fn.computeSync(laid, options);
            const times = copies ?? keptRows;
            const isOfRows = readsAdvantagesOfRows(parts.policy.name);
            // The reference takes a column of one token per row for one value per token.
            fc.pre(!isOfRows || bare.columns > 1);
            const batch = {
              ...bare,
              advantages: isOfRows
                ? takeNow(fn.computeFor(laid, options, false)).computed.column
                : bare.rowLengths
                  ? unpack(bare, advantages)
                  : advantages,
            };
            fc.pre(!objectiveStandsOnEdge(parts, batch));
            if (times.some((n) => n === 0)) seen.dropped++;
            if (times.some((n) => n > 1)) seen.repeated++;
            if (times.every((n) => n === 0)) seen.none++;

            const objective = objectiveOf('ppo', { ...config, advantage_fn, advantage_fn_args });
            const result = objective.computeSync(laid, { grad: true, ...options });
            const expected = referenceObjective(parts, batch, times);
            assertObjective(
              bare,
              {
                ...result,
                metrics: Object.fromEntries(
                  Object.entries(result.metrics).filter(([key]) => !(key in metrics)),
                ),
              },
              expected,
            );
            for (const [key, value] of Object.entries(metrics)) assert.equal(result.metrics[key], value, key);

            // With the whole batch's own counts as the normalizer, the result must stay the same.
            const counted = takeRows(
              bare,
              Array.from({ length: bare.rows }, (_, b) => new Array<number>(times[b]!).fill(b)).flat(),
            );
            const tokens = Array.from(counted.actionMask).filter(Boolean).length;
            const normalizer = {
              tokens,
              rows: counted.rows,
              columns: bare.columns,
              expert: expertCounts(counted),
            };
            const part = objective.computeSync(laid, { grad: true, normalizer, ...options });
            assertNumber(part.loss, result.loss, 'loss', expected.magnitude.loss);
            assertArray(part.grad!, result.grad!, 'grad', undefined, expected.gradMagnitude);
          },
        ),
        { numRuns: 300, seed: SEED },
      );
      assert.ok(seen.dropped > 60 && seen.repeated > 20 && seen.none > 3, JSON.stringify(seen));
    });

    function expertCounts(batch: RewardedBatch) {
      const rows = Array.from({ length: batch.rows }, (_, b) => b).filter((b) => batch.expertMask![b]);
      const { actionMask } = takeRows(batch, rows);
      return { tokens: Array.from(actionMask).filter(Boolean).length, rows: rows.length };
    }

    it('count() includes each row as often as the advantage function says', async () => {
      const bare = unadvised({ ...REWARDED, rows: 30, seed: 3 });
      const laid = layOut(bare);
      for (const advantage_fn_args of [
        {},
        { std_threshold: 0.9 },
        { std_threshold: 0.9, duplicate_experiences: true },
        { std_threshold: 0.9, duplicate_experiences: true, seed: 11 },
        { std_threshold: 1e9 },
      ])
        for (const name of ['grpo', 'mix']) {
          const { copies, keptRows } = ADVANTAGE_FN.create('grpo', advantage_fn_args).computeSync(laid);
          const times = copies ?? keptRows;
          const rows = Array.from({ length: 30 }, (_, b) => new Array<number>(times[b]!).fill(b)).flat();
          const counted = takeRows(bare, rows);
          const expected = {
            tokens: Array.from(counted.actionMask).filter(Boolean).length,
            rows: rows.length,
            columns: bare.columns,
            ...(name === 'mix' ? { expert: expertCounts(counted) } : {}),
          };
          const objective = objectiveOf(name, { advantage_fn_args });
          assert.deepEqual(objective.countSync(laid), expected);
          assert.deepEqual(await objective.count(laid), expected);
          // A seed that is passed to count() replaces the advantage function's own seed, as in compute().
          const { seed = 0, ...unseeded } = advantage_fn_args as { seed?: number };
          const other = objectiveOf(name, { advantage_fn_args: { ...unseeded, seed: 77 } });
          assert.deepEqual(other.countSync(laid, { seed }), expected);
          assert.deepEqual(await other.count(laid, { seed }), expected);
        }
    });
  });
});
