// Compares the speed of two groups of calls that compute the same. In each round every call has one turn, and its time
// is divided by the round's median. Other work on the machine slows the whole round, so it cancels in the quotient.
import { setImmediate } from 'node:timers/promises';
import { generator } from '../../test/support/random.js';
import { summarise } from './race.js';

/** The time of one group's calls compared with another's. */
export interface Comparison {
  /** Median time of a call of the first group. */
  milliseconds: number;
  /** The second group's time divided by the first one's. */
  ratio: number;
  /** Half the width of the ratio's 95 % interval, estimated from the spread of the rounds. */
  error: number;
  rounds: number;
}

/** When a comparison stops: after the least number of rounds, once the ratio's error is small enough. */
export interface Precision {
  rounds: { least: number; most: number };
  error: number;
}

type Call = () => unknown;

/** A turn repeats a short call until it has taken about this many milliseconds. */
const TURN = 1;
/** Uncounted rounds, which fill caches and branch predictors. */
const WARM_UP = 2;
/** The error is estimated once in so many rounds. */
const CHECK_EVERY = 10;

/** Compares the second group of calls with the first. Both have the same size. */
export async function comparePaired(
  first: readonly Call[],
  second: readonly Call[],
  { rounds, error }: Precision,
): Promise<Comparison> {
  const calls = [...first, ...second];
  const repeats = repeatsFor(calls);
  const random = generator(1).uniform;
  const times: number[][] = [];
  for (let round = -WARM_UP; ; round++) {
    const taken = takeTurns(calls, repeats, random);
    await setImmediate();
    if (round < 0) continue;
    times.push(taken);
    const last = times.length >= rounds.most;
    if (!last && (times.length < rounds.least || times.length % CHECK_EVERY > 0)) continue;
    const comparison = evaluate(times, first.length);
    if (last || comparison.error <= error) return comparison;
  }
}

function repeatsFor(calls: readonly Call[]): number {
  const times = calls.map((call) => {
    call();
    return turn(call, 3);
  });
  return Math.min(Math.max(Math.round(TURN / median(times)), 1), 1000);
}

/** Returns the milliseconds of each call in one round, which runs the calls in random order. */
function takeTurns(calls: readonly Call[], repeats: number, random: () => number): number[] {
  const times = new Array<number>(calls.length);
  for (const i of shuffled(calls.length, random)) times[i] = turn(calls[i]!, repeats);
  return times;
}

function turn(call: Call, repeats: number): number {
  const start = performance.now();
  for (let i = 0; i < repeats; i++) call();
  return (performance.now() - start) / repeats;
}

function shuffled(count: number, random: () => number): number[] {
  const order = Array.from({ length: count }, (_, i) => i);
  for (let i = count - 1; i > 0; i--) {
    const j = Math.floor(random() * (i + 1));
    [order[i], order[j]] = [order[j]!, order[i]!];
  }
  return order;
}

/** Compares calls 0 … groupSize − 1 with the others. `times` has one list per round. */
function evaluate(times: readonly number[][], groupSize: number): Comparison {
  const relative = times.map((round) => {
    const middle = median(round);
    return round.map((time) => time / middle);
  });
  const calls = relative[0]!.map((_, i) => centerOf(relative.map((round) => round[i]!)));
  const groups = [calls.slice(0, groupSize), calls.slice(groupSize)].map(describeGroup);
  const [first, second] = groups as [Group, Group];
  return {
    milliseconds: median(times.flatMap((round) => round.slice(0, groupSize))),
    ratio: second.mean / first.mean,
    error: Math.hypot(first.error, second.error),
    rounds: times.length,
  };
}

interface Center {
  median: number;
  /** Half the width of the 95 % interval. */
  error: number;
}

/**
 * Returns the median with its error. The error comes from the median absolute deviation, which outliers hardly change.
 */
function centerOf(values: readonly number[]): Center {
  const center = median(values);
  const deviation = median(values.map((value) => Math.abs(value - center)));
  // 1.4826 makes it a standard deviation; a median's standard error is 1.2533 times that of a mean.
  return { median: center, error: (1.96 * 1.2533 * 1.4826 * deviation) / Math.sqrt(values.length) };
}

interface Group {
  mean: number;
  error: number;
}

function describeGroup(calls: readonly Center[]): Group {
  const medians = calls.map((call) => call.median);
  const mean = medians.reduce((sum, x) => sum + x, 0) / calls.length;
  return {
    mean,
    error: Math.hypot(...calls.map((call) => call.error)) / calls.length / mean,
  };
}

const median = (values: readonly number[]) => summarise(values).median;
