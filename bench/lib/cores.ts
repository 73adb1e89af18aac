// What a second core adds on this machine at this time: small calls on one thread, and then on two at once that share
// nothing, each with arrays in its own core's caches. Where others use the machine it is less than twice as much, and no
// call that is split among the cores can gain more.
import { once } from 'node:events';
import { createRequire } from 'node:module';
import { Worker } from 'node:worker_threads';
import { nativePath } from './machine.js';
import { contenderAtOnce, race } from './race.js';

// Some milliseconds, beside which it does not matter how long a thread takes to wake up.
const CALLS = 3000;

// Text, since a worker takes no TypeScript, and so that both threads run the very same.
const PREPARE = `(native) => {
  const [rows, columns] = [4, 512];
  const column = Float32Array.from({ length: rows * columns }, (_, i) => -1 - (i % 7) / 7);
  const data = [column, column.slice(), undefined, column.slice(), undefined];
  const mask = new Uint8Array(rows * columns).fill(1);
  const batch = { rows, columns, offsets: undefined, data, dtypes: [0, 0, 0, 0, 0], mask, expert: undefined };
  const options = { clip_range_low: 0.2, clip_range_high: 0.2, clip_ratio_c: 3 };
  const fn = native.createFunction({ policyLoss: { name: 'ppo', options, aggregation: 'token-mean' } });
  const call = { values: new Float64Array(native.valueNames(fn).length), grad: new Float32Array(rows * columns) };
  return () => {
    for (let i = 0; i < ${CALLS}; i++) native.evaluateSync(fn, batch, call);
  };
}`;
const [IDLE, ASKED] = [0, 1];

/** By how much two cores are faster than one. */
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
  await once(worker, 'message'); // or its error, which nobody could hear while this thread waits for a call's end
  const prepare = new Function(`return ${PREPARE}`)() as (native: unknown) => () => void;
  const work = prepare(createRequire(import.meta.url)(path));
  const one = contenderAtOnce('one', work);
  const two = contenderAtOnce('two', () => {
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
