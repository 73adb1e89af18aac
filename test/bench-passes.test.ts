/** Tests how many passes over the tokens the benchmarks count for a loss, on which the loss's target depends. */
import assert from 'node:assert/strict';
import { passesOf } from '../bench/lib/passes.js';
import { lossFromExpression, POLICY_LOSS_FN } from '../lib/index.js';

const passesOfText = (text: string) => passesOf({ policyLoss: lossFromExpression(text).policyLoss });

describe('the passes over the tokens that the benchmarks count', () => {
  it('are one for a loss of each token alone', () => {
    assert.equal(passesOfText('-A*r'), 1);
  });

  it('are one more for each level of sums that the loss depends on', () => {
    assert.equal(passesOfText('-A*exp(row_mean(d))'), 2);
    assert.equal(passesOfText('-(A - batch_mean(A))*r'), 2);
    assert.equal(passesOfText('-A*r/row_sum(exp(d - row_mean(d)))'), 3);
  });

  it('do not include a pass for metrics', () => {
    assert.equal(passesOf({ policyLoss: POLICY_LOSS_FN.create('trl/grpo').policyLoss }), 1);
  });

  it('are those of compiled losses only', () => {
    assert.throws(() => passesOf({ policyLoss: POLICY_LOSS_FN.create('ppo').policyLoss }), /compiled/);
  });
});
