// Simulates how the thread pool divides a call among many cores on several memory nodes, for machines that are not at
// hand. Each event is computed: the wake-up of a thread, the wait for a cache line that another core has, the time of a
// piece at the bandwidth that its memory node has left. The ideal time is that of the memory alone.
//
//   npx tsx bench/simulate-cores.ts [--bytes 17] [--core-gbs 12] [--node-gbs 200] …
import { parseArgs } from 'node:util';

const { values: flags } = parseArgs({
  options: {
    /** The bytes per token that the token pass moves: by default, those of PPO with its gradient. The row pass moves 1. */
    bytes: { type: 'string', default: '17' },
    /** The bandwidth of a core, of a node, and of the link between two nodes, in GB/s. */
    'core-gbs': { type: 'string', default: '12' },
    'node-gbs': { type: 'string', default: '200' },
    'link-gbs': { type: 'string', default: '60' },
    'cores-per-node': { type: 'string', default: '64' },
    /** The time to change a number in the own cache, in that of a core of the same node, and of another node. */
    'own-ns': { type: 'string', default: '5' },
    'near-ns': { type: 'string', default: '50' },
    'far-ns': { type: 'string', default: '150' },
    /** The time that it costs a thread to wake another, and the time until that one runs. */
    'wake-ns': { type: 'string', default: '1500' },
    'latency-ns': { type: 'string', default: '6000' },
    /** The time to start a piece, and to add its sums to the total. */
    'piece-ns': { type: 'string', default: '200' },
    'fold-ns': { type: 'string', default: '40' },
  },
});
const option = (name: keyof typeof flags) => Number(flags[name]);
const [OWN, NEAR, FAR] = [option('own-ns'), option('near-ns'), option('far-ns')];
const CORES_PER_NODE = option('cores-per-node');
const nodeOf = (core: number) => Math.floor(core / CORES_PER_NODE);

/** How a pool divides work. */
interface Scheme {
  /** The number of threads that the caller wakes, and that each woken thread wakes before it works. */
  wakes: { caller: number; each: number };
  /** The number of counters of the next piece. Threads begin at different counters and go on to the others. */
  counters: (threads: number, pieces: number) => number;
  /** Whether each thread counts the pieces that it has done, and adds them to the common count when it finds no more. */
  countsAlone: boolean;
  /** The number of tokens in a piece. */
  piece: (tokens: number, threads: number) => number;
}

/** Where the columns and the gradient are. */
const PLACEMENTS = ['one node', 'all nodes', "the threads' nodes"] as const;
type Placement = (typeof PLACEMENTS)[number];

/** A cache line that several cores change. Only one core at a time has it. */
class Line {
  #free = 0;
  #owner = -1;

  /** Returns when a core that wants the line at a time has changed it. */
  change(core: number, time: number): number {
    const from = this.#owner;
    const cost = from === core || from < 0 ? OWN : nodeOf(from) === nodeOf(core) ? NEAR : FAR;
    this.#free = Math.max(this.#free, time) + cost;
    this.#owner = core;
    return this.#free;
  }
}

/** Returns the nanoseconds per byte of a core, if `active` cores read at the same time. */
function nsPerByte(core: number, home: number | undefined, active: number, nodes: number): number {
  const share = (option('node-gbs') * (home === undefined ? nodes : 1)) / Math.max(active, 1);
  const crosses = home === undefined ? nodes > 1 : home !== nodeOf(core);
  const linked = crosses ? (option('link-gbs') * Math.max(nodes - 1, 1)) / CORES_PER_NODE : Infinity;
  return 1 / Math.min(option('core-gbs'), share, home === undefined ? Math.max(linked, share) : linked);
}

/** Returns when each thread is awake and has taken the work. */
function wakeUps(wakes: Scheme['wakes'], threads: number, wanted: number): number[] {
  const mutex = new Line();
  const awake = new Array<number>(threads).fill(Number.POSITIVE_INFINITY);
  // When each thread that may wake others is free to do so, and how many it may still wake.
  const wakers = [{ time: 0, left: wakes.caller }];
  for (let i = 0; i < wanted; i++) {
    const waker = wakers.reduce((best, each) => (each.left > 0 && each.time < best.time ? each : best));
    waker.time += option('wake-ns');
    waker.left--;
    awake[i] = mutex.change(i, waker.time + option('latency-ns'));
    wakers.push({ time: awake[i]!, left: wakes.each });
  }
  // A thread that wakes others begins its work later.
  return awake.map((time, i) => Math.max(time, wakers[i + 1]?.time ?? time));
}

