/** Losses that depend on which columns a batch has, and the gradients with respect to other columns than logprob. */
import assert from 'node:assert/strict';
import { ALGORITHM_TYPE, POLICY_LOSS_FN } from '../../lib/index.js';
import { policyLoss } from '../../lib/losses/policy-loss.js';
import { isLossError } from '../support/loss-error.js';
import { assertArray } from '../support/tolerance.js';

let builds = 0;
const Adapting = policyLoss({
  name: 'test',
  summary: 'test',
  source: [],
  reads: ['old_logprob', 'entropy', 'advantages', 'action_mask'],
  optional: ['old_logprob', 'entropy'],
  perRow: ['advantages'],
  options: { needsOld: { type: 'boolean', default: false, help: 'whether the loss needs old_logprob' } },
  metrics: { ratio: { unit: 'ratio' }, entropy: { unit: 'nats', when: 'if the batch has entropies' } },
  numerics: { range: 'any', outside: 'none' },
  formula: ({ A, H, r, rowMean, rows }, _, has) => {
    builds++;
    return {
      rowLoss: rowMean(A).mul(rowMean(r)).add(rowMean(A)).div(rows),
      metrics: { ratio: { token: r }, entropy: has('entropy') ? { token: H } : undefined },
      allRows: true,
    };
  },
  needs: ({ needsOld }) => (needsOld ? ['old_logprob'] : []),
});

const logprob = Float32Array.of(-1, -2, -3, -4);
const batch = {
  shape: [2, 2] as const,
  logprob,
  advantages: Float32Array.of(2, 3, 5, 7),
  actionMask: Uint8Array.of(1, 1, 0, 0),
};
const oldLogprob = logprob.map((x) => x - Math.LN2);
const entropy = Float32Array.of(0.5, 1.5, 9, 9);

describe('losses that depend on the columns of the batch', () => {
  it('take the current policy for an old one that is absent', () => {
    const { loss, metrics, grad } = new Adapting().computeSync(batch, { grad: true });
    assert.equal(loss, 2.5);
    assertArray(grad!, [0.625, 0.625, 0, 0], 'grad');
    assert.deepEqual(Object.keys(metrics), ['ratio']);
    const given = new Adapting().computeSync({ ...batch, oldLogprob });
    assertArray([given.loss], [3.75], 'loss');
  });

  it('have the metrics of the columns that the batch has', async () => {
    const fn = new Adapting();
    assertArray([fn.computeSync({ ...batch, entropy }).metrics.entropy!], [1], 'entropy');
    assert.equal(fn.computeSync(batch).metrics.entropy, undefined);
    assertArray([(await fn.compute({ ...batch, entropy, oldLogprob })).metrics.entropy!], [1], 'entropy');
  });

  it('give rows without tokens the advantage of the row', () => {
    const { loss } = new Adapting().computeSync({ ...batch, advantages: Float32Array.of(2, 6) });
    // Row 0 adds 2 · 1 + 2. Row 1 has no ratio, and adds 6 · 0 + 6.
    assert.equal(loss, (4 + 6) / 2);
  });

  it('are built once for each kind of batch', () => {
    const fn = new Adapting();
    fn.computeSync({ ...batch, entropy });
    const before = builds;
    for (let i = 0; i < 5; i++) fn.computeSync({ ...batch, entropy });
    assert.equal(builds, before);
    fn.computeSync({ ...batch, entropy, oldLogprob });
    assert.equal(builds, before + 1);
  });

  it('name a column that their options need', () => {
    const fn = new Adapting({ needsOld: true });
    assert.throws(() => fn.computeSync(batch), isLossError('ERR_MISSING_INPUT', /old_?log/i));
    fn.computeSync({ ...batch, oldLogprob });
  });

  it('list the columns that the batch may lack among their keys', () => {
    assert.deepEqual(
      [...new Adapting({ backend: 'tinker' }).selectKeys].sort(),
      [...new Adapting({ backend: 'tinker', needsOld: true }).selectKeys].sort(),
    );
    assert.deepEqual(new Adapting().reads.optional, ['old_logprob', 'entropy']);
    assert.deepEqual(new Adapting({ needsOld: true }).reads.optional, ['entropy']);
  });

  it('merge the parts of batches of one kind only', () => {
    const fn = new Adapting();
    const normalizer = fn.countSync(batch);
    const whole = { ...batch, entropy, oldLogprob };
    const { part, ...expected } = fn.computeSync(whole, { part: true, normalizer });
    assert.deepEqual(fn.merge([part!], normalizer), expected);
    const other = fn.computeSync(batch, { part: true, normalizer });
    const mixed = () => fn.merge([part!, other.part!], normalizer);
    assert.throws(mixed, isLossError('ERR_INVALID_INPUT', /the same columns/));
    const foreign = Float64Array.from(part!);
    foreign[foreign.length - 1]! += 8 * 16;
    assert.throws(
      () => fn.merge([foreign], normalizer),
      isLossError('ERR_INVALID_INPUT', /the same columns/),
    );
  });
});

