// Computes the same loss repeatedly in a worker thread, and reports the number of wrong results.
import { parentPort, workerData } from 'node:worker_threads';
import { POLICY_LOSS_FN } from '../../../lib/index.js';
import { flatBatch } from '../support.js';

const { rows, columns, scale, calls, sync } = workerData as {
  rows: number;
  columns: number;
  scale: number;
  calls: number;
  sync: boolean;
};
const fn = POLICY_LOSS_FN.create('sft');
const batch = flatBatch(rows, columns, -scale);
parentPort!.postMessage('ready');
let wrong = 0;
for (let i = 0; i < calls; i++) {
  const results = sync
    ? [fn.computeSync(batch, { grad: true })]
    : await Promise.all([fn.compute(batch, { grad: true }), fn.compute(batch)]);
  for (const { loss, grad } of results) {
    if (Math.abs(loss - scale) > 1e-4 * scale) wrong++;
    if (grad && Math.abs(grad[0]! * rows * columns + 1) > 1e-4) wrong++;
  }
  // Returns to the event loop, so that the thread can receive messages and can be terminated.
  if (sync) await new Promise(setImmediate);
}
parentPort!.postMessage({ wrong });
