/**
 * Compares the library with results of Trinity-RFT itself, within the tolerances of test/golden/README.md. That file
 * allows larger errors for tokens that are exactly on a clip bound. These tests do not need that: they assert that no
 * token is on a bound.
 */
import assert from 'node:assert/strict';
import { KL_FN, POLICY_LOSS_FN } from '../lib/index.js';
import { type Args, standsOnEdge } from './reference/index.js';
import {
  cutRows,
  entropyLossCases,
  goldenBatch,
  klLossCases,
  policyLossCases,
  referenceBatch,
  type Tensor,
} from './support/golden.js';
import { type Family, packedBatch, type Subject, subject, unpack } from './support/subject.js';
import { assertArray, assertComputed, assertSameBits, type Expected } from './support/tolerance.js';

function holds(on: Subject, inputs: Record<string, Tensor>, expected: Expected) {
  const batch = goldenBatch(inputs);
  const computed = on.sync(batch);
  assertComputed(computed, expected);
  return on.async(batch).then((later) => {
    assertSameBits(later, computed);
    const cut = cutRows(referenceBatch(inputs));
    const packed = on.sync(packedBatch(cut));
    assertComputed({ ...packed, grad: unpack(cut, packed.grad) }, expected);
  });
}

function offEdges(family: Family, name: string, args: Args, inputs: Record<string, Tensor>): void {
  const { formula } = subject(family, name, args);
  assert.ok(!standsOnEdge(formula, args, referenceBatch(inputs)), 'a token stands on a clip bound');
}

describe('golden policy losses', () => {
  for (const { id, fn, args, inputs, select_keys_verl, expected } of policyLossCases) {
    it(id, async () => {
      offEdges('policy', fn, args, inputs);
      assert.deepEqual(POLICY_LOSS_FN.create(fn, args, { backend: 'verl' }).selectKeys, select_keys_verl);
      await holds(subject('policy', fn, args), inputs, { ...expected, grad: expected.grad_logprob.data });
    });
  }
});

describe('golden KL losses', () => {
  for (const { id, fn, args, inputs, expected } of klLossCases) {
    it(id, async () => {
      offEdges('kl', fn, args, inputs);
      await holds(subject('kl', fn, args), inputs, { ...expected, grad: expected.grad_logprob.data });
      const kl = KL_FN.create(fn, { kl_coef: args.kl_coef });
      const values = kl.calculateKlSync(goldenBatch(inputs));
      // Like Trinity's calculate_kl(), calculateKl() ignores the mask and computes values for masked tokens too.
      assertArray(values, expected.kl.data, 'kl');
      assert.deepEqual(await kl.calculateKl(goldenBatch(inputs)), values);
    });
  }
});

describe('golden entropy losses', () => {
  for (const { id, fn, args, inputs, expected } of entropyLossCases) {
    it(id, () =>
      holds(subject('entropy', fn, args), inputs, { ...expected, grad: expected.grad_entropy.data }),
    );
  }
});
