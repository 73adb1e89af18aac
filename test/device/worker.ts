/**
 * A worker thread of the device suite. It computes the same loss of its own batch repeatedly, and reports the results.
 */
import { parentPort, workerData } from 'node:worker_threads';
import { POLICY_LOSS_FN, upload } from '../../lib/index.js';

const { device, scale, calls } = workerData as { device: string; scale: number; calls: number };
const tokens = 5000;
const batch = {
  shape: [5, 1000] as const,
  logprob: Float32Array.from({ length: tokens }, (_, i) => -1 - ((i * scale) % 7) / 10),
  oldLogprob: Float32Array.from({ length: tokens }, (_, i) => -1 - (i % 5) / 10),
  advantages: Float32Array.from({ length: tokens }, (_, i) => scale * ((i % 3) - 1)),
  actionMask: new Uint8Array(tokens).fill(1),
};
const fn = POLICY_LOSS_FN.create('ppo');
const expected = fn.computeSync(batch, { grad: true });
using resident = await upload(batch, device);
const losses: number[] = [];
let apart = 0;
for (let i = 0; i < calls; i++) {
  const { loss, grad } = await fn.compute(i % 2 ? resident : batch, { grad: true, device });
  losses.push(loss);
  for (let t = 0; t < tokens; t++) apart = Math.max(apart, Math.abs(grad![t]! - expected.grad![t]!));
}
parentPort!.postMessage({ expected: expected.loss, losses, apart });
