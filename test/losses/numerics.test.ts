// Tests what docs/numerics.md states: no error exceeds its bounds, and for inputs outside its ranges each function
// behaves as its declaration says.
import assert from 'node:assert/strict';
import {
  ADVANTAGE_FN,
  type BatchWith,
  ENTROPY_LOSS_FN,
  KL_FN,
  POLICY_LOSS_FN,
  REWARD_LOSS_FN,
  VALUE_LOSS_FN,
} from '../../lib/index.js';
import { BOUNDS, everyFunction, RANGES } from '../../scripts/generate/measure.js';
import { requiredArgs } from '../support/draw-arguments.js';
import { subject } from '../support/subject.js';

const TOKENS = 1000;
const REGISTRIES = { policy: POLICY_LOSS_FN, kl: KL_FN, entropy: ENTROPY_LOSS_FN };

describe('numerics', () => {
  for (const { family, name, args, measure } of everyFunction())
    it(`${family} ${name} ${JSON.stringify(args)}: errors are within bounds`, () => {
      const ranges = measure(TOKENS);
      for (const range of RANGES)
        for (const [what, errors] of Object.entries(ranges[range])) {
          const bound = BOUNDS[range][what as 'value' | 'grad' | 'sum'];
          assert.ok(errors.most <= bound, `${range} ${what}: ${errors.most} ulp`);
        }
    });

  describe('beyond the range', () => {
    // logprob is 100 above oldLogprob and 100 below refLogprob, and e^100 exceeds float32's range.
    type Columns =
      | 'teacherLogprob'
      | 'rolloutLogprob'
      | 'proxLogprob'
      | 'vStar'
      | 'probability'
      | 'logZ'
      | 'oldEntropy'
      | 'entropyOther'
      | 'logSumSqProb'
      | 'label'
      | 'chosen'
      | 'klLogprob'
      | 'klRefLogprob';
    const far = (advantage: number, rows = 2): BatchWith<Columns> => {
      const column = (value: number) => new Float32Array(rows).fill(value);
      const perRow = (of: (row: number) => number) => Array.from({ length: rows }, (_, row) => of(row));
      return {
        shape: [rows, 1],
        logprob: column(-1),
        oldLogprob: column(-101),
        refLogprob: column(99),
        rolloutLogprob: column(-101),
        proxLogprob: column(-101),
        teacherLogprob: column(-101),
        klLogprob: column(-1),
        klRefLogprob: column(99),
        rewards: perRow((row) => (row === 0 ? 1 : 0)),
        groupIds: perRow(() => 0),
        vStar: perRow((row) => row),
        probability: perRow((row) => (row === 0 ? 1 : 0)),
        logZ: perRow((row) => row),
        label: perRow((row) => (row === 0 ? 1 : 0)),
        chosen: perRow(() => 1),
        advantages: column(advantage),
        entropy: column(1),
        oldEntropy: column(1),
        entropyOther: column(-1),
        logSumSqProb: column(-1),
        actionMask: new Uint8Array(rows).fill(1),
        expertMask: Uint8Array.from(perRow((row) => (row === 1 ? 1 : 0))),
        step: 1,
      };
    };
    for (const family of ['policy', 'kl', 'entropy'] as const)
      for (const name of REGISTRIES[family].names())
        it(`${family} ${name} behaves as declared`, () => {
          const { declaration } = REGISTRIES[family].get(name);
          const overflows = declaration?.numerics.overflows;
          for (const advantage of [1, -1]) {
            const finite = overflows === undefined || (overflows === 'for A < 0' && advantage > 0);
            const args = family === 'kl' ? { kl_coef: 1 } : requiredArgs(declaration);
            const { loss, grad } = subject(family, name, args).sync(
              far(advantage, name === 'trl/tpo' ? 3 : 2),
            );
            assert.equal(Number.isFinite(loss), finite, `A = ${advantage}: ${loss}`);
            assert.equal(grad.every(Number.isFinite), finite, `A = ${advantage}: ${grad}`);
          }
        });

    for (const name of VALUE_LOSS_FN.names())
      it(`value ${name} behaves as declared`, () => {
        const at = (value: number) =>
          VALUE_LOSS_FN.create(name).computeSync(
            { shape: [1, 1], values: [value], oldValues: [0], returns: [0] },
            { grad: true },
          );
        const isLinear = name === 'rlinf/value';
        assert.ok(Number.isFinite(at(1e19).loss));
        assert.equal(at(2e19).loss < Number.POSITIVE_INFINITY, isLinear);
        assert.equal(at(2e19).gradValues[0], isLinear ? 10 : Math.fround(at(1e19).gradValues[0]! * 2));
      });

    for (const name of REWARD_LOSS_FN.names())
      it(`reward ${name} behaves as declared`, () => {
        const at = (...rewards: number[]) =>
          REWARD_LOSS_FN.create(name).computeSync({ rewards }, { grad: true });
        const { loss, gradRewards } = at(-1e9, 1e9);
        assert.ok(Math.abs(loss / 2e9 - 1) < 1e-7);
        assert.deepEqual([...gradRewards].map(Math.round), [-1, 1]);
        assert.equal(at(1e9, -1e9).loss, 0);
        assert.ok(at(1e9, -1e9).gradRewards.every((slope) => slope === 0));
      });

    it('saturates where it is clipped, and has no gradient there', () => {
      for (const name of ['ppo', 'importance_sampling']) {
        const at = (old: number) =>
          POLICY_LOSS_FN.create(name).computeSync(
            { ...far(-1), oldLogprob: Float32Array.of(old, old) },
            { grad: true },
          );
        assert.equal(at(-101).loss, at(-31).loss);
        assert.ok(at(-101).grad!.every((slope) => slope === 0));
      }
      const clipped = KL_FN.create('low_var_kl', { kl_coef: 1 }).calculateKlLossSync(far(1), { grad: true });
      assert.ok(Math.abs(clipped.loss - 10) < 1e-6);
      assert.ok(clipped.grad!.every((slope) => slope === 0));
    });

    it('overflows to Infinity where an exponential does', () => {
      const weighted = POLICY_LOSS_FN.create('rec', { weight: 'importance_sampling' });
      assert.equal(weighted.computeSync(far(1)).loss, Number.POSITIVE_INFINITY);
      assert.equal(POLICY_LOSS_FN.create('gspo').computeSync(far(-1)).loss, Number.POSITIVE_INFINITY);
      assert.equal(KL_FN.create('k3').calculateKlLossSync(far(1)).loss, Number.POSITIVE_INFINITY);
      for (const name of ['topr', 'sapo'])
        assert.equal(
          POLICY_LOSS_FN.create(name).computeSync(far(1)).metrics.avg_ratio,
          Number.POSITIVE_INFINITY,
        );
      const never = { ...far(1), oldLogprob: Float32Array.of(119, 119) };
      assert.ok(Number.isNaN(KL_FN.create('corrected_k3').calculateKlLossSync(never).loss));
    });

    it('has the finite divergence of two policies whose ratio overflows', () => {
      for (const [rollout, size] of [
        [-101, 100],
        [-31, 30],
        [399, 400],
      ] as const) {
        const batch = { ...far(1), oldLogprob: [-1, -1], rolloutLogprob: [rollout, rollout] };
        const { metrics } = POLICY_LOSS_FN.create('clipped_pg').computeSync(batch);
        assert.ok(Math.abs(metrics.js_divergence_error - (size / 2 - Math.LN2)) < 1e-5);
      }
    });

    it('is 0 where an exponential is below the smallest normal number', () => {
      const unlikely = { ...far(1), logprob: Float32Array.of(-88, -88) };
      for (const name of ['sft_is', 'sft_phi'])
        assert.equal(POLICY_LOSS_FN.create(name).computeSync(unlikely).loss + 0, 0);
    });

    it('is an error where rewards are not finite', () => {
      const zeros = new Float32Array(2);
      const rows = { rewards: [1, Number.NaN], groupIds: [1, 1], runIds: [1, 2], rewardBaselines: [0, 0] };
      for (const name of ADVANTAGE_FN.names()) {
        const reads = ADVANTAGE_FN.get(name).declaration?.reads ?? [];
        if (!reads.includes('rewards') && !reads.includes('token_level_rewards')) continue;
        const call = () =>
          ADVANTAGE_FN.create(name).computeSync({ ...far(1), ...rows, values: zeros, sumPiSquared: zeros });
        assert.throws(call, { code: 'ERR_INVALID_INPUT' }, name);
      }
    });
  });
});
