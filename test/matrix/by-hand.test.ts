/** Tests the float64 reference against numbers that were computed by hand, where no golden case reaches. */
import assert from 'node:assert/strict';
import type { Args } from '../reference/batch.js';
import { verlCorrections } from '../reference/frameworks/verl-corrections.js';
import { type ReferenceBatch, referencePolicyLosses } from '../reference/index.js';
import { allClose, close } from '../support/close.js';

describe('the reference by hand', () => {
  // No golden case drops a token by sequence masking, so these numbers were computed by hand.
  it('ppo drops tokens with a negative advantage in rows far from the policy that sampled them', () => {
    const batch: ReferenceBatch = {
      rows: 2,
      columns: 3,
      logprob: [-1, -2, -1, -1, -1, -1],
      oldLogprob: [-0.5, -1, -1, -1, -1, -1],
      advantages: [-1, 2, -3, -1, 1, -1],
      actionMask: [1, 1, 0, 1, 1, 0],
    };
    const { loss, metrics, grad } = referencePolicyLosses.ppo!(
      { clip_range: 0.2, enable_sequence_masking: true },
      batch,
    );
    // Row 0 has a mean KL of k = 0.75, above the threshold 0.1. So its token with advantage −1 is dropped, and its
    // token with advantage 2 contributes −2·e⁻¹. Row 1 has k = 0, so it keeps both tokens, whose losses 1 and −1
    // cancel.
    close(loss, (-2 * Math.exp(-1)) / (4 + 1e-8), 'loss');
    close(metrics['seq_mask/mean_sequence_kl']!, 0.375, 'mean_sequence_kl', 1);
    close(metrics['seq_mask/masked_tokens']!, 2 / (4 + 1e-10), 'masked_tokens');
    allClose(grad, [0, (-2 * Math.exp(-1)) / (4 + 1e-8), 0, 1 / (4 + 1e-8), -1 / (4 + 1e-8), 0], 'grad');
  });

  describe('options of other frameworks', () => {
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
        const { loss, metrics } = referencePolicyLosses.clipped_pg!(
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
      close(weightOf('icepop').is_oob_ratio!, 2 / (2 + 1e-8), 'tokens out of bounds');
      // The geometric mean, exp(−0.1), lies within the bounds.
      close(weightOf('seq-mask-tis').sampling_importance_ratio!, product, 'kept weight');
      assert.equal(weightOf('seq-mask-tis').is_oob_ratio, 0);
    });

    it('clipped_pg counts the tokens of rows whose product of ratios is out of bounds', () => {
      const batch = {
        rows: 2,
        columns: 3,
        actionMask: [1, 0, 0, 1, 1, 1],
        advantages: [1, 1, 1, 1, 1, 1],
        logprob: [-1, -1, -1, -1, -1, -1],
        oldLogprob: [-1, -1, -1, -1, -1, -1],
        rolloutLogprob: [-1, -1, -1, -1, -1, -2],
      };
      for (const type of ['tis', 'icepop']) {
        const args = {
          loss_agg_mode: 'seq-mean-token-mean',
          sequence_level_importance_ratios: true,
          reference_policy_kl_penalty: 0,
          truncated_importance_sampling_type: type,
          truncated_importance_sampling_ratio: 1.1,
        };
        const { metrics } = referencePolicyLosses.clipped_pg!(args, batch);
        close(metrics.is_oob_ratio!, 3 / (4 + 1e-8), type);
      }
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
      const { loss, grad } = referencePolicyLosses.clipped_pg!(args, batch);
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
      const { loss, metrics, grad } = referencePolicyLosses.decoupled_ppo!(args, batch);
      close(loss, (-3 * Math.exp(0.1)) / 2, 'loss');
      allClose(grad, [0, loss], 'grad');
      assert.equal(metrics.filtered_fraction, 0.5);
    });
  });

  it('divides luspo by the number of rows alone, also per token', () => {
    const batch = {
      rows: 2,
      columns: 2,
      actionMask: [1, 1, 1, 0],
      logprob: [-1, -2, -1, 0],
      oldLogprob: [-1, -2, -1, 0],
      refLogprob: [-1, -2, 0, 0],
      advantages: [1, 2, 4, 8],
    };
    const args = { importance_sampling_level: 'token', beta: 1 };
    // All ratios are 1. The log-ratios to the reference are 0, but 1 for the last unmasked token.
    const { loss } = referencePolicyLosses['trl/luspo']!(args, batch);
    close(loss, (-1 - 2 - 4 + Math.E - 2) / 2, 'loss');
  });

  // No golden case reaches the limits of 20, so these numbers were computed by hand.
  describe('limits the logs of ratios to 20', () => {
    const far = {
      rows: 1,
      columns: 2,
      logprob: [-1, -1],
      oldLogprob: [-1, -1],
      rolloutLogprob: [-31, -1],
      advantages: [1, 1],
      actionMask: [1, 0],
    };
    const most = Math.exp(20);
    const correct = (fn: string, args: Args) => verlCorrections[fn]!(args, far);

    it('of weights', () => {
      for (const level of ['token', 'sequence']) {
        const { weights, metrics } = correct('rollout_correction', {
          rollout_is: level,
          rollout_is_threshold: '1e-9_1e9',
        });
        close(weights![0]!, most, 'weight');
        close(metrics['rollout_corr/rollout_is_max']!, most, 'rollout_is_max');
        assert.equal(metrics['rollout_corr/rollout_is_std'], 0);
        close(metrics['rollout_corr/chi2_token']!, most ** 2 / (1 + 1e-8) - 1, 'chi2_token');
        close(metrics['rollout_corr/chi2_seq']!, most ** 2 - 1, 'chi2_seq');
      }
    });

    it('of weights of older versions', () => {
      for (const level of ['token', 'sequence', 'geometric']) {
        const v070 = { rollout_is: level, rollout_is_threshold: 1e9 };
        close(correct('rollout_correction_v070', v070).weights![0]!, most, level);
        const v060 = { rollout_is_level: level, rollout_is_threshold: 1e9 };
        close(correct('rollout_importance_weights_v060', v060).weights![0]!, most, level);
      }
    });

    it('of rejected tokens', () => {
      const { metrics } = correct('rollout_correction', {
        rollout_rs: 'token_k2',
        rollout_rs_threshold: 201,
      });
      close(metrics['rollout_corr/rollout_rs_token_k2_max']!, 200, 'statistic');
      close(metrics['rollout_corr/rollout_rs_masked_fraction']!, 0, 'masked_fraction');
    });

    it('of losses', () => {
      const batch = { ...far, oldLogprob: far.rolloutLogprob };
      for (const fn of ['vanilla', 'dppo_tv', 'sapo', 'cispo']) {
        const args = { loss_agg_mode: 'token-mean', clip_ratio: 1e9, clip_ratio_c: 1e9 };
        const { metrics, grad } = referencePolicyLosses[`verl/${fn}`]!(args, batch);
        close(metrics.ppo_kl!, -20 / (1 + 1e-8), fn);
        if (fn === 'vanilla' || fn === 'sapo') assert.equal(grad[0], 0, fn);
        else close(grad[0]!, -most, fn);
      }
    });
  });

  it('gives rows of geo_mean whose weights are 0 a weight of 1e-10', () => {
    const batch = {
      rows: 1,
      columns: 1,
      logprob: [-1],
      oldLogprob: [-1],
      rolloutLogprob: [-3],
      advantages: [-2],
      actionMask: [1],
    };
    const args = { clip_ratio: 0.4, rollout_is: 'token', rollout_is_threshold: '0.5_2' };
    // The mean over the row divides by 1 + 1e-8, so the exponents are a little closer to 0.
    const share = 1 / (1 + 1e-8);
    close(referencePolicyLosses['verl/geo_mean']!(args, batch).loss, 2 * share * 1e-10 ** share, 'loss');
  });
});
