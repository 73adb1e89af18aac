/** Entropy losses. The loss `mix` reads only the rows that the policy wrote, not those that an expert wrote. */
import { type Formula, option, rowsOfKind } from './batch.js';

const ofAllRows: Formula = (x, args) => {
  const aggregated = x.aggregate(x.column('entropy'), option(args, 'loss_agg_mode', 'token-mean'));
  return { loss: aggregated.mul(option(args, 'entropy_coef', 0)), metrics: { entropy_loss: aggregated } };
};

export const entropyFormulas: Record<string, Formula> = {
  default: ofAllRows,
  mix: (x, args) => ofAllRows(x.of(rowsOfKind(x.batch, false)), args),
  none: (x) => ({ loss: x.tape.leaf([0]), metrics: {} }),
};
