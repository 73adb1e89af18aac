/** TRL's losses. */
import type { Variable } from './autograd.js';
import { type Args, type Formula, option, type Tokens } from './batch.js';

/** Returns the clipped loss of each token, and the metrics of its clipping. */
function clipped(x: Tokens, ratio: Variable, args: Args) {
  const epsilon = option(args, 'epsilon', 0.2);
  const high = 1 + option(args, 'epsilon_high', epsilon);
  const { advantages } = x;
  const bounded = ratio.min(option(args, 'delta', Number.POSITIVE_INFINITY));
  const loss = bounded
    .mul(advantages)
    .min(ratio.clip(1 - epsilon, high).mul(advantages))
    .neg();
  const isLow = bounded.test((r) => r < 1 - epsilon).mul(advantages.test((a) => a < 0));
  const isHigh = bounded.test((r) => r > high).mul(advantages.test((a) => a > 0));
  const rowMeans = (flags: Variable) => {
    const { value } = x.rowSum(flags);
    return x.counts.flatMap((n, row) => (n > 0 ? [value[row]! / n] : []));
  };
  const [lowMeans, highMeans] = [rowMeans(isLow), rowMeans(isHigh)];
  return {
    loss,
    metrics: {
      'clip_ratio/low_mean': x.mean(isLow),
      'clip_ratio/high_mean': x.mean(isHigh),
      'clip_ratio/region_mean': x.mean(isLow.add(isHigh)),
      'clip_ratio/low_min': lowMeans.length > 0 ? Math.min(...lowMeans) : 0,
      'clip_ratio/high_max': highMeans.length > 0 ? Math.max(...highMeans) : 0,
    },
  };
}

const dapo: Formula = (x, args) => {
  const { loss, metrics } = clipped(x, x.logprob.sub(x.oldLogprob).exp(), args);
  const divisor = Math.max(option(args, 'num_items_in_batch', x.index.length), 1);
  return { loss: loss.sum().mul(option(args, 'num_processes', 1) / divisor), metrics };
};

/** The formulas by registry name. */
export const trlFormulas: Record<string, Formula> = { 'trl/dapo': dapo };
