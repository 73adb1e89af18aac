/**
 * Tests the float64 reference itself. It must reproduce Trinity-RFT's float64 results much more closely than a float32
 * engine could, and its gradients must be the slopes of its losses.
 */
import assert from 'node:assert/strict';
import {
  formulas,
  type ReferenceBatch,
  referenceEntropyLosses,
  referenceKl,
  referencePolicyLosses,
} from './reference/index.js';
import { agrees, allClose, close } from './support/close.js';
import { entropyLossCases, klLossCases, policyLossCases, referenceBatch } from './support/golden.js';
import { slopesAgree } from './support/slopes.js';

describe('reference', () => {
  describe('against the golden cases', () => {
    for (const { id, fn, args, inputs, expected } of policyLossCases) {
      it(id, () =>
        agrees(
          referencePolicyLosses[fn]!(args, referenceBatch(inputs)),
          expected,
          expected.grad_logprob.data,
        ),
      );
    }
    for (const { id, fn, args, inputs, expected } of klLossCases) {
      it(id, () => {
        const batch = referenceBatch(inputs);
        agrees(referenceKl[fn]!.loss(args, batch), expected, expected.grad_logprob.data);
        allClose(referenceKl[fn]!.values(batch), expected.kl.data, 'kl');
      });
    }
    for (const { id, fn, args, inputs, expected } of entropyLossCases) {
      it(id, () =>
        agrees(
          referenceEntropyLosses[fn]!(args, referenceBatch(inputs)),
          expected,
          expected.grad_entropy.data,
        ),
      );
    }
  });

  describe('gradients are slopes', () => {
    const cases = [
      ...policyLossCases.map((c) => ({
        ...c,
        family: 'policy' as const,
        evaluate: referencePolicyLosses[c.fn]!,
      })),
      ...klLossCases.map((c) => ({ ...c, family: 'kl' as const, evaluate: referenceKl[c.fn]!.loss })),
      ...entropyLossCases.map((c) => ({
        ...c,
        family: 'entropy' as const,
        evaluate: referenceEntropyLosses[c.fn]!,
      })),
    ];
    for (const family of ['policy', 'kl', 'entropy'] as const) {
      const wrt = family === 'entropy' ? 'entropy' : 'logprob';
      // The tests in beyond/ cover the losses of other frameworks.
      for (const name of new Set(cases.filter((each) => each.family === family).map(({ fn }) => fn))) {
        it(`${family} ${name}`, () => {
          let compared = 0;
          for (const c of cases.filter((each) => each.family === family && each.fn === name)) {
            compared += slopesAgree(
              formulas[family][name]!,
              c.evaluate,
              c.args,
              referenceBatch(c.inputs),
              wrt,
            );
          }
          assert.ok(compared > 20, `only ${compared} elements lie away from kinks`);
        });
      }
    }
  });

  // No golden case drops a token by sequence masking, so these numbers were computed by hand.
  it('ppo drops tokens with a negative advantage in rows far from the policy that sampled them', () => {
    const batch: ReferenceBatch = {
      rows: 2,
      columns: 3,
      logprob: [-1, -2, -1, -1, -1, -1],
      oldLogprob: [-0.5, -1, -1, -1, -1, -1],
      advantages: [-1, 2, -3, -1, 1, -1],
      actionMask: [1, 1, 0, 1, 1, 0],
    };
    const { loss, metrics, grad } = referencePolicyLosses.ppo!(
      { clip_range: 0.2, enable_sequence_masking: true },
      batch,
    );
    // Row 0 has a mean KL of k = 0.75, above the threshold 0.1. So its token with advantage −1 is dropped, and its
    // token with advantage 2 contributes −2·e⁻¹. Row 1 has k = 0, so it keeps both tokens, whose losses 1 and −1
    // cancel.
    close(loss, (-2 * Math.exp(-1)) / (4 + 1e-8), 'loss');
    close(metrics['seq_mask/mean_sequence_kl']!, 0.375, 'mean_sequence_kl', 1);
    close(metrics['seq_mask/masked_tokens']!, 2 / (4 + 1e-10), 'masked_tokens');
    allClose(grad, [0, (-2 * Math.exp(-1)) / (4 + 1e-8), 0, 1 / (4 + 1e-8), -1 / (4 + 1e-8), 0], 'grad');
  });

  it('ignores masked tokens', () => {
    const { args, inputs } = policyLossCases[0]!;
    const batch = referenceBatch(inputs);
    const poisoned = (column: ArrayLike<number>) =>
      Array.from(column, (x, i) => (batch.actionMask[i] ? x : Number.NaN));
    const { logprob, oldLogprob, advantages } = batch;
    const hostile = {
      ...batch,
      logprob: poisoned(logprob!),
      oldLogprob: poisoned(oldLogprob!),
      advantages: poisoned(advantages!),
    };
    assert.deepEqual(referencePolicyLosses.ppo!(args, hostile), referencePolicyLosses.ppo!(args, batch));
  });
});
