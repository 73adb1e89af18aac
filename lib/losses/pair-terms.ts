// What losses over pairs of rows share: the values of both rows, and means over pairs. The chosen row stands for its pair.

import { number } from '../base/option.js';
import type { CheckedOptions } from '../base/options.js';
import type { Expression, Operand, ProgramSymbols } from '../program/expression.js';
import type { MetricExpression } from '../program/loss-program.js';
import type { Has } from './policy-loss.js';
import { FRACTION_OF_PAIRS } from './units.js';

/** The two rows of a pair, which both of them know. */
export interface Pair {
  /** A value of the chosen row. */
  readonly chosen: Expression;
  /** The same of the rejected row. */
  readonly rejected: Expression;
  readonly difference: Expression;
}

/** Returns a value of both rows of each pair. */
export function pairOf(
  { chosen, rejected }: Pick<ProgramSymbols, 'chosen' | 'rejected'>,
  x: Expression,
): Pair {
  const both = { chosen: chosen(x), rejected: rejected(x) };
  return { ...both, difference: both.chosen.sub(both.rejected) };
}

/**
 * Returns how values of pairs are averaged.
 * @param rowsOfPair the number of rows that belong together: 3 if each pair has a third row.
 */
export function overPairs({ placeInPair, rows, constant, select }: ProgramSymbols, rowsOfPair = 2) {
  const isChosen = placeInPair.eq(0);
  const ofChosen = (x: Operand) => select(isChosen, x, 0);
  const perPair = constant(rowsOfPair).div(rows);
  return {
    isChosen,
    /** 1/P, or 0 without pairs. */
    perPair,
    /** The value of a pair in its chosen row, and 0 in the others. */
    ofChosen,
    /** The loss of a row, if that of the batch is the mean over its pairs. */
    rowLoss: (ofPair: Operand) => ofChosen(ofPair).mul(perPair),
    /** The metric that is the mean over the pairs. */
    mean: (ofPair: Operand): MetricExpression => ({ row: ofChosen(ofPair).mul(rowsOfPair) }),
  };
}

/**
 * Returns the loss of a row, if that of the batch is the sum over the pairs with sample_mask, divided by the number of all
 * pairs.
 * @param broadcasts whether it is the mean over all pairs times the mean mask instead, as oat's broadcast masks give.
 */
export function maskedMean(symbols: ProgramSymbols, ofPair: Expression, broadcasts = false): Expression {
  const { sampleMask, rowsSum, select } = symbols;
  const { ofChosen, perPair, rowLoss } = overPairs(symbols);
  return rowLoss(
    broadcasts ? ofPair.mul(rowsSum(ofChosen(sampleMask)).mul(perPair)) : select(sampleMask.gt(0), ofPair, 0),
  );
}

/** The declaration of NeMo-RL's divisor. */
export const VALID_SEQS = number({
  atLeast: 0,
  typical: [1, 32],
  help: 'the number of rows that count in all micro-batches; half of it is the divisor. Without it, those of the batch',
});

/** Returns NeMo-RL's sums over the pairs whose chosen row has a sample_mask, divided by the number of valid pairs. */
export function sumsOfValid(symbols: ProgramSymbols, validSeqs: number | undefined) {
  const { sampleMask, placeInPair, rowsSum, constant, select } = symbols;
  const { ofChosen } = overPairs(symbols);
  const count = validSeqs === undefined ? rowsSum(sampleMask) : constant(validSeqs);
  const weight = constant(1).div(count.div(2).add(1e-8));
  const counted = (x: Operand) => select(sampleMask.gt(0), x, 0).mul(weight);
  const weighted = (ofPair: Operand) => counted(ofChosen(ofPair));
  return {
    weighted,
    sum: (ofPair: Operand) => sumOverRows(symbols, weighted(ofPair)),
    /** The sum over the rejected rows that have a sample_mask themselves. */
    sumOfRejected: (x: Operand) => sumOverRows(symbols, counted(select(placeInPair.eq(1), x, 0))),
    pairs: sumOverRows(symbols, sampleMask.div(2)),
  };
}

/** The metric that is the sum over the rows. */
export function sumOverRows({ rows }: ProgramSymbols, x: Expression): MetricExpression {
  return { row: x.mul(rows) };
}

/** Returns the mean over a row's tokens of a sum over them, or 0 without tokens. */
export function perToken({ n, max }: ProgramSymbols, sum: Expression): Expression {
  return sum.div(max(n, 1));
}

/** The statement of what losses read that compare a policy with a reference. */
export const REFERENCE = {
  reads: ['ref_logprob', 'action_mask', 'ref_logps', 'pair_ids'],
  optional: ['ref_logps'],
} as const;

/** The log-probabilities of rows, and their differences from the reference's. */
export interface Rows {
  /** S = Σ w·logprob. */
  readonly policy: Expression;
  /** Σ w·ref_logprob, or ref_logps. */
  readonly reference: Expression;
  /** z, the difference. */
  readonly logRatio: Expression;
}

/** Returns the sums over rows, of which each token has the weight w; 1 if absent. */
export function rowsOf({ lp, ref, refLogps, rowSum }: ProgramSymbols, has: Has, w: Operand = 1): Rows {
  const policy = rowSum(lp.mul(w));
  if (has('ref_logps')) return { policy, reference: refLogps, logRatio: policy.sub(refLogps) };
  return { policy, reference: rowSum(ref.mul(w)), logRatio: rowSum(lp.sub(ref).mul(w)) };
}

/** Returns −(1 − ε)·ln σ(u) − ε·ln σ(−u). */
export function smoothed({ logsigmoid }: ProgramSymbols, u: Expression, epsilon: number): Expression {
  const right = logsigmoid(u).mul(epsilon - 1);
  return epsilon === 0 ? right : right.sub(logsigmoid(u.neg()).mul(epsilon));
}

