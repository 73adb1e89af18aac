// Times contenders (implementations to compare) against each other. They take turns in every round, so that other work
// on the machine disturbs all of them equally.
import { setTimeout } from 'node:timers/promises';

/** A summary of the times of one contender's calls, in milliseconds. */
export interface Sample {
  median: number;
  least: number;
  most: number;
  /** The number of calls whose times were counted. */
  calls: number;
}

/** Something to time, such as a function of this package or the same function of another library. */
export interface Contender {
  readonly name: string;
  /** Makes this many calls, one after another, and returns the time of each in milliseconds. */
  time(calls: number): number[] | Promise<number[]>;
}

/**
 * If a contender's calls take more than this many milliseconds, all of them are counted, because cold caches hardly
 * change the time of such long calls.
 */
const LONG = 200;
/**
 * The number of calls at the start of each turn that are not counted. While they run, the caches still hold another
 * contender's data.
 */
const UNCOUNTED = 2;
/**
 * The pause between two turns in milliseconds. It lets the previous contender's background work end, such as garbage
 * collection on other cores, or threads that spin before they sleep.
 */
const PAUSE = 30;
/**
 * The length of a turn in milliseconds. A turn has as many calls as fit into it, but at least 1 and at most MOST_CALLS.
 */
const TURN = 15;
const MOST_CALLS = 200;
/**
 * The time limit for all turns of one contender in a race, in milliseconds. A slow contender may exceed it, because it
 * has at least FEWEST turns (or one in each round, if there are fewer rounds).
 */
const BUDGET = 1500;
const FEWEST = 5;

/**
 * Times the contenders in turns, after a few calls that are not counted. Contenders with long turns skip some rounds.
 * Returns the times by the contenders' names.
 * @param mostCalls the largest number of calls in one turn.
 */
export async function race(
  contenders: readonly Contender[],
  rounds: number,
  mostCalls = MOST_CALLS,
): Promise<Record<string, Sample>> {
  const entrants: Entrant[] = [];
  for (const contender of contenders) entrants.push(await warmUp(contender, rounds, mostCalls));
  for (let round = 0; round < rounds; round++) {
    // Reverses the order in every second round, so that no contender always follows the same one.
    const order = round % 2 === 0 ? entrants : entrants.toReversed();
    for (const entrant of order) {
      const { contender, uncounted, calls, turns } = entrant;
      if (Math.floor(((round + 1) * turns) / rounds) === Math.floor((round * turns) / rounds)) continue;
      await setTimeout(PAUSE);
      const times = await contender.time(uncounted + calls);
      entrant.times.push(...times.slice(uncounted));
    }
  }
  return Object.fromEntries(entrants.map(({ contender, times }) => [contender.name, summarise(times)]));
}

interface Entrant {
  contender: Contender;
  uncounted: number;
  calls: number;
  turns: number;
  times: number[];
}

async function warmUp(contender: Contender, rounds: number, mostCalls: number): Promise<Entrant> {
  const [first] = await contender.time(1);
  const typical = first! > LONG ? first! : summarise(await contender.time(3)).median;
  const uncounted = typical > LONG ? 0 : UNCOUNTED;
  const calls = Math.min(Math.max(Math.floor(TURN / typical), 1), mostCalls);
  const turnsThatFit = Math.floor(BUDGET / (typical * (uncounted + calls)));
  const turns = Math.min(Math.max(turnsThatFit, FEWEST), rounds);
  return { contender, uncounted, calls, turns, times: [] };
}

/**
 * Returns the median, the smallest and the largest of the times.
 * @throws Error if there are no times, or if one is negative or NaN.
 */
export function summarise(times: readonly number[]): Sample {
  if (times.length === 0 || !times.every((time) => time >= 0))
    throw new Error('times: expected at least one number, none of them negative or NaN');
  const sorted = times.toSorted((a, b) => a - b);
  const middle = sorted.length / 2;
  // If the number of times is odd, both indices are equal.
  const median = (sorted[Math.floor(middle)]! + sorted[Math.ceil(middle) - 1]!) / 2;
  return { median, least: sorted[0]!, most: sorted.at(-1)!, calls: times.length };
}

/**
 * Returns a contender that calls an asynchronous function. Each of its times ends when the result has been awaited, or
 * when the call returns its promise.
 */
export function contender(
  name: string,
  call: () => unknown,
  until: 'result' | 'promise' = 'result',
): Contender {
  return {
    name,
    async time(calls) {
      const times = new Array<number>(calls);
      for (let i = 0; i < calls; i++) {
        const start = performance.now();
        const promise = call();
        const returned = performance.now();
        await promise;
        times[i] = (until === 'promise' ? returned : performance.now()) - start;
      }
      return times;
    },
  };
}

/** Returns a contender that calls a synchronous function. Nothing is awaited while the time is taken. */
export function syncContender(name: string, call: () => unknown): Contender {
  return {
    name,
    time(calls) {
      const times = new Array<number>(calls);
      for (let i = 0; i < calls; i++) {
        const start = performance.now();
        call();
        times[i] = performance.now() - start;
      }
      return times;
    },
  };
}

/** Returns the same contender under another name. */
export function renamed(name: string, { time }: Contender): Contender {
  return { name, time };
}
