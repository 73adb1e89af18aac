/** Adds up the losses of tokens as verl does, and holds what several of verl's functions share. */
import type { Variable } from '../autograd.js';
import { type Args, type Outcome, option, type Tokens } from '../batch.js';

export type AggregationMode =
  | 'token-mean'
  | 'token-sum'
  | 'seq-mean-token-sum'
  | 'seq-mean-token-sum-norm'
  | 'seq-mean-token-mean';

/**
 * Adds up the losses of tokens, times their weights. Unlike Trinity-RFT, verl does not count rows without unmasked
 * tokens. verl returns NaN if no token is unmasked; the result here is 0.
 */
export function aggregate(
  x: Tokens,
  perToken: Variable,
  args: Args,
  mode = option<AggregationMode>(args, 'loss_agg_mode', 'token-mean'),
): Variable {
  const { counts } = x;
  const tokens = option(args, 'batch_num_tokens', x.index.length);
  const rows = option(args, 'global_batch_size', counts.filter((n) => n > 0).length);
  const length = option(args, 'loss_scale_factor', x.batch.columns);
  const divisor: Record<AggregationMode, (n: number) => number> = {
    'token-mean': () => tokens,
    'token-sum': () => 1,
    'seq-mean-token-sum': () => rows,
    'seq-mean-token-sum-norm': () => rows * length,
    'seq-mean-token-mean': (n) => rows * (n + 1e-8),
  };
  const rowWeights = counts.map((n) => option(args, 'dp_size', 1) / (divisor[mode](n) || 1));
  return x.rowSum(x.weighted(perToken)).mul(x.tape.leaf(rowWeights)).sum();
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
