// Times contenders against each other. They take turns in every round, so that other work on the machine disturbs all
// of them alike.
import { setTimeout } from 'node:timers/promises';

/** The times of one contender, in milliseconds. */
export interface Sample {
  median: number;
  least: number;
  most: number;
  /** The number of calls that were counted. */
  calls: number;
}

/** Something that is timed, such as a function of this package or of a peer. */
export interface Contender {
  readonly name: string;
  /** Makes this many calls, one after another, and returns the milliseconds of each. */
  time(calls: number): number[] | Promise<number[]>;
}

/** All calls that take more than this many milliseconds are counted, since cold caches hardly change their times. */
const LONG = 200;
/** Calls at the start of each turn that are not counted. They run with another contender's data in the caches. */
const UNCOUNTED = 2;
/**
 * Milliseconds between two turns. They let the previous contender's background work end, such as garbage collection on
 * other cores or threads that spin before they sleep.
 */
const PAUSE = 30;
/** A turn has as many calls as fit into this many milliseconds, from 1 to MOST_CALLS. */
const TURN = 15;
const MOST_CALLS = 200;
/**
 * A contender gets at most this many milliseconds in one race, but at least FEWEST turns if there are as many rounds.
 */
const BUDGET = 1500;
const FEWEST = 5;

/**
 * Times the contenders in turns, after a few calls that are not counted. Contenders with long turns skip some rounds.
 * @param mostCalls the most calls in one turn.
 */
export async function race(
  contenders: readonly Contender[],
  rounds: number,
  mostCalls = MOST_CALLS,
): Promise<Record<string, Sample>> {
  const entrants: Entrant[] = [];
  for (const contender of contenders) entrants.push(await warmUp(contender, rounds, mostCalls));
  for (let round = 0; round < rounds; round++) {
    // The order is reversed each round, so that no contender always follows the same one.
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

/** Returns the median and the extremes of some times. */
export function summarise(times: readonly number[]): Sample {
  if (times.length === 0 || !times.every((time) => time >= 0))
    throw new Error('times: expected at least one number, none of them negative or NaN');
  const sorted = times.toSorted((a, b) => a - b);
  const middle = sorted.length / 2;
  // Both indices are the same if the number of times is odd.
  const median = (sorted[Math.floor(middle)]! + sorted[Math.ceil(middle) - 1]!) / 2;
  return { median, least: sorted[0]!, most: sorted.at(-1)!, calls: times.length };
}

/** Returns a contender that calls a function of this process and awaits its result. */
export function contender(name: string, call: () => unknown): Contender {
  return {
    name,
    async time(calls) {
      const times = new Array<number>(calls);
      for (let i = 0; i < calls; i++) {
        const start = performance.now();
        await call();
        times[i] = performance.now() - start;
      }
      return times;
    },
  };
}

/** Returns a contender that calls a synchronous function. Its times do not include a wait for a promise. */
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

/** Returns a contender under another name. */
export function renamed(name: string, { time }: Contender): Contender {
  return { name, time };
}
