/** Losses of values and of rewards: where their inputs are at the edge, and how they are called. */
import assert from 'node:assert/strict';
import {
  type Batch,
  LOGITS_LOSS_FN,
  LOSS_FN,
  LossError,
  POLICY_LOSS_FN,
  REWARD_LOSS_FN,
  RewardLossFn,
  VALUE_LOSS_FN,
  ValueLossFn,
} from '../../lib/index.js';
import { toHalf } from '../support/half.js';
import { isLossError } from '../support/loss-error.js';

const row = (...numbers: number[]) => Float32Array.from(numbers);

describe('value losses', () => {
  const tie: Batch = { shape: [1, 1], values: row(2), oldValues: row(0), returns: row(1.5) };

  it('give half a gradient where clipping leaves the loss as it is', () => {
    // (2 − 1.5)² and (clip(2, ±1) − 1.5)² are equal.
    const { loss, gradValues } = LOSS_FN.create('trl/value', { cliprange_value: 1 }).computeSync(tie, {
      grad: true,
    });
    assert.equal(loss, 0.125);
    assert.deepEqual(gradValues, row(0.25));
  });

  it('need no log-probabilities, and name a missing column', () => {
    const { returns, ...others } = tie;
    const fn = LOSS_FN.create('verl/value');
    assert.ok(fn instanceof ValueLossFn);
    assert.deepEqual(fn.selectKeys, ['old_values', 'returns', 'response_mask']);
    assert.throws(
      () => fn.computeSync(others),
      (error: LossError) => error.code === 'ERR_MISSING_INPUT' && /^returns: /.test(error.message),
    );
  });

  it('return the gradient where it was requested', async () => {
    const fn = LOSS_FN.create('verl/value');
    const own = new Float32Array(1);
    assert.equal((await fn.compute(tie, { grad: own })).gradValues, own);
    const { halfGradValues } = fn.computeSync(tie, { grad: { dtype: 'bfloat16' } });
    assert.deepEqual(halfGradValues, {
      data: Uint16Array.of(toHalf(own[0]!, 'bfloat16')),
      dtype: 'bfloat16',
    });
    assert.equal('grad' in fn.computeSync(tie, { grad: true }), false);
  });

  it('of slime are those of rows by themselves without rollout_ids', () => {
    const batch: Batch = {
      shape: [2, 2],
      values: row(1, 2, 3, 4),
      oldValues: row(1, 2, 3, 4),
      returns: row(0, 0, 0, 0),
    };
    const fn = LOSS_FN.create('slime/value');
    assert.equal(fn.computeSync(batch).loss, ((1 + 4) / 2 + (9 + 16) / 2) / 2);
    assert.equal(fn.computeSync({ ...batch, rolloutIds: ['a', 'a'] }).loss, (1 + 4 + 9 + 16) / 4 / 2);
  });

  it('have an explained variance of 0 where nothing is left to explain', () => {
    const none = { ...tie, actionMask: [0] };
    const equal: Batch = {
      shape: [1, 2],
      values: row(1, 2),
      oldValues: row(1, 2),
      returns: row(1, 1),
      lossMaskSum: [2],
    };
    assert.equal(LOSS_FN.create('verl/value').computeSync(tie).metrics['critic/vf_explained_var'], 0);
    for (const batch of [none, equal])
      assert.equal(LOSS_FN.create('rlinf/value').computeSync(batch).metrics['critic/explained_variance'], 0);
  });

  it('do not read rows that are left out', () => {
    const of = (x: number) =>
      LOSS_FN.create('nemo/value').computeSync(
        { shape: [2, 1], values: [1, x], oldValues: [1, x], returns: [2, x], sample_mask: [1, 0] },
        { grad: true },
      );
    assert.deepEqual(of(Number.NaN), of(0));
  });

  it('are computed in parts, without the explained variance', () => {
    const rows = (first: number, last: number): Batch => ({
      shape: [last - first, 2],
      values: row(1, 2, 3, 5).subarray(2 * first, 2 * last),
      oldValues: row(1.1, 1.9, 3, 4).subarray(2 * first, 2 * last),
      returns: row(0, 3, 2, 4).subarray(2 * first, 2 * last),
    });
    for (const [name, metric] of [
      ['verl/value', 'critic/vf_explained_var'],
      ['rlinf/value', 'critic/explained_variance'],
    ] as const) {
      const fn = VALUE_LOSS_FN.create(name);
      const whole = fn.computeSync(rows(0, 2), { grad: true });
      const normalizer = fn.countSync(rows(0, 2));
      const parts = [rows(0, 1), rows(1, 2)].map((batch) =>
        fn.computeSync(batch, { normalizer, part: true, grad: true }),
      );
      const { [metric]: explained, ...others }: Record<string, unknown> = whole.metrics;
      assert.equal(typeof explained, 'number');
      const merged = fn.merge(
        parts.map(({ part }) => part!),
        normalizer,
      );
      assert.deepEqual(merged, { loss: whole.loss, metrics: others });
      assert.deepEqual(row(...parts.flatMap(({ gradValues }) => [...gradValues!])), whole.gradValues);
    }
  });

  it('explain the variance of large values', () => {
    const values = row(...Array.from({ length: 64 }, (_, t) => 1e6 + (t % 2)));
    const batch: Batch = { shape: [1, 64], values, oldValues: values, returns: values };
    const { metrics } = LOSS_FN.create('nemo/value').computeSync(batch);
    assert.ok(Math.abs(metrics['critic/explained_var']! - 1) < 1e-9);
  });
});

