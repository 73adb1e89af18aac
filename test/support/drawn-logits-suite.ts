/** Tests that compare the functions of lib/logits with the reference, and with finite differences, on drawn logits. */
import assert from 'node:assert/strict';
import fc from 'fast-check';
import { referenceGradient, referenceLogprobs } from '../reference/logits.js';
import { dataOf, logitsSpec, makeLogits } from './logits.js';
import type { Way } from './logits-ways.js';
import { assertArray } from './tolerance.js';

const ENTROPY_RELATIVE = 5e-5;

export function testDrawnLogits(ways: Record<string, Way>): void {
  for (const [way, { logprobs, backward }] of Object.entries(ways))
    it(`agree with the reference: ${way}`, async () => {
      await fc.assert(
        fc.asyncProperty(logitsSpec, fc.boolean(), async (spec, withEntropy) => {
          const { logits, options, reference, gradLogprob, gradEntropy } = makeLogits(spec);
          const expected = referenceLogprobs(reference);
          const found = await logprobs(logits, { ...options, entropy: true });
          assertArray(found.logprob, expected.logprob, 'logprob');
          assertArray(found.logsumexp, expected.logsumexp, 'logsumexp');
          assertArray(found.entropy!, expected.entropy, 'entropy', ENTROPY_RELATIVE);
          const { grad, magnitude } = referenceGradient(
            reference,
            gradLogprob,
            withEntropy ? gradEntropy : undefined,
          );
          const actual = await backward(logits, {
            ...options,
            ...found,
            gradLogprob,
            gradEntropy: withEntropy ? gradEntropy : undefined,
          });
          assertArray(dataOf(actual), grad, 'grad', undefined, magnitude);
        }),
        { seed: 19, numRuns: 150 },
      );
    });

  for (const [way, { backward }] of Object.entries(ways))
    it(`have the gradients that finite differences show: ${way}`, async () => {
      await fc.assert(
        fc.asyncProperty(logitsSpec, fc.nat(), async (spec, chosen) => {
          const small = { ...spec, rows: 2, vocabulary: 2 + (spec.vocabulary % 40), scale: 2, shift: 0 };
          const { logits, options, reference, gradLogprob, gradEntropy } = makeLogits({
            ...small,
            infinite: 0,
          });
          const grad = dataOf(await backward(logits, { ...options, gradLogprob, gradEntropy }));
          const row = chosen % 2;
          if (options.targets[row] === -100) return;
          const token = options.targets[row]! + (chosen % 3 === 0 ? 0 : 1);
          if (token >= small.vocabulary) return;
          const at = row * reference.rowStride! + token;
          const lossAt = (shift: number) => {
            const moved = Float64Array.from(reference.logits);
            moved[at]! += shift;
            const { logprob, entropy } = referenceLogprobs({ ...reference, logits: moved });
            return gradLogprob[row]! * logprob[row]! + gradEntropy[row]! * entropy[row]!;
          };
          const isIn = !Number.isNaN(reference.logits[at]!);
          const slope = isIn ? (lossAt(1e-4) - lossAt(-1e-4)) / 2e-4 : 0;
          const actual = grad[row * small.vocabulary + token]!;
          assert.ok(
            Math.abs(actual - slope) < 2e-6 * Math.max(1, Math.abs(slope)) + 1e-6,
            `${actual} ${slope}`,
          );
        }),
        { seed: 4, numRuns: 300 },
      );
    });
}
