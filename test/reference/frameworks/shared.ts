/** What the losses of several frameworks have in common. */
import type { Variable } from '../autograd.js';
import { type Args, type Outcome, option, type Tokens } from '../batch.js';

/** Returns an argument for which null has a meaning of its own. If it is absent, returns `fallback`. */
export const orNull = <T>(args: Args, name: string, fallback: T | null): T | null =>
  args[name] === undefined ? fallback : (args[name] as T | null);

export const isNegative = (x: Variable): Variable => x.test((value) => value < 0);
export const isPositive = (x: Variable): Variable => x.test((value) => value > 0);

export type Bound = number | null;
const open = (low: Bound, high: Bound): [number, number] => [
  low ?? Number.NEGATIVE_INFINITY,
  high ?? Number.POSITIVE_INFINITY,
];
/** Flags the values within bounds, which are inclusive. A bound that is null is open. */
export function within(x: Variable, ...bounds: [low: Bound, high: Bound]): Variable {
  const [low, high] = open(...bounds);
  return x.test((value) => value >= low && value <= high);
}
/** Limits values to bounds. A bound that is null is open. */
export const bounded = (x: Variable, low: Bound, high: Bound): Variable => x.clip(...open(low, high));

/** Returns the lower and upper bound of the ratio: 1 − clip_range_low and 1 + clip_range_high. */
export const ratioBounds = (args: Args, low: number, high: number): [number, number] => [
  1 - option(args, 'clip_range_low', low),
  1 + option(args, 'clip_range_high', high),
];

/** Returns 1 for each unmasked token. */
export const ones = (x: Tokens): Variable => x.tape.leaf(x.index.map(() => 1));

/** Divides sums by counts, which are constants. A sum over nothing stays 0. */
export const perCount = (sums: Variable, counts: Variable): Variable =>
  sums.div(sums.tape.leaf(counts.value.map((n) => Math.max(n, 1))));
/** The mean over the unmasked tokens, without Trinity-RFT's epsilon. */
export const tokenMean = (x: Tokens, values: Variable): Variable => perCount(values.sum(), ones(x).sum());
/** The mean over each row's unmasked tokens, without Trinity-RFT's epsilon. */
export const meanOfRow = (x: Tokens, values: Variable): Variable =>
  perCount(x.rowSum(values), x.rowSum(ones(x)));

/** Returns for each token the mean over its contiguous run of unmasked tokens. */
export function runMean(x: Tokens, values: Variable): Variable {
  const starts = x.index.map((at, i) => x.rowOf[i] !== x.rowOf[i - 1] || at !== x.index[i - 1]! + 1);
  let runs = 0;
  const runOf = starts.map((start) => (start ? ++runs : runs) - 1);
  const lengths = ones(x).sumBy(runOf, runs).add(1e-8);
  return values.sumBy(runOf, runs).div(lengths).gather(runOf);
}

/** The ratio exp(lp − sg(lp)). Its value and its derivative are 1. */
export const unitRatio = (logprob: Variable): Variable => logprob.sub(logprob.detach()).exp();

/** Returns a quantile, interpolated linearly between the values next to it. `q` is between 0 and 1. */
export function quantile(values: Float64Array, q: number): number {
  const sorted = values.toSorted();
  const rank = q * (sorted.length - 1);
  const [below, above] = [sorted[Math.floor(rank)]!, sorted[Math.ceil(rank)]!];
  return below + (above - below) * (rank - Math.floor(rank));
}

/** Returns the largest of all values, or the smallest if `sign` is −1, and 0 for no value. */
export const extreme = (values: Variable, sign: 1 | -1): Variable =>
  values.extremeBy(new Int32Array(values.length), 1, sign);

export const plainMean = (values: Variable): Variable => values.sum().div(values.length || 1);

/** Returns the standard deviation with the divisor n − 1. That of a single value is 0. */
export function sampleStd(values: Variable): Variable | number {
  if (values.length < 2) return 0;
  return values
    .sub(plainMean(values))
    .square()
    .sum()
    .div(values.length - 1)
    .sqrt();
}

/** Returns the rows that have unmasked tokens. */
export const filledRows = (x: Tokens): number[] => x.rows.map((_, row) => row).filter((row) => x.counts[row]);

/** Turns flags of 1 and 0 into flags of 0 and 1. */
export const not = (flags: Variable): Variable => flags.neg().add(1);

export const prefixed = (prefix: string, metrics: Outcome['metrics']): Outcome['metrics'] =>
  Object.fromEntries(Object.entries(metrics).map(([name, value]) => [prefix + name, value]));

/** Returns the position of each row's group in the order of first appearance. */
export function groupOfRows(x: Tokens): number[] {
  const ids = x.rows.map((b) => x.batch.groupIds![b]!);
  const distinct = [...new Set(ids)];
  return ids.map((id) => distinct.indexOf(id));
}
