// A process whose worker threads alone load the native module, which POLICY_LOSS_NATIVE names: each of them calls it
// without an end until it is terminated. Prints whether the module is still in memory when no worker is left.
//
//   POLICY_LOSS_NATIVE=… node workers-only.mjs WORKERS
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { isMainThread, Worker } from 'node:worker_threads';

const path = process.env.POLICY_LOSS_NATIVE;

async function employ(workers) {
  for (let i = 0; i < workers; i++) {
    const worker = new Worker(fileURLToPath(import.meta.url));
    await once(worker, 'online');
    // Some are terminated while they load the module, most in the midst of calls.
    await sleep((i * 7) % 40);
    await worker.terminate();
  }
  console.log(readFileSync('/proc/self/maps', 'utf8').includes(path) ? 'loaded' : 'unloaded');
}

async function work() {
  const native = createRequire(import.meta.url)(path);
  const fn = native.createFunction({
    policyLoss: { name: 'opmd', options: { tau: 1 }, aggregation: 'token-mean' },
  });
  const [rows, columns] = [3, 1000];
  const column = new Float32Array(rows * columns).fill(-1);
  const batch = {
    rows,
    columns,
    data: [column, undefined, undefined, column, undefined],
    dtypes: [0, 0, 0, 0, 0],
    mask: new Uint8Array(rows * columns).fill(1),
  };
  const call = () => ({ values: new Float64Array(2), grad: new Float32Array(rows * columns) });
  for (;;)
    await Promise.all([native.evaluate(fn, batch, call()), native.evaluateSync(fn, batch, call())]);
}

// Without waiting: V8 ends the process where a thread is terminated as it begins a module that waits at its top.
(isMainThread ? employ(Number(process.argv[2])) : work());
