/** Tests which metrics of rows count rows without tokens, where no golden case of the frameworks has such rows. */
import assert from 'node:assert/strict';
import { POLICY_LOSS_FN } from '../../lib/index.js';
import { type Args, referencePolicyLosses } from '../reference/index.js';
import { assertComputed } from '../support/tolerance.js';

const BATCH = { logprob: [-1, -2, -1, -1], oldLogprob: [-1, -2, -1, -1], actionMask: [1, 1, 0, 0] };

// Returns the metrics of a loss, which are also those of the reference. The second row has no tokens, so its ratio is 1.
function metricsOf(name: string, args: Args, columns: Record<string, number[]>): Record<string, number> {
  const batch = { ...BATCH, ...columns };
  const computed = POLICY_LOSS_FN.create(name, args).computeSync({ shape: [2, 2], ...batch }, { grad: true });
  const metrics = computed.metrics as Record<string, number>;
  const expected = referencePolicyLosses[name]!(args, { rows: 2, columns: 2, ...batch });
  assertComputed({ loss: computed.loss, metrics, grad: computed.grad! }, expected);
  return metrics;
}

describe('rows without tokens', () => {
  it('count in the metrics of TRL if there is one ratio and one advantage per row', () => {
    const of = (name: string, args: Args, advantages: number[]) =>
      metricsOf(name, { importance_sampling_level: 'sequence', ...args }, { advantages });
    assert.deepEqual(of('trl/cispo', { epsilon_high: 0.5 }, [-1, 1]), { cispo_clip_ratio: 0.5 });
    assert.deepEqual(of('trl/cispo', { epsilon_high: 0.5 }, [1, 1]), { cispo_clip_ratio: 1 });
    const metrics = of('trl/grpo', { delta: 0.5 }, [-1, -1]);
    assert.equal(metrics['clip_ratio/low_mean'], 1);
    assert.equal(metrics['clip_ratio/low_min'], 1);
    assert.equal(metrics['clip_ratio/high_max'], 0);
  });

  it('count among the rows that clipped_pg masks', () => {
    const shareBetween = (low: number, high: number) => {
      const args = {
        reference_policy_kl_penalty: 0,
        use_importance_sampling_correction: true,
        truncated_importance_sampling_type: 'seq-mask-tis',
        truncated_importance_sampling_ratio_min: low,
        truncated_importance_sampling_ratio: high,
      };
      const columns = { rolloutLogprob: [-2, -3, -1, -1], advantages: [1, 1, 1, 1], rewards: [1, 1] };
      return metricsOf('clipped_pg', args, columns).is_oob_ratio;
    };
    assert.equal(shareBetween(0.9, 1.1), 0.5);
    assert.equal(shareBetween(1.05, 1.2), 1);
    assert.equal(shareBetween(1.05, 3), 0.5);
  });
});
