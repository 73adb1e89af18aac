/** Adds up the losses of tokens as verl does. */
import type { Variable } from '../autograd.js';
import { type Args, option, type Tokens } from '../batch.js';

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
