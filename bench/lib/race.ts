// Times contenders against one another: in each round every one has its turn, so that what else the machine does meets
// them alike.
import { setTimeout } from 'node:timers/promises';

/** What one contender took, in milliseconds. */
export interface Sample {
  median: number;
  least: number;
  most: number;
  /** Calls that were counted. */
  calls: number;
}

/** Somebody who is timed. */
export interface Contender {
  readonly name: string;
  /** Milliseconds of each of so many calls, one after another. */
  time(calls: number): number[] | Promise<number[]>;
}

/** Where a call takes longer, what lies in the caches before it does not matter, and its turn has no uncounted calls. */
const LONG = 200;
const UNCOUNTED = 2;
/**
 * Milliseconds between two turns, in which the one before finishes what it has left behind: garbage that is collected on
 * the cores of the next one, threads that have yet to fall asleep.
 */
const PAUSE = 30;
/** A turn has as many calls as fit in so many milliseconds, from 1 to MOST_CALLS. */
const TURN = 15;
const MOST_CALLS = 200;
/** A contender gets at most so many milliseconds of a race, but always FEWEST turns. */
const BUDGET = 1500;
const FEWEST = 5;

/**
 * The contenders in turns, as many rounds as are asked for; those whose turns are long sit out some of them. The first
 * round is not counted, nor are the first calls of each turn, which find the caches as another contender left them.
 */
export async function race(
  contenders: readonly Contender[],
  rounds: number,
): Promise<Record<string, Sample>> {
  const entrants: Entrant[] = [];
  for (const contender of contenders) entrants.push(await warmUp(contender, rounds));
  for (let round = 0; round < rounds; round++) {
    // There and back, so that nobody always comes after the same one.
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

async function warmUp(contender: Contender, rounds: number): Promise<Entrant> {
  const [first] = await contender.time(1);
  const typical = first! > LONG ? first! : summarise(await contender.time(3)).median;
  const uncounted = typical > LONG ? 0 : UNCOUNTED;
  const calls = Math.min(Math.max(Math.floor(TURN / typical), 1), MOST_CALLS);
  const fit = Math.floor(BUDGET / (typical * (uncounted + calls)));
  const turns = Math.min(Math.max(fit, FEWEST), rounds);
  return { contender, uncounted, calls, turns, times: [] };
}

/** Median and extremes of some measurements. */
export function summarise(times: readonly number[]): Sample {
  if (times.length === 0 || !times.every((time) => time >= 0)) throw new Error('a measurement is missing');
  const sorted = times.toSorted((a, b) => a - b);
  const middle = sorted.length / 2;
  // Of an odd number of values both indices are the same.
  const median = (sorted[Math.floor(middle)]! + sorted[Math.ceil(middle) - 1]!) / 2;
  return { median, least: sorted[0]!, most: sorted.at(-1)!, calls: times.length };
}

/** A contender that is a function of this process, waited for where it gives a promise. */
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

/** A contender whose function gives its result at once; no promise is made within the time. */
export function contenderAtOnce(name: string, call: () => unknown): Contender {
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
