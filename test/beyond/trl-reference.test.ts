/** Tests the float64 reference of TRL's policy losses against every result of TRL itself. */
import assert from 'node:assert/strict';
import { trlFormulas, trlReference } from '../reference/beyond/trl.js';
import { close } from '../support/close.js';
import { type FrameworkLossCase, trlCases } from '../support/golden.js';
import { agreesWithCase, behaveAsLosses } from './policy-losses.js';

/**
 * In one row of this case, the teacher and the sampler agree on every token. TRL computed both log-probabilities anew,
 * and their rounding errors, divided by iw_opd_epsilon = 1e-8, move its metric mean_weight by 4e-9.
 */
const ROUNDED = 'golden/trl/iw_opd/iw_opd/2/2x8/onpolicy/holes';

describe("reference of TRL's policy losses", () => {
  const cases = trlCases.filter((each): each is FrameworkLossCase => each.kind === 'policy_loss');

  for (const each of cases)
    it(each.id, () => agreesWithCase(trlReference[each.fn]!, each, each.id === ROUNDED ? 4 : 1));

  it('leaves only preference losses for a later issue', () => {
    const left = trlCases.filter((each) => each.kind !== 'policy_loss');
    assert.deepEqual(new Set(left.map(({ kind }) => kind)), new Set(['preference_loss']));
  });

  behaveAsLosses(trlFormulas, trlReference, cases);

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
    const { loss } = trlReference.luspo!(args, batch);
    close(loss, (-1 - 2 - 4 + Math.E - 2) / 2, 'loss');
  });
});
