// A program in which only worker threads load the native module; POLICY_LOSS_NATIVE is the module's path. Each worker
// calls the module in a loop until it is terminated. At the end, the program prints whether the module is still loaded.
//
//   POLICY_LOSS_NATIVE=… node workers-only.mjs WORKERS
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { isMainThread, parentPort, Worker } from 'node:worker_threads';

const path = process.env.POLICY_LOSS_NATIVE;

async function employ(workers) {
  for (let i = 0; i < workers; i++) {
    const worker = new Worker(fileURLToPath(import.meta.url));
    // Some workers are terminated while they load the module. The others have loaded it, even on a slow machine, and
    // are terminated during calls.
    await once(worker, i % 3 === 0 ? 'online' : 'message');
    await sleep((i * 7) % 40);
    await worker.terminate();
  }
  console.log(readFileSync('/proc/self/maps', 'utf8').includes(path) ? 'loaded' : 'unloaded');
}

async function work() {
  const native = createRequire(import.meta.url)(path);
  parentPort.postMessage('loaded');
  const fn = native.createFunction({
    policyLoss: { name: 'opmd', options: { tau: 1 }, aggregation: 'token-mean' },
  });
  const [rows, rowLength] = [3, 1000];
  const column = new Float32Array(rows * rowLength).fill(-1);
  const batch = {
    rows,
    rowLength,
    data: [column, undefined, undefined, column, undefined],
    dtypes: [0, 0, 0, 0, 0],
    mask: new Uint8Array(rows * rowLength).fill(1),
  };
  const call = (later) => {
    const [values, grad] = [new Float64Array(2), new Float32Array(rows * rowLength)];
    return { fn, batch, values, grad, later };
  };
  for (;;)
    await Promise.all([
      native.evaluate(call(true)),
      native.evaluate(call(true)),
      native.evaluate(call(false)),
    ]);
}

// The promise is not awaited, because V8 ends the process if a thread is terminated while it starts a module with a
// top-level await.
(isMainThread ? employ(Number(process.argv[2])) : work());
