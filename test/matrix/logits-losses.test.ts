/** Every loss from logits: its reference, its golden cases, batches drawn at random, and all forms of a call. */
import assert from 'node:assert/strict';
import { formulas } from '../reference/index.js';
import { logitsLossCases } from '../support/golden.js';
import { within } from './forms.js';
import { describeLogits, describeLogitsForms } from './logits-losses.js';
import { assertLogitsMasks, assertLogitsReference, assertLogitsSlopes } from './logits-reference.js';

const casesOf = (name: string) => logitsLossCases.filter(({ fn }) => fn === name);

describe('matrix: the reference of losses from logits', () => {
  it('has a formula for every golden case', () => {
    for (const { fn, id } of logitsLossCases) assert.ok(fn in formulas.logits, id);
  });

  for (const name of Object.keys(formulas.logits)) {
    const cases = casesOf(name);
    it(`${name}: agrees with the golden cases`, async () => {
      assert.ok(cases.length > 0, 'no golden case');
      for (const each of cases) await within(each.id, () => assertLogitsReference(each));
    });
    it(`${name}: reads no masked tokens, and is finite without tokens`, async () => {
      for (const each of cases) await within(each.id, () => assertLogitsMasks(each));
    });
    it(`${name}: gradients are slopes`, async () => {
      let compared = 0;
      for (const each of cases) compared += (await within(each.id, () => assertLogitsSlopes(each))) ?? 0;
      assert.ok(compared > 20, `only ${compared} elements lie away from kinks`);
    });
  }
});

describeLogits('cpu');
describeLogitsForms();
