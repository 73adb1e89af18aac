/** Tests the float64 reference of verl's functions against every result of verl itself. */
import assert from 'node:assert/strict';
import type { Args } from '../reference/batch.js';
import { verlFormulas, verlReference } from '../reference/beyond/verl.js';
import { agrees, allClose, close, metricsAgree } from '../support/close.js';
import { type FrameworkCase, referenceBatch, verlCases } from '../support/golden.js';
import { poison } from '../support/poison.js';
import { slopesAgree } from '../support/slopes.js';

function check({ kind, fn, args, inputs, expected }: FrameworkCase): void {
  const batch = referenceBatch(inputs);
  switch (kind) {
    case 'policy_loss': {
      const actual = verlReference.policy[fn]!(args, batch);
      agrees(actual, expected, expected.grad_logprob.data);
      assert.equal(actual.gradLogZ === undefined, expected.grad_log_z === undefined);
      if (expected.grad_log_z) allClose(actual.gradLogZ!, expected.grad_log_z.data, 'gradLogZ');
      break;
    }
    case 'kl_loss':
      agrees(verlReference.kl[fn]!.loss(args, batch), expected, expected.grad_logprob.data);
      allClose(verlReference.kl[fn]!.values(batch), expected.kl.data, 'kl');
      break;
    case 'rollout_correction': {
      const actual = verlReference.correction[fn]!(args, batch);
      assert.deepEqual(Array.from(actual.keptMask), expected.kept_mask.data);
      assert.equal(actual.weights === null, expected.weights === null);
      if (expected.weights) allClose(actual.weights!, expected.weights.data, 'weights');
      metricsAgree(actual.metrics, expected.metrics);
      break;
    }
    case 'advantage': {
      const actual = verlReference.advantage[fn]!(args, batch);
      allClose(actual.advantages, expected.advantages.data, 'advantages');
      allClose(actual.returns, expected.returns.data, 'returns');
      assert.deepEqual(actual.kept, expected.kept_rows.map(Boolean));
      metricsAgree(actual.metrics, expected.metrics);
    }
  }
}

/** Names that have no case, because they are other names of k1+ and k2+. */
const ALIASES = ['kl+', 'mse+'];
const FAMILIES = {
  policy_loss: verlReference.policy,
  kl_loss: verlReference.kl,
  rollout_correction: verlReference.correction,
  advantage: verlReference.advantage,
};

describe("reference of verl's functions", () => {
  for (const each of verlCases) it(each.id, () => check(each));

  for (const [family, functions] of Object.entries(FAMILIES))
    it(`has cases for every function: ${family}`, () => {
      const covered = verlCases.filter(({ kind }) => kind === family).map(({ fn }) => fn);
      const names = Object.keys(functions).filter((name) => !ALIASES.includes(name));
      assert.deepEqual([...new Set(covered)].sort(), names.sort());
    });

  for (const family of ['policy', 'kl'] as const)
    for (const [name, formula] of Object.entries(verlFormulas[family])) {
      if (ALIASES.includes(name)) continue;
      it(`has gradients that are slopes: ${name}`, () => {
        const evaluate = family === 'policy' ? verlReference.policy[name]! : verlReference.kl[name]!.loss;
        let compared = 0;
        for (const { kind, fn, args, inputs } of verlCases)
          if (fn === name && kind === `${family}_loss`)
            compared += slopesAgree(formula, evaluate, args, referenceBatch(inputs), 'logprob');
        assert.ok(compared > 20, `only ${compared} elements lie away from kinks`);
      });
    }

  it('ignores the values of masked tokens', () => {
    for (const { kind, fn, args, inputs } of verlCases) {
      if (kind === 'advantage') continue; // Rewards of masked tokens count.
      const evaluate = {
        policy_loss: verlReference.policy[fn],
        kl_loss: verlReference.kl[fn]?.loss,
        rollout_correction: verlReference.correction[fn],
      }[kind]!;
      const batch = referenceBatch(inputs);
      assert.deepEqual(evaluate(args, poison(batch, Number.NaN)), evaluate(args, batch));
    }
  });

  it('gives 0 to batches without unmasked tokens, where verl gives NaN', () => {
    for (const { kind, fn, args, inputs } of verlCases) {
      if (kind !== 'policy_loss') continue;
      const batch = referenceBatch(inputs);
      const empty = { ...batch, actionMask: new Uint8Array(batch.actionMask.length) };
      const { loss, metrics, grad } = verlReference.policy[fn]!(args, empty);
      if (!['flowrl', 'online_dpo'].includes(fn)) assert.equal(Math.abs(loss), 0, fn);
      for (const value of [loss, ...Object.values(metrics)]) assert.ok(Number.isFinite(value), fn);
      assert.ok(
        grad.every((g) => g === 0),
        fn,
      );
    }
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
    const correct = (fn: string, args: Args) => verlReference.correction[fn]!(args, far);

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
      for (const fn of ['vanilla', 'dppo_tv', 'verl_sapo', 'verl_cispo']) {
        const args = { loss_agg_mode: 'token-mean', clip_ratio: 1e9, clip_ratio_c: 1e9 };
        const { metrics, grad } = verlReference.policy[fn]!(args, batch);
        close(metrics.ppo_kl!, -20 / (1 + 1e-8), fn);
        if (fn === 'vanilla' || fn === 'verl_sapo') assert.equal(grad[0], 0, fn);
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
    close(verlReference.policy.geo_mean!(args, batch).loss, 2 * share * 1e-10 ** share, 'loss');
  });
});
