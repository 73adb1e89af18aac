/** Compares verl's rollout correction with every result of verl itself. */
import assert from 'node:assert/strict';
import { CORRECTION_FN, POLICY_LOSS_FN } from '../../lib/index.js';
import { reported } from '../reference/verl.js';
import { goldenBatch, verlCases } from '../support/golden.js';
import { isLossError } from '../support/loss-error.js';
import { assertArray, assertNumber } from '../support/tolerance.js';

describe("verl's rollout correction", () => {
  for (const { kind, id, fn, args, inputs, expected } of verlCases) {
    if (kind !== 'rollout_correction') continue;
    it(id, async () => {
      const correction = CORRECTION_FN.create(`verl/${fn}`, args);
      const result = correction.computeSync(goldenBatch(inputs));
      assert.deepEqual(await correction.compute(goldenBatch(inputs)), result);
      const { weights, keptMask, metrics } = result;
      assert.deepEqual([...keptMask], expected.kept_mask.data);
      if (expected.weights) assertArray(weights!, expected.weights.data, 'weights', 5e-5);
      else assert.equal(weights, null);
      const wanted = reported(expected.metrics, args);
      assert.deepEqual(Object.keys(metrics).sort(), Object.keys(wanted).sort());
      for (const [name, value] of Object.entries(wanted)) assertNumber(metrics[name], value, name);
    });
  }

  const refuses = (args: Record<string, unknown>, pattern: RegExp) =>
    assert.throws(
      () => POLICY_LOSS_FN.create('verl/vanilla', args),
      isLossError('ERR_INVALID_OPTION', pattern),
    );

  it('refuses unknown statistics', () => {
    for (const name of ['token_k4', 'seq_max_k1', 'k1', ''])
      refuses({ rollout_rs: name, rollout_rs_threshold: 2 }, /rolloutRs: expected some of token_k1, /);
  });

  it('refuses bounds that are not positive, not in order, or too many', () => {
    for (const bound of ['0', '-1', '2_1', 'a', '', '1_2_3', '1_', 'Infinity'])
      refuses({ rollout_is: 'token', rollout_is_threshold: bound }, /rolloutIsThreshold: expected a number/);
    refuses({ rollout_is: 'token', rollout_is_threshold: true }, /rolloutIsThreshold: expected a text/);
    refuses({ rollout_rs: 'token_k1' }, /rolloutRsThreshold: expected a number/);
    refuses({ rollout_rs: 'token_k1,token_k2', rollout_rs_threshold: '1,2,3' }, /expected one bound, or 2/);
    refuses(
      { rollout_rs: 'token_k2', rollout_rs_threshold: '1_2' },
      /one number for a statistic of k2 or k3/,
    );
  });
});