/** Returns the nanoseconds of a call. */
function call(scheme: Scheme, threads: number, tokens: number, placement: Placement): number {
  const nodes = nodeOf(threads - 1) + 1;
  const pieceTokens = scheme.piece(tokens, threads);
  const pieces = Math.ceil(tokens / pieceTokens);
  const counters = Math.min(scheme.counters(threads, pieces), pieces);
  const awake = wakeUps(scheme.wakes, threads, Math.min(threads, pieces));

  let begin = 0;
  for (const bytes of [1, option('bytes')]) {
    const lines = Array.from({ length: counters }, () => new Line());
    const left = Array.from(
      { length: counters },
      (_, c) => Math.floor(((c + 1) * pieces) / counters) - Math.floor((c * pieces) / counters),
    );
    const unfinished = new Line();
    const states = awake.map((time, core) => ({
      core,
      time: Math.max(time, begin),
      counter: Math.floor((core * counters) / threads),
      tried: 0,
    }));
    let end = begin;
    const running: number[] = [];
    for (;;) {
      let next: (typeof states)[number] | undefined;
      for (const state of states)
        if (state.tried < counters && (!next || state.time < next.time)) next = state;
      if (!next) break;
      const { core, counter } = next;
      next.time = lines[counter]!.change(core, next.time);
      if (left[counter]! <= 0) {
        next.tried++;
        next.counter = (counter + 1) % counters;
        if (next.tried === counters && scheme.countsAlone && next.time < end)
          end = Math.max(end, unfinished.change(core, next.time));
        continue;
      }
      left[counter]!--;
      const home =
        placement === 'one node'
          ? 0
          : placement === 'all nodes'
            ? undefined
            : nodeOf(Math.floor((counter * threads) / counters));
      while (running.length > 0 && running[0]! <= next.time) running.shift();
      const active = placement === "the threads' nodes" ? (running.length + 1) / nodes : running.length + 1;
      const time =
        next.time + option('piece-ns') + pieceTokens * bytes * nsPerByte(core, home, active, nodes);
      let at = running.length;
      while (at > 0 && running[at - 1]! > time) at--;
      running.splice(at, 0, time);
      next.time = scheme.countsAlone ? time : unfinished.change(core, time);
      end = Math.max(end, next.time);
    }
    begin = end;
  }
  return begin + pieces * option('fold-ns');
}

const [ALL, TREE] = [
  { caller: Number.POSITIVE_INFINITY, each: 0 },
  { caller: 8, each: 2 },
];
const perFourThreads = (threads: number, pieces: number) =>
  Math.max(1, Math.min(Math.floor(threads / 4), Math.floor(pieces / 4)));

// The third is the pool as it is.
const SCHEMES: Record<string, Scheme> = {
  'one counter, the caller wakes all': {
    wakes: ALL,
    counters: () => 1,
    countsAlone: false,
    piece: () => 16384,
  },
  'woken threads wake two each': { wakes: TREE, counters: () => 1, countsAlone: false, piece: () => 16384 },
  '… and a counter per 4 threads': {
    wakes: TREE,
    counters: perFourThreads,
    countsAlone: true,
    piece: () => 16384,
  },
  '… and smaller pieces if there are few': {
    wakes: TREE,
    counters: perFourThreads,
    countsAlone: true,
    piece: (tokens, threads) => Math.min(16384, Math.max(4096, Math.ceil(tokens / threads / 4))),
  },
};

const SIZES: [rows: number, length: number][] = [
  [256, 1024],
  [1024, 4096],
  [4096, 4096],
];
for (const [rows, length] of SIZES) {
  const tokens = rows * length;
  console.log(
    `\n${rows} × ${length} tokens; the time of the memory alone, and how many times that a call takes\n`,
  );
  const counts = [2, 16, 64, 128, 192];
  console.log(`| pool | memory on | ${counts.join(' | ')} |`);
  console.log(`| --- | --- |${' ---: |'.repeat(counts.length)}`);
  const ideal = (threads: number, placement: Placement) =>
    (tokens * (option('bytes') + 1)) /
    Math.min(
      threads * option('core-gbs'),
      (placement === 'one node' ? 1 : nodeOf(threads - 1) + 1) * option('node-gbs'),
    );
  for (const placement of PLACEMENTS)
    console.log(
      `| ideal | ${placement} | ${counts.map((n) => `${(ideal(n, placement) / 1000).toFixed(0)} µs`).join(' | ')} |`,
    );
  for (const [name, scheme] of Object.entries(SCHEMES))
    for (const placement of PLACEMENTS)
      console.log(
        `| ${name} | ${placement} | ` +
          `${counts.map((n) => (call(scheme, n, tokens, placement) / ideal(n, placement)).toFixed(2)).join(' | ')} |`,
      );
}
