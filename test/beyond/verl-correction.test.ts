/** Compares verl's rollout correction with every result of verl itself. */
import assert from 'node:assert/strict';
import { fromTrinityArgs } from '../../lib/core/options.js';
import { expressionLossClass } from '../../lib/functions/policy-loss/expression-loss.js';
import { rolloutCorrection } from '../../lib/functions/policy-loss/verl/corrected.js';
import {
  ROLLOUT_CORRECTION_V070,
  ROLLOUT_WEIGHTS_V060,
  rolloutCorrectionV070,
  rolloutWeightsV060,
} from '../../lib/functions/policy-loss/verl/older-rollout-correction.js';
import { ROLLOUT_CORRECTION } from '../../lib/functions/policy-loss/verl/rollout-correction.js';
import { CORRECTION_METRICS } from '../../lib/functions/policy-loss/verl/rollout-metrics.js';
import { POLICY_LOSS_FN } from '../../lib/index.js';
import { reported } from '../reference/verl.js';
import { goldenBatch, verlCases } from '../support/golden.js';
import { isLossError } from '../support/loss-error.js';
import { assertArray, assertNumber } from '../support/tolerance.js';

const PART = { type: 'choice', choices: ['weight', 'kept'], default: 'weight', help: '' } as const;
const DECLARATION = {
  name: 'probe',
  summary: '',
  source: [],
  reads: ['old_logprob', 'rollout_logprob', 'action_mask'],
  numerics: { range: '', outside: '' },
} as const;

/** Losses whose gradient holds a correction's weights, or which tokens it keeps. */
const PROBES = {
  rollout_correction: expressionLossClass(
    {
      ...DECLARATION,
      options: {
        ...ROLLOUT_CORRECTION,
        bypassMode: { type: 'boolean', default: false, help: '' },
        part: PART,
      },
      metrics: CORRECTION_METRICS,
    },
    (symbols, { bypassMode, part, ...options }) => {
      const { lp, old, rollout, sg } = symbols;
      const policy = bypassMode ? sg(lp) : old;
      const { metrics, ...parts } = rolloutCorrection('Probe', symbols, options, policy, rollout);
      return { loss: lp.mul(parts[part] ?? 1), metrics, allRows: true };
    },
  ),
  rollout_correction_v070: expressionLossClass(
    { ...DECLARATION, options: { ...ROLLOUT_CORRECTION_V070, part: PART }, metrics: {} },
    (symbols, { part, ...options }) => {
      const { lp, old, rollout } = symbols;
      const { metrics, ...parts } = rolloutCorrectionV070(symbols, options, old.sub(rollout));
      return { loss: lp.mul(parts[part] ?? 1), metrics, allRows: true };
    },
  ),
  rollout_importance_weights_v060: expressionLossClass(
    { ...DECLARATION, options: { ...ROLLOUT_WEIGHTS_V060, part: PART }, metrics: {} },
    (symbols, { part, ...options }) => {
      const { lp, old, rollout } = symbols;
      const { metrics, ...parts } = rolloutWeightsV060(symbols, options, old.sub(rollout));
      return { loss: lp.mul(parts[part] ?? 1), metrics, allRows: true };
    },
  ),
};

describe("verl's rollout correction", () => {
  for (const each of verlCases) {
    if (each.kind !== 'rollout_correction') continue;
    const { id, fn, args, inputs, expected } = each;
    const Probe = PROBES[fn as keyof typeof PROBES];
    it(id, () => {
      const compute = (part: 'weight' | 'kept') =>
        new Probe({ ...fromTrinityArgs(args), part }).computeSync(goldenBatch(inputs), { grad: true });
      assertArray(compute('kept').grad!, expected.kept_mask.data, 'kept');
      const { grad, metrics } = compute('weight');
      assertArray(grad!, expected.weights?.data ?? inputs.action_mask!.data, 'weights', 5e-5);
      const wanted = reported(expected.metrics, args);
      assert.deepEqual(Object.keys(metrics).sort(), Object.keys(wanted).sort());
      for (const [name, value] of Object.entries(wanted))
        assertNumber((metrics as Record<string, number>)[name], value, name);
    });
  }

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
