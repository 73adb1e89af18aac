// Two policy losses of our own. `--loss-file` makes them known to the command line:
//
//   npx policy-loss evaluate examples/rollouts.jsonl --loss-file examples/my-losses.mjs --loss penalised --beta 0.2
//
// Other programs import the classes, and register them to use them by name: POLICY_LOSS_FN.register('penalised', …).
import { defineLoss } from 'policy-loss';

/** PPO's clip, with a penalty on the log-ratio that keeps pulling after the ratio has left the clip range. */
export const PenalisedLossFn = defineLoss('penalised', {
  summary: 'ℓ = max(−A·r, −A·clip(r)) + beta·(ln r)²',
  options: {
    clipRange: { type: 'number', default: 0.2, above: 0, help: 'the ratio is clipped to 1 ± this' },
    beta: { type: 'number', default: 0.1, atLeast: 0, help: 'penalty on a squared nat of log-ratio' },
  },
  metrics: {
    pg_clipfrac: {
      unit: 'fraction of tokens',
      value: ({ r, abs }, { clipRange }) => abs(r.sub(1)).gt(clipRange),
    },
    penalty: { unit: 'squared nats per token', value: ({ d, square }) => square(d) },
  },
  loss: ({ A, d, r, max, clip, square }, { clipRange, beta }) => {
    const clipped = clip(r, 1 - clipRange, 1 + clipRange);
    return max(A.neg().mul(r), A.neg().mul(clipped)).add(square(d).mul(beta));
  },
});

/** One clipped ratio for all tokens of a row: the geometric mean of the tokens' ratios. */
export const RowRatioLossFn = defineLoss('row_ratio', {
  summary: 'PPO’s clip on the geometric mean of the row’s ratios',
  options: {
    low: { type: 'number', default: 0.1, help: 'the ratio is at least 1 minus this' },
    high: { type: 'number', default: 0.1, help: 'the ratio is at most 1 plus this' },
  },
  lossAggMode: 'seq-mean-token-mean',
  loss: 'max(-A*exp(row_mean(d)), -A*clip(exp(row_mean(d)), 1-low, 1+high))',
});
