/** Tests what no golden case of TRL reaches. */
import assert from 'node:assert/strict';
import { POLICY_LOSS_FN } from '../../lib/index.js';
import { referencePolicyLosses } from '../reference/index.js';
import { assertComputed } from '../support/tolerance.js';

describe("TRL's policy losses", () => {
  // The second row has no tokens, so that its ratio is 1.
  const counted = (name: 'trl/cispo' | 'trl/grpo', given: Record<string, unknown>, advantages: number[]) => {
    const args = { importance_sampling_level: 'sequence', ...given };
    const columns = { logprob: [-1, -2, -1, -1], oldLogprob: [-1, -2, -1, -1], actionMask: [1, 1, 0, 0] };
    const fn = POLICY_LOSS_FN.create(name as string, args);
    const computed = fn.computeSync({ shape: [2, 2], ...columns, advantages }, { grad: true });
    const expected = referencePolicyLosses[name]!(args, { rows: 2, columns: 2, ...columns, advantages });
    const metrics = computed.metrics as Record<string, number>;
    assertComputed({ loss: computed.loss, metrics, grad: computed.grad! }, expected);
    return metrics;
  };

  it('count rows without tokens among those whose ratio is bounded', () => {
    assert.deepEqual(counted('trl/cispo', { epsilon_high: 0.5 }, [-1, 1]), { cispo_clip_ratio: 0.5 });
    assert.deepEqual(counted('trl/cispo', { epsilon_high: 0.5 }, [1, 1]), { cispo_clip_ratio: 1 });
    const metrics = counted('trl/grpo', { delta: 0.5 }, [-1, -1]);
    assert.equal(metrics['clip_ratio/low_mean'], 1);
    assert.equal(metrics['clip_ratio/low_min'], 1);
    assert.equal(metrics['clip_ratio/high_max'], 0);
  });
});
