/** Tests the float64 reference of the other frameworks' policy losses against every result of these frameworks. */
import assert from 'node:assert/strict';
import { othersFormulas } from '../reference/beyond/others.js';
import { evaluators } from '../reference/index.js';
import { allClose, close } from '../support/close.js';
import { othersCases } from '../support/golden.js';
import { agreesWithCase, behaveAsLosses } from './policy-losses.js';
import { UNREPORTED } from './unreported.js';

const othersReference = evaluators(othersFormulas, 'logprob');

/**
 * The functions whose frameworks add 1e-8 to other counts than Trinity-RFT does. Dividing by a small count, of rows or
 * of a row's tokens, they differ from the reference by up to 1e-8.
 */
const OTHER_EPSILONS = ['corrected_ppo', 'clipped_pg', 'decoupled_ppo', 'rollout_is', 'segment_ppo'];

describe("reference of the other frameworks' policy losses", () => {
  for (const each of othersCases)
    it(each.id, () => {
      const slack = OTHER_EPSILONS.includes(each.fn) ? 10 : 1;
      agreesWithCase(othersReference[each.fn]!, each, slack, UNREPORTED[`${each.source} ${each.fn}`]);
    });

  behaveAsLosses(othersFormulas, othersReference, othersCases);

  // No golden case reaches these options, so the numbers were computed by hand.
  describe('options', () => {
    const row = { rows: 1, columns: 2, actionMask: [1, 1], advantages: [1, 1] };

    it('clipped_pg weighs whole rows by the product of their ratios', () => {
      const batch = {
        ...row,
        logprob: [-1, -2],
        oldLogprob: [-1.5, -1.5],
        rolloutLogprob: [-1.2, -1.6],
        refLogprob: [-1, -2],
      };
      // The mean log-ratio to old is 0. The log-ratios of old to the rollout are −0.3 and 0.1.
      const weightOf = (type: string | null) => {
        const { loss, metrics } = othersReference.clipped_pg!(
          {
            loss_agg_mode: 'seq-mean-token-mean',
            sequence_level_importance_ratios: true,
            reference_policy_kl_penalty: 0,
            use_importance_sampling_correction: true,
            truncated_importance_sampling_type: type,
            truncated_importance_sampling_ratio: 1.1,
            truncated_importance_sampling_ratio_min: 0.9,
          },
          batch,
        );
        close(loss, -metrics.sampling_importance_ratio!, `loss under ${type}`, 10 * Math.abs(loss));
        return metrics;
      };
      const product = Math.exp(-0.2);
      close(weightOf(null).sampling_importance_ratio!, product, 'weight');
      close(weightOf('tis').sampling_importance_ratio!, 0.9, 'truncated weight');
      assert.equal(weightOf('icepop').sampling_importance_ratio, 0);
      assert.equal(weightOf('icepop').is_oob_ratio, 1);
      // The geometric mean, exp(−0.1), lies within the bounds.
      close(weightOf('seq-mask-tis').sampling_importance_ratio!, product, 'kept weight');
      assert.equal(weightOf('seq-mask-tis').is_oob_ratio, 0);
    });

    it('clipped_pg has no gradient where it limits the log-ratio to the reference', () => {
      const batch = {
        ...row,
        advantages: [0, 0],
        logprob: [-30, -1],
        oldLogprob: [-30, -1],
        rolloutLogprob: [-30, -1],
        refLogprob: [-1, -2],
      };
      const args = { reference_policy_kl_penalty: 1, kl_output_clamp_value: null };
      const { loss, grad } = othersReference.clipped_pg!(args, batch);
      // The first log-ratio is 29, limited to 20. The second is −1, whose k3 is 1/e. Its gradient is k3 + 1 − 1/e.
      close(loss, (Math.exp(20) - 21 + Math.exp(-1)) / 2, 'loss', 10 * loss);
      allClose(grad, [0, 1 / 2], 'grad', 10);
    });

    it('decoupled_ppo rejects by the square of the log-ratio', () => {
      const batch = {
        ...row,
        advantages: [2, 3],
        logprob: [-1, -1],
        proxLogprob: [-1, -1],
        oldLogprob: [-1.5, -1.1],
      };
      const args = { rejection_level: 'token', rejection_metric: 'kl_k2', rejection_upper: 0.03 };
      const { loss, metrics, grad } = othersReference.decoupled_ppo!(args, batch);
      close(loss, (-3 * Math.exp(0.1)) / 2, 'loss');
      allClose(grad, [0, loss], 'grad');
      assert.equal(metrics.filtered_fraction, 0.5);
    });
  });
});
