/** Tests the float64 reference of the other frameworks' policy losses against every result of these frameworks. */
import { othersFormulas, othersReference } from '../reference/beyond/others.js';
import { othersCases } from '../support/golden.js';
import { agreesWithCase, behaveAsLosses } from './policy-losses.js';

/** The metrics that a framework does not report for a loss that it shares with another one. */
const UNREPORTED: Readonly<Record<string, readonly string[]>> = {
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
});
