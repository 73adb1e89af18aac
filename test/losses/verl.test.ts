/**
 * Compares verl's policy losses and KL losses with every result of verl itself, and the policy losses with the float64
 * reference on drawn batches.
 */
import assert from 'node:assert/strict';
import { POLICY_LOSS_FN } from '../../lib/index.js';
import { drawn } from '../support/drawn.js';
import { isLossError } from '../support/loss-error.js';

describe("verl's policy losses", () => {
  it('draws other tokens for clip_cov with another seed, and follows keys', () => {
    const [rows, columns] = [8, 40];
    const at = Array.from({ length: rows * columns }, (_, i) => i);
    const logprob = at.map((i) => -1 - Math.sin(i));
    const batch = {
      shape: [rows, columns] as const,
      logprob,
      oldLogprob: logprob,
      advantages: at.map((i) => Math.sin(3 * i + 1)),
      actionMask: at.map(() => 1),
    };
    const zeros = (seed: number, keys?: number[]) => {
      const args = { clip_cov_ratio: 0.05, clip_cov_lb: -10, seed };
      const fn = POLICY_LOSS_FN.create('verl/clip_cov', args);
      const { grad } = fn.computeSync({ ...batch, ...(keys && { clip_cov_keys: keys }) }, { grad: true });
      return at.filter((i) => grad![i] === 0);
    };
    const [first, second] = [zeros(1), zeros(2)];
    assert.equal(first.length, 16);
    assert.equal(second.length, 16);
    assert.notDeepEqual(first, second);
    const keys = at.map((i) => drawn(1, Math.floor(i / columns), i % columns));
    assert.deepEqual(zeros(2, keys), first);
    assert.deepEqual(zeros(2, Array(at.length).fill(0)), at.slice(0, 16));
  });

  it('takes the names kl and mse of k1 and k2 for distillation', () => {
    const batch = {
      shape: [1, 3] as const,
      logprob: [-1, -2, -0.5],
      oldLogprob: [-1.1, -2, -0.4],
      teacherLogprob: [-0.8, -2.5, -0.5],
    };
    const of = (loss_mode: 'k1' | 'k2' | 'kl' | 'mse') => {
      const fn = POLICY_LOSS_FN.create('verl/distillation', { loss_mode, use_policy_gradient: true });
      return fn.computeSync(batch, { grad: true });
    };
    assert.deepEqual(of('kl'), of('k1'));
    assert.deepEqual(of('mse'), of('k2'));
  });

  it('refuses several processes without the counts of all of them', () => {
    const create = (args: Record<string, unknown>) => () => POLICY_LOSS_FN.create('verl/gpg', args);
    const refused = (option: string) => isLossError('ERR_INVALID_OPTION', new RegExp(`${option}: expected`));
    assert.throws(create({ dp_size: 2 }), refused('batchNumTokens'));
    assert.throws(create({ dp_size: 2, loss_agg_mode: 'seq-mean-token-sum' }), refused('globalBatchSize'));
    create({ dp_size: 2, loss_agg_mode: 'token-sum' })();
    create({ dp_size: 2, batch_num_tokens: 64 })();
  });

  it('minimizes k1 by policy gradient only', () => {
    assert.throws(
      () => POLICY_LOSS_FN.create('verl/distillation', { loss_mode: 'k1' }),
      isLossError('ERR_INVALID_OPTION', /lossMode: expected usePolicyGradient to be true for k1/),
    );
  });

  it('gives 0 if no token is kept', () => {
    const batch = {
      shape: [1, 2] as const,
      logprob: [-1, -2],
      oldLogprob: [-1, -2],
      rolloutLogprob: [-3, -4],
      advantages: [1, -1],
      actionMask: [1, 1],
    };
    const args = { rollout_is: 'token', rollout_rs: 'token_k1', rollout_rs_threshold: 1.1 };
    for (const name of ['vanilla', 'gspo', 'geo_mean']) {
      const fn = POLICY_LOSS_FN.create(`verl/${name}`, args);
      const { loss, metrics, grad } = fn.computeSync(batch, { grad: true });
      assert.equal(loss, 0, name);
      assert.deepEqual([...grad!].map(Math.abs), [0, 0], name);
      assert.ok(Object.values(metrics).every(Number.isFinite), name);
      assert.equal(metrics['rollout_corr/rollout_rs_seq_masked_fraction'], 1, name);
    }
  });
});
