// A worker thread of the soak test. It makes two random calls at a time, until it is terminated or has done so `calls`
// times.
import { workerData } from 'node:worker_threads';
import { drawCall, generator } from './calls.js';

const { seed, calls } = workerData as { seed: number; calls: number };
const random = generator(seed);
for (let i = 0; i < calls; i++) await Promise.all([drawCall(random), drawCall(random)]);
