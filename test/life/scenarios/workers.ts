// Repeatedly starts worker threads that share the native module, and terminates half of them during calls. The
// arguments are the number of rounds, `sync` or `async`, and `main` if the main thread is to load the module too.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { processStatus, startWorker } from '../support.js';

const [times, kind, where] = process.argv.slice(2) as [string, string, string | undefined];
if (where === 'main') await import('../../../lib/index.js');
const AT_ONCE = 4;

let threads: number | undefined;
for (let time = 0; time < Number(times); time++) {
  const sync = kind === 'sync';
  const workers = Array.from({ length: AT_ONCE }, (_, i) => {
    const victim = i % 2 === 1;
    // Rounds alternate between small and large batches. With small ones, a worker is often terminated between native
    // code and JavaScript. With large ones, it is often terminated in native code.
    const columns = time % 2 === 0 ? 3 : 20_000;
    const calls = victim ? Number.MAX_SAFE_INTEGER : 40;
    const worker = startWorker('worker', { rows: 4, columns, scale: i + 1, calls, sync });
    return { worker, victim, answer: answerOf(worker), ready: once(worker, 'message') };
  });
  await Promise.all(workers.map(({ ready }) => ready));
  await sleep(5 * (time % 5));
  await Promise.all(
    workers.map(async ({ worker, victim, answer }) => {
      if (victim) await worker.terminate();
      else assert.deepEqual(await answer, { wrong: 0 });
    }),
  );
  if (time === 1) threads = await settledThreads();
}
// The number of threads in the pool must not grow with the number of workers. Ended workers' threads go eventually.
if (threads !== undefined) while (processStatus('Threads')! > threads + 2) await sleep(50);

/**
 * Waits until the threads of ended workers are gone. Returns the number of threads of the process, or undefined if the
 * system does not report it.
 */
async function settledThreads(): Promise<number | undefined> {
  let least = processStatus('Threads');
  for (let look = 0; look < 40 && least !== undefined; look++) {
    await sleep(50);
    least = Math.min(least, processStatus('Threads')!);
  }
  return least;
}

async function answerOf(worker: ReturnType<typeof startWorker>): Promise<unknown> {
  for await (const [message] of messages(worker)) if (message !== 'ready') return message;
  return undefined;
}

async function* messages(worker: ReturnType<typeof startWorker>): AsyncGenerator<[unknown]> {
  const queue: unknown[] = [];
  let wake = () => {};
  let ended = false;
  worker.on('message', (message) => {
    queue.push(message);
    wake();
  });
  worker.on('exit', () => {
    ended = true;
    wake();
  });
  while (true) {
    while (queue.length > 0) yield [queue.shift()];
    if (ended) return;
    await new Promise<void>((resolve) => {
      wake = resolve;
    });
  }
}
