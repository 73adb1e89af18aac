/** Tests the float64 reference of verl's functions against every result of verl itself. */
import assert from 'node:assert/strict';
import { verlReference } from '../reference/beyond/verl.js';
import { agrees, allClose, metricsAgree } from '../support/close.js';
import { type FrameworkCase, referenceBatch, verlCases } from '../support/golden.js';

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
      const actual = verlReference.advantage[fn]!(args, { ...batch });
      allClose(actual.advantages, expected.advantages.data, 'advantages');
      allClose(actual.returns, expected.returns.data, 'returns');
      assert.deepEqual(actual.kept, expected.kept_rows.map(Boolean));
      metricsAgree(actual.metrics, expected.metrics);
    }
  }
}

describe("reference of verl's functions", () => {
  for (const each of verlCases) it(each.id, () => check(each));
});