/** Returns max(0, 1 − u). */
export function hinge({ max, constant }: ProgramSymbols, u: Expression): Expression {
  return max(0, constant(1).sub(u));
}

/** Returns (h − 1/(2β))². */
export function ipo({ square }: ProgramSymbols, h: Expression, beta: number): Expression {
  return square(h.sub(1 / (2 * beta)));
}

/** Returns the loss of a pair that {@link smoothed}, {@link hinge} or {@link ipo} gives for a margin h. */
export function marginLoss(
  symbols: ProgramSymbols,
  type: 'sigmoid' | 'hinge' | 'ipo',
  h: Expression,
  { beta, labelSmoothing = 0 }: { beta: number; labelSmoothing?: number },
): Expression {
  if (type === 'ipo') return ipo(symbols, h, beta);
  if (type === 'hinge') return hinge(symbols, h.mul(beta));
  return smoothed(symbols, h.mul(beta), labelSmoothing);
}

// The log-odds of a probability of almost 1 are limited to about 85.
const LEAST = 1e-37;

/** Returns x − ln(1 − e^x), the log-odds of a probability whose logarithm is x ≤ 0. */
export function logOdds({ exp, expm1, log, log1p, max, select }: ProgramSymbols, x: Expression): Expression {
  // ln(1 − e^x) loses digits near 0 in one form, and far below in the other.
  const isNear = x.gt(-Math.LN2);
  const near = log(max(expm1(select(isNear, x, -1)).neg(), LEAST));
  const far = log1p(exp(select(isNear, -1, x)).neg());
  return x.sub(select(isNear, near, far));
}

/** The weights of tokens by their place in the row; see {@link lengthWeight}. */
export const LENGTH_WEIGHT = {
  ldAlpha: number({
    atLeast: 0,
    atMost: 1,
    typical: [0, 1],
    help: 'the weight of the tokens after the first ones, of which both rows of a pair have equally many; null for 1 (LD-DPO)',
  }),
};

/**
 * Returns the weight of a token: ldAlpha for those after as many tokens as the shorter row of the pair has, and 1 for the
 * others.
 */
export function lengthWeight(
  symbols: ProgramSymbols,
  { ldAlpha }: CheckedOptions<typeof LENGTH_WEIGHT>,
): Operand {
  const { t, select } = symbols;
  if (ldAlpha === undefined) return 1;
  return select(t.lt(shorterOf(symbols)), 1, ldAlpha);
}

/** Returns the number of tokens of the shorter row of the pair. */
export function shorterOf({ n, chosen, rejected, min }: ProgramSymbols): Expression {
  return min(chosen(n), rejected(n));
}

/**
 * Returns a row's part of the mean over all tokens of some rows.
 * @param isCounted the condition that a row is one of them.
 * @param count the number of the row's tokens that count, if not all do.
 */
export function meanOfRows(
  { n, rowSum, rowsSum, max, select }: ProgramSymbols,
  isCounted: Expression,
  ofToken: Expression,
  count = n,
): Expression {
  const tokens = max(rowsSum(select(isCounted, count, 0)), 1);
  return select(isCounted, rowSum(ofToken), 0).div(tokens);
}

const REWARD = { unit: 'reward' };
const LOGPS = { unit: 'nats per row' };

/** The declarations of the metrics of {@link rewardMetrics}. */
export const REWARD_METRICS = {
  'rewards/chosen': REWARD,
  'rewards/rejected': REWARD,
  'rewards/accuracies': FRACTION_OF_PAIRS,
  'rewards/margins': REWARD,
};
/** The declarations of the metrics of {@link logpsMetrics}. */
export const LOGPS_METRICS = { 'logps/chosen': LOGPS, 'logps/rejected': LOGPS };

type Mean = (ofPair: Operand) => MetricExpression;

/** Returns the means over pairs of the two rewards and of their margin, and how often the chosen one is larger. */
export function rewardMetrics(mean: Mean, { chosen, rejected, difference }: Pair) {
  return {
    'rewards/chosen': mean(chosen),
    'rewards/rejected': mean(rejected),
    'rewards/accuracies': mean(difference.gt(0)),
    'rewards/margins': mean(difference),
  };
}

/** Returns the means over pairs of the rows' log-probabilities. */
export function logpsMetrics(mean: Mean, { chosen, rejected }: Pair) {
  return { 'logps/chosen': mean(chosen), 'logps/rejected': mean(rejected) };
}

/** Returns a pair of which both values are multiplied by a number. */
export function scaled(pair: Pair, by: number): Pair {
  return {
    chosen: pair.chosen.mul(by),
    rejected: pair.rejected.mul(by),
    difference: pair.difference.mul(by),
  };
}

/** How the losses of pairs behave for any inputs. */
export const LINEAR_NUMERICS = {
  range: 'any finite logprobs',
  outside: 'the loss grows linearly with the margin, and its gradient becomes constant',
};
/** The declaration of β. */
export const BETA_OPTION = {
  above: 0,
  typical: [0.05, 2],
  help: 'β, the coefficient of the log-ratios in the rewards',
} as const;
/** The declaration of label smoothing. */
export const SMOOTHING_OPTION = {
  default: 0,
  atLeast: 0,
  atMost: 1,
  typical: [0, 0.4],
  help: 'ε, the probability that a label is wrong',
} as const;
/** Parts of the descriptions of losses of margins. */
export const OR_IPO = 'or (margin − 1/(2β))²';
export const MARGIN =
  'The margin is the log-ratio of the chosen row to the reference − that of the rejected row.';
