// Makes thousands of user-defined losses, each with its own program, and asserts that their memory is freed.
import assert from 'node:assert/strict';
import { setImmediate } from 'node:timers/promises';
import { lossFromExpression } from '../../../lib/index.js';
import { flatBatch, processStatus } from '../support.js';

const ROUND = 700;
const ROUNDS = 4;
/** One loss that is not freed takes about 10 KiB. */
const MOST_KIB = 8 * 1024;

const batch = flatBatch(2, 64);
const terms = (i: number) =>
  Array.from({ length: 12 }, (_, k) => `exp(d*${i + k})*row_max(r - ${k})`).join(' + ');
const used: number[] = [];
for (let round = 0; round < ROUNDS; round++) {
  for (let i = 0; i < ROUND; i++) {
    const fn = lossFromExpression(terms(i % 100));
    const { loss } = i % 2 ? fn.computeSync(batch, { grad: true }) : await fn.compute(batch);
    assert.ok(Number.isFinite(loss), `loss is ${loss}`);
  }
  // Native objects are freed when the event loop runs after a garbage collection.
  for (let i = 0; i < 5; i++) {
    globalThis.gc!();
    await setImmediate();
  }
  used.push(processStatus('VmRSS') ?? 0);
}
// The first rounds also fill caches and the heap's free space.
const grown = used.at(-1)! - used[1]!;
assert.ok(grown <= MOST_KIB, `${ROUND * 2} losses left ${grown} KiB: ${used.join(', ')}`);
