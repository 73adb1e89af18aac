/** The float64 reference of the other frameworks' losses reproduces every case that their own code computed. */
import assert from 'node:assert/strict';
import { othersReference } from '../reference/beyond/others-reference.js';
import { agreesWithCase, beyondCases } from './reference-cases.js';

/** Metrics that some frameworks do not report for a loss that they share with others. */
const NOT_REPORTED: Record<string, string[]> = {
  'RLinf decoupled_ppo': [
    'importance_weight',
    'clip_ratio',
    'dual_clip_ratio',
    'behave_imp_weight',
    'behave_approx_kl',
  ],
  'AReaL ref_kl': ['ref_kl', 'masked_mismatch_kl', 'unmasked_mismatch_kl', 'is_masked'],
};

/**
 * Functions whose frameworks add 1e-8 to other divisors than the reference does, or to none. Some divide by a number of
 * rows or of a row's tokens, so the difference is at most about 1e-8.
 */
const OTHER_EPSILONS = new Set(['corrected_ppo', 'clipped_pg', 'decoupled_ppo', 'rollout_is', 'segment_ppo']);

describe("reference of the other frameworks' losses", () => {
  const cases = beyondCases('others');

  for (const golden of cases) {
    it(golden.id, () => {
      const missing = agreesWithCase(
        othersReference[golden.fn]!,
        golden,
        OTHER_EPSILONS.has(golden.fn) ? 1e-8 : 1e-12,
      );
      assert.deepEqual(missing, NOT_REPORTED[`${golden.source} ${golden.fn}`] ?? []);
    });
  }

  it('has a case for each of its losses, and no others', () => {
    assert.deepEqual(Object.keys(othersReference).sort(), [...new Set(cases.map(({ fn }) => fn))].sort());
  });
});
