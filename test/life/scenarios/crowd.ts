// Makes thousands of calls at once with one batch, and asserts that they need little memory and few threads.
import assert from 'node:assert/strict';
import { availableParallelism } from 'node:os';
import { POLICY_LOSS_FN } from '../../../lib/index.js';
import { flatBatch, processStatus } from '../support.js';

const CALLS = 5000;
const fn = POLICY_LOSS_FN.create('ppo');
const batch = flatBatch(16, 4096);
const { loss } = await fn.compute(batch);
const [threadsBefore, memoryBefore] = [processStatus('Threads'), processStatus('VmRSS')];
let [mostThreads, mostMemory] = [0, 0];
const watch = setInterval(() => {
  mostThreads = Math.max(mostThreads, processStatus('Threads') ?? 0);
  mostMemory = Math.max(mostMemory, processStatus('VmRSS') ?? 0);
}, 5);
const results = await Promise.all(Array.from({ length: CALLS }, () => fn.compute(batch)));
clearInterval(watch);
assert.equal(results.length, CALLS);
for (const result of results) assert.equal(result.loss, loss);
// The batch takes 576 KiB. A call must not copy it, and needs only a few KiB of its own.
const MOST_KIB_A_CALL = 24;
if (threadsBefore !== undefined) {
  assert.ok(mostThreads > 0, 'the threads were counted at least once');
  assert.ok(
    mostThreads <= threadsBefore + availableParallelism() + 1,
    `${threadsBefore} threads became ${mostThreads}`,
  );
  const grown = mostMemory - memoryBefore!;
  assert.ok(grown <= CALLS * MOST_KIB_A_CALL, `${CALLS} calls took ${grown} KiB`);
  console.log(`${mostThreads - threadsBefore} threads and ${grown} KiB more`);
}
