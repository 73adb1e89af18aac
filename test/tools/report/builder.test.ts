/** Tests how the report's builder handles rows that come in several parts, one advantage per row, and equal rows. */
import assert from 'node:assert/strict';
import type { RolloutPart } from '../../../lib/tools/rollouts/index.js';
import { builderOf, computed, exampleParts, madePage, madeSubject, partOf } from './support.js';

describe('a report', () => {
  it('does not depend on how the rows are divided into parts', async () => {
    const names = ['ppo', 'gspo'];
    const [whole] = (await exampleParts()) as [RolloutPart];
    const all = computed(names, whole);
    const results = all.map(({ result }) => result);
    const pages: string[] = [];
    for (const parts of [[whole], await exampleParts(700)]) {
      const builder = builderOf(names.map(madeSubject));
      let at = 0;
      for (const part of parts) {
        const { length } = part.batch.logprob;
        builder.add(
          part,
          all.map(({ grad, advantages }) => ({
            grad: grad.slice(at, at + length),
            advantages: advantages.slice(at, at + length),
          })),
        );
        at += length;
      }
      pages.push(builder.finish(results));
    }
    assert.ok(pages[0] === pages[1], 'the pages differ');
  });

  it('applies an advantage per row to all tokens of the row', () => {
    const part = partOf([{ logprobs: [-1, -2] }, { logprobs: [-3] }]);
    const grad = [1, 2, 3];
    assert.equal(madePage(part, grad, [5, -5]), madePage(part, grad, [5, 5, -5]));
  });

  it('keeps the earlier of equal rows', () => {
    const rows = Array.from({ length: 20 }, () => ({ logprobs: [-1] }));
    const page = madePage(
      partOf(rows),
      rows.map(() => 1),
    );
    const lines = [...page.matchAll(/made\.jsonl, line (\d+)/g)].map((match) => Number(match[1]));
    assert.deepEqual(lines, [1, 2, 3, 4, 5]);
  });
});
