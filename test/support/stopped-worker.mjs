// A program whose worker thread is terminated while it starts an asynchronous call, just before the call makes its
// promise; POLICY_LOSS_NATIVE is the native module's path. At the end, the program prints whether the call computed its
// result nevertheless.
//
//   POLICY_LOSS_NATIVE=… node stopped-worker.mjs
import { once } from 'node:events';
import { createRequire } from 'node:module';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads';

function work({ values, returned }) {
  const native = createRequire(import.meta.url)(process.env.POLICY_LOSS_NATIVE);
  const policyLoss = { name: 'opmd', options: { tau: 1 }, aggregation: 'token-mean' };
  const fn = native.createFunction({ policyLoss });
  const column = new Float32Array(1);
  const data = [column, undefined, undefined, column, undefined];
  const batch = { rows: 1, rowLength: 1, data, dtypes: [0, 0, 0, 0, 0], mask: new Uint8Array(1) };
  // The last property that the call reads has this getter, which takes long and does not notice that its thread is
  // terminated, because it has no JavaScript code.
  const many = new Float32Array(1 << 24).fill(1);
  const get = native.softGate.bind(undefined, 1, 1, many, many, many);
  const call = Object.defineProperty({ fn, batch, values, later: true }, 'abort', { get });
  parentPort.postMessage('starting');
  native.evaluate(call);
  // A thread notices that it is terminated when it calls a JavaScript function.
  const notStopped = () => {
    returned[0] = 1;
  };
  notStopped();
}

async function stop() {
  const values = new Float64Array(new SharedArrayBuffer(16)).fill(NaN);
  const returned = new Uint8Array(new SharedArrayBuffer(1));
  const worker = new Worker(fileURLToPath(import.meta.url), { workerData: { values, returned } });
  await once(worker, 'message');
  // By now, the worker is in the getter, which takes several times as long.
  await sleep(20);
  await worker.terminate();
  if (returned[0]) return stop(); // the thread was terminated too late
  console.log(Number.isNaN(values[0]) ? 'not computed' : 'computed');
}

(isMainThread ? stop : work)(workerData);
