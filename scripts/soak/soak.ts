// Mixed calls for an hour, or as long as is asked for, with an eye on memory: any function, shape, dtype and layout, at
// once and later, aborted calls, workers that end and workers that are terminated in the midst of a call. It prints
// memory over time and fails where resident memory keeps growing after the warm-up, or where a call fails.
//
//   npm run soak [-- --minutes 60 --seed 1 --slope 0.5 --duty 1 --every 15]
//
// --slope: what resident memory may grow by, in MiB a minute. It is measured as the median of the slopes between all
// pairs of samples after the warm-up (the first fifth of the run), which single peaks do not move; a run shorter than
// ten minutes is too short to be measured so, and says so. --duty: the share of the time that is worked, for a machine
// that has other things to do. --every: seconds between samples.
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
// Workers do not inherit the loader that TypeScript runs under.
const WORKER = `import('tsx/esm/api').then(({ register }) => { register(); return import(${JSON.stringify(
  new URL('./worker.ts', import.meta.url).href,
)}); })`;

// What is garbage is to be gone when memory is looked at.
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
    // Some are still loading the package then, and most are in the midst of a call.
    await sleep(random.integer(0, 3000));
    terminated++;
    await worker.terminate();
  }
  await exited;
}

/** The median of the slopes between all pairs of samples, in MiB a minute. */
function slopeOf(of: readonly Sample[]): number {
  const slopes: number[] = [];
  for (const [i, a] of of.entries())
    for (const b of of.slice(i + 1)) slopes.push((b.resident - a.resident) / (b.minute - a.minute));
  slopes.sort((a, b) => a - b);
  return slopes[slopes.length >> 1] ?? 0;
}

console.log(`soak: ${minutes} minutes, seed ${seed}, at most ${limit} MiB a minute`);
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
  `${calls} calls here, ${workers} workers (${terminated} terminated); after the warm-up resident memory ` +
    `moved between ${Math.min(...residents).toFixed(1)} and ${Math.max(...residents).toFixed(1)} MiB, by ${slope.toFixed(3)} MiB a minute`,
);
if (minutes < LEAST_MINUTES) {
  console.log(`no verdict: a run of at least ${LEAST_MINUTES} minutes has one`);
} else if (slope > limit) {
  console.error(`resident memory grows by more than ${limit} MiB a minute`);
  process.exitCode = 1;
}