describe('losses of reward models', () => {
  const names = LOSS_FN.names().filter((name) => /\/reward/.test(name));

  it('are linear where a margin is saturated, and ln 2 for an equal pair', () => {
    for (const name of names) {
      const fn = LOSS_FN.create(name);
      assert.ok(fn instanceof RewardLossFn);
      const of = (...rewards: number[]) => fn.computeSync({ rewards }, { grad: true });
      assert.ok(Math.abs(of(-5e3, 5e3).loss - 1e4) < 2e-4, name);
      assert.ok(of(5e3, -5e3).loss === 0, name);
      assert.ok(Math.abs(of(1, 1).loss - Math.LN2) < 1e-6, name);
      const [chosen, rejected] = of(-5e3, 5e3).gradRewards;
      assert.ok(Math.abs(chosen! + 1) < 1e-6 && Math.abs(rejected! - 1) < 1e-6, name);
    }
  });

  it('read 16-bit rewards, and margins and masks per row or per pair', () => {
    const fn = LOSS_FN.create('oat/reward');
    const rewards = [1, 0.5, -2, 0.25];
    const usual = fn.computeSync({ rewards, margin: [1, 2], sampleMask: [1, 0] }, { grad: true });
    for (const dtype of ['float16', 'bfloat16'] as const) {
      const data = Uint16Array.from(rewards, (x) => toHalf(x, dtype));
      const given = {
        rewards: { data, dtype },
        margin: row(1, 1, 2, 2),
        sampleMask: [true, true, false, false],
      };
      assert.deepEqual(fn.computeSync(given, { grad: true }), usual);
    }
    assert.deepEqual(usual.gradRewards.subarray(2), row(0, 0));
  });

  it('give 0 where no pair counts', () => {
    for (const name of ['nemo/reward', 'areal/reward', 'oat/reward']) {
      const { loss, metrics, gradRewards } = REWARD_LOSS_FN.create(name).computeSync(
        { rewards: [3, 1], sample_mask: [0, 0] },
        { grad: true },
      );
      assert.equal(loss, 0, name);
      assert.deepEqual(gradRewards, row(0, 0), name);
      assert.ok(Object.values(metrics).every(Number.isFinite), name);
    }
  });

  it('do not read pairs that are left out', () => {
    for (const name of ['nemo/reward', 'areal/reward', 'oat/reward']) {
      const of = (...rewards: number[]) =>
        REWARD_LOSS_FN.create(name).computeSync({ rewards, sample_mask: [1, 1, 0, 0] }, { grad: true });
      const { loss, gradRewards } = of(1, 2, Number.NaN, Number.POSITIVE_INFINITY);
      assert.equal(loss, of(1, 2, 0, 0).loss, name);
      assert.deepEqual(gradRewards, of(1, 2, 0, 0).gradRewards, name);
    }
  });

  it('refuse rows that are not pairs', () => {
    const fn = LOSS_FN.create('trl/reward');
    assert.throws(
      () => fn.computeSync({ rewards: [1, 2, 3] }),
      (error: LossError) => error instanceof LossError && error.code === 'ERR_SHAPE_MISMATCH',
    );
    assert.throws(
      () => fn.computeSync({ rewards: [1, 2], margin: [1, 2, 3] }),
      (error: LossError) => error.code === 'ERR_SHAPE_MISMATCH' && /^margin: /.test(error.message),
    );
  });
});

