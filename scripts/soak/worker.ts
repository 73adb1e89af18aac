// A worker thread of the soak test: makes random calls until it is terminated or has made enough of them.
import { workerData } from 'node:worker_threads';
import { drawCall, generator } from './calls.js';

const { seed, calls } = workerData as { seed: number; calls: number };
const random = generator(seed);
for (let i = 0; i < calls; i++) await Promise.all([drawCall(random), drawCall(random)]);
