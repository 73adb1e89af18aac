// A worker thread of the soak: calls without an end, until it is terminated in the midst of one, or ends of its own.
import { workerData } from 'node:worker_threads';
import { drawCall, generator } from './calls.js';

const { seed, calls } = workerData as { seed: number; calls: number };
const random = generator(seed);
for (let i = 0; i < calls; i++) await Promise.all([drawCall(random), drawCall(random)]);
