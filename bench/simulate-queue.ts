// Simulates a run on a queue with many workers, of which some are lost at random, to find the best size of shards. Each
// event of every worker is drawn: how long a shard takes, whether the worker is lost meanwhile, and when the queue
// notices. The ideal is the time without failures if the work could be divided at will.
//
//   npx tsx bench/simulate-queue.ts [--workers 1000] [--terabytes 10] [--hours-to-loss 2] …
import { parseArgs } from 'node:util';
import { generator } from '../test/support/random.js';

const { values: flags } = parseArgs({
  options: {
    workers: { type: 'string', default: '1000' },
    terabytes: { type: 'string', default: '10' },
    /** The speed of a worker in each phase, in MB per second. */
    speed: { type: 'string', default: '85' },
    /** Shards take a time that is spread evenly by ± this fraction. */
    spread: { type: 'string', default: '0.3' },
    /** The mean time until a worker is lost. Another one starts in its place after the restart. */
    'hours-to-loss': { type: 'string', default: '2' },
    'restart-seconds': { type: 'string', default: '120' },
    /** A lost shard is taken again after one to two times this. */
    'lock-seconds': { type: 'string', default: '30' },
    /** The time of a worker for each shard and phase, in addition to its data, and the time of Redis. */
    'worker-ms': { type: 'string', default: '6' },
    'redis-ms': { type: 'string', default: '0.5' },
    /** The time to merge what a shard gives, which one process does for all shards. */
    'merge-ms': { type: 'string', default: '0.5' },
    seeds: { type: 'string', default: '3' },
  },
});
const option = (name: keyof typeof flags) => Number(flags[name]);

const WORKERS = option('workers');
const MEGABYTES = 1e6 * option('terabytes');
const SECONDS_TO_LOSS = 3600 * option('hours-to-loss');

/** A priority queue of things by the times at which they happen. */
class Events<T> {
  readonly #heap: { time: number; value: T }[] = [];

  get next(): number {
    return this.#heap[0]?.time ?? Number.POSITIVE_INFINITY;
  }

  add(time: number, value: T): void {
    const heap = this.#heap;
    let i = heap.length;
    for (; i > 0 && heap[(i - 1) >> 1]!.time > time; i = (i - 1) >> 1) heap[i] = heap[(i - 1) >> 1]!;
    heap[i] = { time, value };
  }

  take(): { time: number; value: T } {
    const heap = this.#heap;
    const first = heap[0]!;
    const last = heap.pop()!;
    let i = 0;
    for (let child = 1; child < heap.length; child = 2 * i + 1) {
      if (child + 1 < heap.length && heap[child + 1]!.time < heap[child]!.time) child++;
      if (heap[child]!.time >= last.time) break;
      heap[i] = heap[child]!;
      i = child;
    }
    if (heap.length > 0) heap[i] = last;
    return first;
  }
}

/** Returns the seconds that a phase takes, and how many of its shards were lost. */
function phase(
  shards: number,
  shardMegabytes: number,
  uniform: () => number,
): [seconds: number, lost: number] {
  const free = new Events<undefined>();
  for (let i = 0; i < WORKERS; i++) free.add(0, undefined);
  const recovered = new Events<undefined>();
  let [waiting, done, lost, end, redisFree] = [shards, 0, 0, 0, 0];
  while (done < shards) {
    let { time } = free.take();
    if (waiting === 0) {
      // All shards are in progress. The worker waits for one that is lost, if there will be any.
      if (recovered.next === Number.POSITIVE_INFINITY) break;
      time = Math.max(time, recovered.take().time);
      waiting++;
    } else
      while (recovered.next <= time) {
        recovered.take();
        waiting++;
      }
    waiting--;
    // Redis gives out one shard at a time.
    redisFree = Math.max(redisFree, time) + option('redis-ms') / 1000;
    const start = redisFree + option('worker-ms') / 1000;
    const spread = 1 + option('spread') * (2 * uniform() - 1);
    const finish = start + (shardMegabytes / option('speed')) * spread;
    const loss = start - SECONDS_TO_LOSS * Math.log(1 - uniform());
    if (loss < finish) {
      lost++;
      recovered.add(loss + option('lock-seconds') * (1 + uniform()), undefined);
      free.add(loss + option('restart-seconds'), undefined);
    } else {
      done++;
      end = Math.max(end, finish);
      free.add(finish, undefined);
    }
  }
  return [end, lost];
}

/** Returns the seconds that a run takes, and how many of its shards were lost. */
function run(shardMegabytes: number, seed: number): [seconds: number, lost: number] {
  const { uniform } = generator(seed);
  const shards = Math.ceil(MEGABYTES / shardMegabytes);
  const [counting, lostFirst] = phase(shards, shardMegabytes, uniform);
  const [computing, lostThen] = phase(shards, shardMegabytes, uniform);
  // The counts are merged between the phases, and the results at the end.
  return [counting + computing + (2 * shards * option('merge-ms')) / 1000, lostFirst + lostThen];
}

const ideal = (2 * MEGABYTES) / option('speed') / WORKERS;
console.log(
  `${WORKERS} workers, ${flags.terabytes} TB, a loss per worker every ${flags['hours-to-loss']} h: ideal ${ideal.toFixed(0)} s\n`,
);
console.log('| shard size | shards | total | of the ideal | shards lost |');
console.log('| ---: | ---: | ---: | ---: | ---: |');
for (let size = 1; size <= 1024; size *= 2) {
  const runs = Array.from({ length: option('seeds') }, (_, seed) => run(size, seed + 1));
  const mean = (of: (run: [number, number]) => number) =>
    runs.reduce((sum, run) => sum + of(run), 0) / runs.length;
  const seconds = mean(([seconds]) => seconds);
  console.log(
    `| ${size} MB | ${Math.ceil(MEGABYTES / size)} | ${seconds.toFixed(0)} s | ` +
      `${(seconds / ideal).toFixed(2)} | ${mean(([, lost]) => lost).toFixed(1)} |`,
  );
}