describe('LOSS_FN', () => {
  it('finds policy losses, also those that are registered later', () => {
    assert.equal(LOSS_FN.get('ppo').name, 'PPOPolicyLossFn');
    assert.equal(LOSS_FN.get('gspo_token').name, 'TRLGSPOTokenLossFn');
    assert.throws(
      () => LOSS_FN.get('verl/valeu'),
      (error: LossError) => error.code === 'ERR_UNKNOWN_NAME' && /verl\/value/.test(error.message),
    );
  });

  it('registers a class in the registry of its kind', () => {
    class Mine extends LOSS_FN.get('verl/value') {}
    assert.throws(() => LOSS_FN.register('ppo', Mine), { code: 'ERR_INVALID_INPUT' });
    assert.throws(() => LOSS_FN.register('verl/value', Mine), { code: 'ERR_INVALID_INPUT' });
    LOSS_FN.register('verl/value', LOSS_FN.get('verl/value'));
    assert.deepEqual(
      LOSS_FN.names(),
      [POLICY_LOSS_FN, VALUE_LOSS_FN, REWARD_LOSS_FN, LOGITS_LOSS_FN].flatMap((registry) => registry.names()),
    );
  });
});

describe('losses of process reward models', () => {
  const shape = [1, 2] as const;
  const logits = row(1, 2, 3, 3, 0, 3, 1, 3);
  const prm = (ids: number[], more: object) =>
    LOGITS_LOSS_FN.create('openrlhf/prm', { reward_token_ids: ids }).computeSync({ shape, logits, ...more });

  it('choose the first of equal logits in the order of the ids', () => {
    const targets = [2, 3];
    assert.equal(prm([3, 2], { targets }).metrics.acc, 0.5);
    assert.equal(prm([2, 3], { targets }).metrics.acc, 1);
    assert.equal(prm([1, 3, 2], { targets }).metrics.acc, 0);
  });

  it('refuse labels and ids of other tokens', () => {
    assert.equal(prm([1, 2], { targets: [1, 0], actionMask: [1, 0] }).loss > 0, true);
    assert.throws(
      () => prm([1, 2], { targets: [1, 0] }),
      isLossError('ERR_INVALID_INPUT', /targets\[1\]: expected one of reward_token_ids \(1, 2\), or -100/),
    );
    const targetProbs = row(1, 0.5);
    for (const more of [{ targets: [1, 1] }, { targetProbs }])
      assert.throws(
        () => prm([1, 4], more),
        isLossError('ERR_INVALID_OPTION', /reward_token_ids: expected token ids from 0 to 3, got 4/),
      );
    assert.throws(
      () => prm([], { targets: [1, 1] }),
      isLossError('ERR_INVALID_OPTION', /reward_token_ids: expected different token ids/),
    );
  });
});
