/** The float64 reference of TRL's policy losses reproduces every case that TRL's own code computed. */
import assert from 'node:assert/strict';
import { trlReference } from '../reference/beyond/trl-reference.js';
import { agreesWithCase, beyondCases } from './reference-cases.js';

/**
 * Two policies agree on all tokens of a row here, to the last bit. TRL recomputed their log-probabilities with rounding
 * errors and divided these by iw_opd_epsilon, 1e-8. So its weights of this row are off by 1e-7.
 */
const ROUNDED = 'golden/trl/iw_opd/iw_opd/2/2x8/onpolicy/holes';

describe("reference of TRL's losses", () => {
  const cases = beyondCases('trl');
  const policyLosses = cases.filter(({ kind }) => kind === 'policy_loss');

  for (const golden of policyLosses) {
    it(golden.id, () => {
      assert.deepEqual(
        agreesWithCase(trlReference[golden.fn]!, golden, golden.id === ROUNDED ? 1e-8 : 1e-12),
        [],
      );
    });
  }

  it('leaves only preference losses for later', () => {
    const others = cases.filter((golden) => !policyLosses.includes(golden));
    assert.deepEqual(new Set(others.map(({ kind }) => kind)), new Set(['preference_loss']));
  });

  it('has a case for each of its losses, and no others', () => {
    assert.deepEqual(Object.keys(trlReference).sort(), [...new Set(policyLosses.map(({ fn }) => fn))].sort());
  });
});
