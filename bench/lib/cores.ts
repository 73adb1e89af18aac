// Measures how much a second core adds on this machine at the moment. Two threads that share no data make small calls,
// each on arrays that fit in its own core's caches. On a shared machine they are less than twice as fast as one thread.
// A call that is split between the two cores cannot gain more than these independent calls.
import { once } from 'node:events';
import { createRequire } from 'node:module';
import { Worker } from 'node:worker_threads';
import { nativePath } from './machine.js';
import { race, syncContender } from './race.js';

// The number of calls in one timed piece of work. They take some milliseconds, so the time to wake a thread does not
// matter.
const CALLS = 3000;

// The code that both threads run. It is text, because a worker cannot load TypeScript.
const PREPARE = `(native) => {
  const [rows, columns] = [4, 512];
  const column = Float32Array.from({ length: rows * columns }, (_, i) => -1 - (i % 7) / 7);
  const data = [column, column.slice(), undefined, column.slice(), undefined];
  const mask = new Uint8Array(rows * columns).fill(1);
  const batch = { rows, rowLength: columns, offsets: undefined, data, dtypes: [0, 0, 0, 0, 0], mask, expert: undefined };
  const options = { clip_range_low: 0.2, clip_range_high: 0.2, clip_ratio_c: 3 };
  const fn = native.createFunction({ policyLoss: { name: 'ppo', options, aggregation: 'token-mean' } });
  const [values, grad] = [new Float64Array(native.valueNames(fn).length), new Float32Array(rows * columns)];
  const call = { fn, batch, values, grad };
  return () => {
    for (let i = 0; i < ${CALLS}; i++) native.evaluate(call);
  };
}`;
const [IDLE, ASKED] = [0, 1];

/** Returns how much more work two cores do than one core in the same time: 2 if the second core is entirely free. */
export async function timeCores(rounds: number): Promise<number> {
  const path = nativePath();
  const state = new Int32Array(new SharedArrayBuffer(4));
  const loop = `const { state, path } = require('node:worker_threads').workerData;
    const work = (${PREPARE})(require(path));
    require('node:worker_threads').parentPort.postMessage('ready');
    for (;;) {
      Atomics.wait(state, 0, ${IDLE});
      work();
      Atomics.store(state, 0, ${IDLE});
    }`;
  const worker = new Worker(loop, { eval: true, workerData: { state, path } });
  // Waits until the worker is ready, and rejects if it fails. Later this thread waits in a loop, where it could not
  // receive the worker's error.
  await once(worker, 'message');
  const prepare = new Function(`return ${PREPARE}`)() as (native: unknown) => () => void;
  const work = prepare(createRequire(import.meta.url)(path));
  const one = syncContender('one', work);
  const two = syncContender('two', () => {
    Atomics.store(state, 0, ASKED);
    Atomics.notify(state, 0);
    work();
    while (Atomics.load(state, 0) !== IDLE);
  });
  try {
    const times = await race([one, two], rounds);
    return (2 * times.one!.median) / times.two!.median;
  } finally {
    await worker.terminate();
  }
}
