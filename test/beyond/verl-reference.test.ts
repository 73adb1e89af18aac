/** Tests the float64 reference of verl's functions against every result of verl itself. */
import assert from 'node:assert/strict';
import { verlFormulas, verlReference } from '../reference/beyond/verl.js';
import { agrees, allClose, metricsAgree } from '../support/close.js';
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
      const isCorrected = Object.keys(args).some((name) => name.startsWith('rollout_'));
      // A correction needs an unmasked token, and gvpo needs one in each row.
      if (kind !== 'policy_loss' || isCorrected || fn === 'gvpo') continue;
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
});
