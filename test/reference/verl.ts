/** verl's losses. */
import type { Variable } from './autograd.js';
import { type Args, type Formula, option, type Tokens } from './batch.js';

/** Combines the tokens' losses as verl's agg_loss() does. Unlike Trinity-RFT, it leaves out rows without tokens. */
function aggregate(x: Tokens, losses: Variable, args: Args): Variable {
  const rows = option(args, 'global_batch_size', x.counts.filter((n) => n > 0).length) || 1;
  const total = losses.sum().mul(option(args, 'dp_size', 1));
  switch (option<string>(args, 'loss_agg_mode', 'token-mean')) {
    case 'token-mean':
      return total.div(option(args, 'batch_num_tokens', x.index.length) || 1);
    case 'token-sum':
      return total;
    case 'seq-mean-token-sum':
      return total.div(rows);
    case 'seq-mean-token-sum-norm':
      return total.div(rows * option(args, 'loss_scale_factor', x.batch.columns));
    default:
      return x
        .rowMean(losses)
        .sum()
        .mul(option(args, 'dp_size', 1) / rows);
  }
}

const dro: Formula = (x, args) => {
  const { logprob, advantages } = x;
  const d = logprob.sub(x.oldLogprob);
  const penalty = d.square().mul((args.dro_beta as number) / 2);
  const loss = aggregate(x, penalty.sub(advantages.mul(logprob)), args);
  return { loss, metrics: { ppo_kl: x.mean(d.neg()), pg_loss: loss } };
};

/** The formulas by registry name. */
export const verlFormulas: Record<string, Formula> = { 'verl/dro': dro };
