// The soak test: makes random calls for an hour and watches the memory of the process. Each call uses a random
// function, shape, dtype and layout. Some calls are synchronous and some are aborted. Some run in worker threads, which
// end or are terminated during a call. The test prints memory sizes over time. It fails if a call fails, or if resident
// memory keeps growing after the warm-up, which is the first fifth of the run.
//
//   npm run soak [-- --minutes 60 --seed 1 --slope 0.5 --duty 1 --every 15]
//
// --slope   the allowed growth of resident memory in MiB per minute. The growth is measured as the median slope between
//           all pairs of samples after the warm-up, because single peaks hardly affect this median. A run of less than
//           ten minutes is too short to measure the growth.
// --duty    the fraction of time spent on calls; a value below 1 leaves time for other programs
// --every   seconds between samples
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { Worker } from 'node:worker_threads';
import { drawCall, generator } from './calls.js';

const { values: flags } = parseArgs({
  options: {
    minutes: { type: 'string', default: '60' },
    seed: { type: 'string', default: '1' },
    slope: { type: 'string', default: '0.5' },
    duty: { type: 'string', default: '1' },
    every: { type: 'string', default: '15' },
  },
});
const [minutes, seed, limit, duty, every] = [
  flags.minutes,
  flags.seed,
  flags.slope,
  flags.duty,
  flags.every,
].map(Number) as [number, number, number, number, number];
const LEAST_MINUTES = 10;
const AT_ONCE = 6;
// Worker threads do not inherit the TypeScript loader tsx, so each worker registers it.
const WORKER = `import('tsx/esm/api').then(({ register }) => { register(); return import(${JSON.stringify(
  new URL('./worker.ts', import.meta.url).href,
)}); })`;

// Makes gc() available, so that garbage is collected before each sample.
setFlagsFromString('--expose-gc');
const collect = runInNewContext('gc') as () => void;

interface Sample {
  minute: number;
  resident: number;
}
const MIB = 2 ** 20;
const samples: Sample[] = [];
const begin = performance.now();
const elapsed = () => (performance.now() - begin) / 60_000;
const random = generator(seed);
let calls = 0;
let workers = 0;
let terminated = 0;

function sample(): void {
  collect();
  const { rss, heapUsed, external, arrayBuffers } = process.memoryUsage();
  const resident = rss / MIB;
  samples.push({ minute: elapsed(), resident });
  const mib = (bytes: number) => (bytes / MIB).toFixed(1).padStart(7);
  console.log(
    `${elapsed().toFixed(2).padStart(7)} min ${String(calls).padStart(9)} calls ${String(workers).padStart(5)} workers` +
      `  resident ${mib(rss)}  heap ${mib(heapUsed)}  external ${mib(external)}  arrays ${mib(arrayBuffers)} MiB`,
  );
}

async function work(): Promise<void> {
  for (let i = 0; i < 40; i++) {
    await Promise.all(Array.from({ length: AT_ONCE }, () => drawCall(random)));
    calls += AT_ONCE;
  }
}

async function employ(): Promise<void> {
  const ends = random.uniform() < 0.3;
  const worker = new Worker(WORKER, {
    eval: true,
    workerData: { seed: random.integer(0, 2 ** 31), calls: ends ? 50 : Number.MAX_SAFE_INTEGER },
  });
  worker.on('error', (error) => {
    console.error(error);
    process.exit(1);
  });
  workers++;
  const exited = once(worker, 'exit');
  if (!ends) {
    await once(worker, 'online');
    // After this random time, some workers are still loading the package, and most are in a call.
    await sleep(random.integer(0, 3000));
    terminated++;
    await worker.terminate();
  }
  await exited;
}

/** Returns the median slope between all pairs of samples, in MiB per minute. */
function slopeOf(of: readonly Sample[]): number {
  const slopes: number[] = [];
  for (const [i, a] of of.entries())
    for (const b of of.slice(i + 1)) slopes.push((b.resident - a.resident) / (b.minute - a.minute));
  slopes.sort((a, b) => a - b);
  return slopes[slopes.length >> 1] ?? 0;
}

console.log(`soak: ${minutes} minutes, seed ${seed}, at most ${limit} MiB per minute`);
let nextSample = 0;
let nextWorker = 0;
while (elapsed() < minutes) {
  if (elapsed() * 60 >= nextSample) {
    sample();
    nextSample += every;
  }
  const before = performance.now();
  await work();
  if (elapsed() * 60 >= nextWorker) {
    await employ();
    nextWorker = elapsed() * 60 + 4 / duty;
  }
  await sleep((performance.now() - before) * (1 / duty - 1));
}
sample();

const settled = samples.filter(({ minute }) => minute >= minutes / 5);
const slope = slopeOf(settled);
const residents = settled.map(({ resident }) => resident);
console.log(
  `${calls} calls on the main thread, ${workers} workers (${terminated} terminated); ` +
    `after the warm-up resident memory ` +
    `moved between ${Math.min(...residents).toFixed(1)} and ${Math.max(...residents).toFixed(1)} MiB, by ${slope.toFixed(3)} MiB per minute`,
);
if (minutes < LEAST_MINUTES) {
  console.log(`growth not judged: expected at least ${LEAST_MINUTES} minutes, got ${minutes}`);
} else if (slope > limit) {
  console.error(
    `resident memory: expected to grow by at most ${limit} MiB per minute, got ${slope.toFixed(3)}`,
  );
  process.exitCode = 1;
}
