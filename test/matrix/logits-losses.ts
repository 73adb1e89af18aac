/** Walks the registry of losses from logits. A loss without a reference or golden cases is a failing test. */
import assert from 'node:assert/strict';
import { LOGITS_LOSS_FN } from '../../lib/index.js';
import { formulas } from '../reference/index.js';
import { logitsLossCases } from '../support/golden.js';
import { within } from './forms.js';
import {
  assertDrawnLogits,
  assertLargeLogits,
  assertLogitsForms,
  assertLogitsGolden,
  assertWeighted,
  everyLogitsLoss,
} from './logits-oracles.js';
import type { Place } from './oracles.js';

export function describeLogits(place: Place): void {
  describe(`matrix: losses from logits on ${place}`, () => {
    it('are those that have references', () => {
      assert.deepEqual(LOGITS_LOSS_FN.names().toSorted(), Object.keys(formulas.logits).sort());
    });
    for (const name of LOGITS_LOSS_FN.names()) {
      it(`${name}: golden cases`, async () => {
        const cases = logitsLossCases.filter(({ fn }) => fn === name);
        assert.ok(cases.length > 0, 'no golden case');
        for (const each of cases) await within(each.id, () => assertLogitsGolden(each, place));
      });
      it(`${name}: drawn batches`, () => assertDrawnLogits(name, place, place === 'cpu' ? 40 : 10));
      it(`${name}: large batches`, () => assertLargeLogits(name, place));
      it(`${name}: weights of tokens`, () => assertWeighted(name, place));
    }
  });
}

/** Asserts that every loss gives the same bits in every form of a call. */
export function describeLogitsForms(): void {
  describe('matrix: the same bits of losses from logits in any form', () => {
    for (const on of everyLogitsLoss())
      it(on.title, async () => {
        for (const mask of ['random', 'emptyrows', 'zero'] as const) await assertLogitsForms(on, mask);
      });
  });
}
