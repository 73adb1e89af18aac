// Compares the speed of two groups of calls that do the same work. In each round, every call has one turn, and its time
// is divided by the median time of the round. Other work on the machine slows down the whole round, so this division
// cancels its effect.
import { setImmediate } from 'node:timers/promises';
import { generator } from '../../test/support/random.js';
import { summarise } from './race.js';

/** How fast one group of calls is, compared with another. */
export interface Comparison {
  /** The median time of one call of the first group. */
  milliseconds: number;
  /** The second group's time divided by the first group's. */
  ratio: number;
  /** Half the width of the ratio's 95 % confidence interval, estimated from how much the rounds differ. */
  error: number;
  rounds: number;
}

/**
 * When a comparison stops: as soon as the ratio's error is at most `error`, but not before `rounds.least` rounds and
 * not after `rounds.most`.
 */
export interface Precision {
  rounds: { least: number; most: number };
  error: number;
}

type Call = () => unknown;

/** The approximate length of a turn in milliseconds. A turn repeats a short call until it takes that long. */
const TURN = 1;
/** The number of rounds at the start that are not counted. They fill caches and train branch predictors. */
const WARM_UP = 2;
/** The number of rounds from one estimate of the error to the next. */
const CHECK_EVERY = 10;

/** Compares the second group of calls with the first. Both groups must have the same number of calls. */
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

/** Runs one round, in which each call has a turn, in random order. Returns each call's time in milliseconds. */
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

/**
 * Compares the second group of calls with the first.
 * @param times one list per round, with one time per call. The first `groupSize` times of a list are the first group's.
 */
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
  /** Half the width of the median's 95 % confidence interval. */
  error: number;
}

/**
 * Returns the median of the values and its error. The error is estimated from the median absolute deviation, because
 * outliers hardly change it.
 */
function centerOf(values: readonly number[]): Center {
  const center = median(values);
  const deviation = median(values.map((value) => Math.abs(value - center)));
  // Multiplied by 1.4826, the median absolute deviation estimates the standard deviation. The standard error of a
  // median is 1.2533 times that of a mean, and a 95 % interval extends 1.96 standard errors to each side.
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
