/** Compares verl's rollout correction with every result of verl itself. */
import assert from 'node:assert/strict';
import { POLICY_LOSS_FN } from '../../lib/index.js';
import { isLossError } from '../support/loss-error.js';

describe("verl's rollout correction", () => {
  const refuses = (args: Record<string, unknown>, pattern: RegExp) =>
    assert.throws(
      () => POLICY_LOSS_FN.create('verl/vanilla', args),
      isLossError('ERR_INVALID_OPTION', pattern),
    );

  it('refuses unknown statistics', () => {
    for (const name of ['token_k4', 'seq_max_k1', 'k1', ''])
      refuses({ rollout_rs: name, rollout_rs_threshold: 2 }, /rolloutRs: expected some of token_k1, /);
  });

  it('refuses bounds that are not positive, not in order, or too many', () => {
    for (const bound of ['0', '-1', '2_1', 'a', '', '1_2_3', '1_', 'Infinity'])
      refuses({ rollout_is: 'token', rollout_is_threshold: bound }, /rolloutIsThreshold: expected a number/);
    refuses({ rollout_is: 'token', rollout_is_threshold: true }, /rolloutIsThreshold: expected a text/);
    refuses({ rollout_rs: 'token_k1' }, /rolloutRsThreshold: expected a number/);
    refuses({ rollout_rs: 'token_k1,token_k2', rollout_rs_threshold: '1,2,3' }, /expected one bound, or 2/);
    refuses(
      { rollout_rs: 'token_k2', rollout_rs_threshold: '1_2' },
      /one number for a statistic of k2 or k3/,
    );
  });
});