describe('gradients with respect to entropies and log_z', () => {
  const bonus = POLICY_LOSS_FN.create('trl/bnpo', { entropy_coef: 0.5 });
  const flowrl = POLICY_LOSS_FN.create('verl/flowrl');
  const rows = { ...batch, oldLogprob: logprob, refLogprob: logprob, logZ: [0.5, 0.25] };

  it('are written to arrays of the caller', async () => {
    const gradEntropy = new Float32Array(4).fill(42);
    const gradLogZ = new Float32Array(2).fill(42);
    const result = bonus.computeSync({ ...batch, oldLogprob, entropy }, { gradEntropy, gradLogZ });
    assert.equal(result.gradEntropy, gradEntropy);
    assert.equal(result.gradLogZ, gradLogZ);
    assert.equal('grad' in result, false);
    assertArray(gradEntropy, [-0.25, -0.25, 0, 0], 'gradEntropy');
    assertArray(gradLogZ, [0, 0], 'gradLogZ');
    const later = await flowrl.compute(rows, { gradLogZ });
    assert.equal(later.gradLogZ, gradLogZ);
    assert.deepEqual(flowrl.computeSync(rows, { gradLogZ: true }).gradLogZ, gradLogZ);
    assert.ok(gradLogZ.every((slope) => slope !== 0));
  });

  it('do not depend on which of them are requested', () => {
    const laid = { ...batch, oldLogprob, entropy };
    const all = bonus.computeSync(laid, { grad: true, gradEntropy: true, gradLogZ: true });
    assert.deepEqual(bonus.computeSync(laid, { grad: true }).grad, all.grad);
    assert.deepEqual(bonus.computeSync(laid, { gradEntropy: true }).gradEntropy, all.gradEntropy);
    assert.equal(bonus.computeSync(laid, { gradEntropy: true }).loss, all.loss);
  });

  it('are refused in arrays of the wrong length', () => {
    const compute = (options: object) => () => flowrl.computeSync(rows, options);
    const wrong = isLossError('ERR_SHAPE_MISMATCH', /gradLogZ.*2.*3/);
    assert.throws(compute({ gradLogZ: new Float32Array(3) }), wrong);
    assert.throws(compute({ gradEntropy: new Float32Array(3) }), isLossError('ERR_SHAPE_MISMATCH'));
  });

  it("are those of an algorithm's objective too", () => {
    const objective = ALGORITHM_TYPE.get('ppo').objective({
      policy_loss_fn: 'verl/flowrl',
      kl_loss_fn: 'none',
      entropy_loss_fn: 'none',
    });
    const { gradLogZ } = objective.computeSync(rows, { gradLogZ: true });
    assert.deepEqual(gradLogZ, flowrl.computeSync(rows, { gradLogZ: true }).gradLogZ);
  });
});
