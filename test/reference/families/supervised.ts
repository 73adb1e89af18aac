/** Losses of log-probabilities with weights or gates of tokens in float64, by name. */
import type { Variable } from '../autograd.js';
import { type Formula, option, type Tokens } from '../batch.js';

/** The weights of the tokens, which are 1 if the batch has none. */
const weightsOf = (x: Tokens): Variable =>
  x.batch.tokenWeights ? x.column('tokenWeights').detach() : x.tape.leaf(x.index.map(() => 1));

const perNonZero = (sum: Variable, by: Variable): Variable => {
  const isZero = by.test((value) => value === 0);
  return isZero.choose(sum.mul(0), sum.div(isZero.choose(1, by)));
};

const tinkerCrossEntropy: Formula = (x, args) => {
  const given = weightsOf(x);
  const isMean = option<string>(args, 'reduction', 'none') === 'mean';
  const sums = x.rowSum(given);
  const divisors = x.spread(sums.test((sum) => sum > 0).choose(sums, 1));
  const weights = isMean ? given.div(divisors) : given;
  const loss = x.logprob.mul(weights).neg().sum();
  return { loss, metrics: { train_mean_nll: perNonZero(loss, weights.sum()) } };
};

const primeCE: Formula = (x, args) => {
  const weights = weightsOf(x);
  const isWeighted = weights.test((w) => w !== 0);
  const counts = [...x.rowSum(isWeighted).value];
  const total = counts.reduce((sum, n) => sum + n, 0);
  const scale = option(args, 'ce_scale', total) || 1;
  const ofRows = x.rowSum(x.logprob.neg().mul(isWeighted)).div(x.tape.leaf(counts.map((n) => n || 1)));
  return {
    loss: x.logprob.mul(weights).neg().sum().per(scale),
    metrics: { nll: ofRows.sum().per(counts.filter((n) => n > 0).length || 1) },
  };
};

const swiftSDAR: Formula = (x, args) => {
  const beta = option(args, 'sdar_gate_beta', 5);
  const gap = x.column('teacherLogprob').detach().sub(x.logprob);
  const gate = gap.mul(beta).sigmoid().detach();
  const divisors: Record<string, (row: number) => number> = {
    'token-mean': () => x.index.length || 1,
    'seq-mean-token-mean': (row) => x.rows.length * (x.counts[row]! || 1),
    'seq-mean-token-sum': () => x.rows.length,
  };
  const divisorOf = divisors[option(args, 'loss_agg_mode', 'token-mean')]!;
  const ofTokens = x.spread(x.tape.leaf(x.rows.map((_, row) => divisorOf(row))));
  const perToken = gate.mul(gap).div(ofTokens);
  const mean = (of: Variable) => of.sum().per(x.index.length || 1);
  return {
    loss: x
      .weighted(perToken)
      .sum()
      .mul(option(args, 'sdar_loss_coef', 0.1)),
    metrics: {
      'sdar/gate_mean': mean(gate),
      'sdar/gate_active_ratio': mean(gate.test((g) => g > 0.5)),
      'sdar/teacher_gap_mean': mean(gap),
      'sdar/loss': perToken.sum(),
    },
  };
};

/** The formulas by registry name. */
export const supervisedFormulas: Record<string, Formula> = {
  'tinker/cross_entropy': tinkerCrossEntropy,
  'prime/ce': primeCE,
  'swift/sdar': swiftSDAR,
};
