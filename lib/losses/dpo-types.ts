// The loss types of TRL's DPO trainer, and the f-divergences by which it scores log-ratios.
import { LossError } from '../base/errors.js';
import { choice, list, number } from '../base/option.js';
import type { CheckedOptions } from '../base/options.js';
import type { Expression, ProgramSymbols } from '../program/expression.js';
import {
  hinge,
  ipo,
  meanOfRows,
  type Pair,
  pairOf,
  type Rows,
  SMOOTHING_OPTION,
  scaled,
  smoothed,
} from './pair-terms.js';
import { LARGEST_FLOAT } from './statistics.js';

/** The terms of a pair from which TRL's losses are computed. */
export interface PairTerms {
  readonly symbols: ProgramSymbols;
  readonly rows: Rows;
  /** z of both rows. */
  readonly z: Pair;
  /** f(z) of both rows. */
  readonly score: Pair;
  readonly beta: number;
  readonly labelSmoothing: number;
  readonly discopopTau: number;
}

/** Returns −ln σ of a reward of the chosen row, and of the negative one of the rejected row. */
export function bothSides({ logsigmoid }: ProgramSymbols, { chosen, rejected }: Pair): Expression {
  return logsigmoid(chosen).add(logsigmoid(rejected.neg())).neg();
}

/** Returns f(z)/n of the chosen row less that of the rejected row. */
function perTokenMargin({ symbols, score }: PairTerms): Expression {
  const { chosen, rejected, n, max } = symbols;
  return score.chosen.div(max(chosen(n), 1)).sub(score.rejected.div(max(rejected(n), 1)));
}

/** Returns β·(f(z) of the chosen row − f(z) of the rejected row). */
const margin = ({ score, beta }: PairTerms): Expression => score.difference.mul(beta);

/** The number that replaces a label smoothing of 0 in exo_pair, because the logarithm of 0 is infinite. */
export const EXO_SMOOTHING = 1e-3;

/** Returns σ(u)·(ln σ(u) − ln(1 − ε)) + σ(−u)·(ln σ(−u) − ln ε). */
export function exoPair({ sigmoid, logsigmoid }: ProgramSymbols, u: Expression, epsilon: number): Expression {
  checkSmoothing('exo_pair', epsilon, epsilon < 1, 'below 1');
  const wrong = epsilon || EXO_SMOOTHING;
  const side = (x: Expression, target: number) => sigmoid(x).mul(logsigmoid(x).sub(Math.log(target)));
  return side(u, 1 - wrong).add(side(u.neg(), wrong));
}

function checkSmoothing(type: string, epsilon: number, isValid: boolean, expected: string): void {
  if (!isValid)
    throw new LossError('ERR_INVALID_OPTION', {
      option: 'labelSmoothing',
      expected: `a number ${expected} for loss type ${type}`,
      received: String(epsilon),
    });
}

/** Returns (−(1 − ε)·ln σ(u) + ε·ln σ(−u))/(1 − 2ε). */
export function robust({ logsigmoid }: ProgramSymbols, u: Expression, epsilon: number): Expression {
  checkSmoothing('robust', epsilon, epsilon < 0.5, 'below ½');
  return logsigmoid(u)
    .mul(epsilon - 1)
    .add(logsigmoid(u.neg()).mul(epsilon))
    .div(1 - 2 * epsilon);
}

/** Returns (1 − g)·(−ln σ(u)) + g·e^(−u), g = σ(u/τ). */
export function discopop(
  { exp, logsigmoid, sigmoid }: ProgramSymbols,
  u: Expression,
  tau: number,
): Expression {
  const gate = u.div(tau);
  return sigmoid(gate.neg())
    .mul(logsigmoid(u).neg())
    .add(exp(logsigmoid(gate).sub(u)));
}

// The loss of the margin between what the two sides have at the same rank. Of the rows that are not on a side, the keys are
// larger than all others.
function atRanks(terms: PairTerms, margins: (own: KeyOf, other: KeyOf) => Expression): Expression {
  const { symbols, beta, labelSmoothing } = terms;
  const { placeInPair, select } = symbols;
  const ofChosen: KeyOf = (x) => select(placeInPair.eq(0), x, LARGEST_FLOAT);
  const ofRejected: KeyOf = (x) => select(placeInPair.eq(1), x, LARGEST_FLOAT);
  return smoothed(symbols, margins(ofChosen, ofRejected).mul(beta), labelSmoothing);
}
type KeyOf = (x: Expression) => Expression;

/** The loss of a pair, by its type. */
export const TRL_DPO_TYPES = {
  sigmoid: (terms) => smoothed(terms.symbols, margin(terms), 0),
  hinge: (terms) => hinge(terms.symbols, margin(terms)),
  ipo: (terms) => ipo(terms.symbols, perTokenMargin(terms), terms.beta),
  exo_pair: (terms) => exoPair(terms.symbols, margin(terms), terms.labelSmoothing),
  nca_pair: ({ symbols: { logsigmoid }, z, beta }) => {
    const { chosen, rejected } = scaled(z, beta);
    const wrong = logsigmoid(chosen.neg()).add(logsigmoid(rejected.neg()));
    return logsigmoid(chosen).neg().sub(wrong.mul(0.5));
  },
  robust: (terms) => robust(terms.symbols, margin(terms), terms.labelSmoothing),
  bco_pair: ({ symbols, z, beta }) => bothSides(symbols, scaled(z, beta)),
  sppo_hard: ({ symbols, z: { chosen, rejected }, beta }) =>
    ipo(symbols, chosen, beta).add(ipo(symbols, rejected.neg(), beta)),
  aot: (terms) => {
    const policy = pairOf(terms.symbols, terms.rows.policy).difference;
    const reference = pairOf(terms.symbols, terms.rows.reference).difference;
    return atRanks(terms, (key) =>
      policy.sub(terms.symbols.atSameRank(reference, key(policy), key(reference))),
    );
  },
  aot_unpaired: (terms) => {
    const { logRatio } = terms.rows;
    return atRanks(terms, (own, other) =>
      logRatio.sub(terms.symbols.atSameRank(logRatio, own(logRatio), other(logRatio))),
    );
  },
  apo_zero: ({ symbols: { sigmoid }, z, beta }) => {
    const { chosen, rejected } = scaled(z, beta);
    return sigmoid(chosen.neg()).add(sigmoid(rejected));
  },
  apo_down: ({ symbols: { sigmoid }, z, score, beta }) =>
    sigmoid(z.chosen.mul(beta)).add(sigmoid(score.difference.mul(-beta))),
  discopop: (terms) => discopop(terms.symbols, margin(terms), terms.discopopTau),
  sft: ({ symbols }) => {
    const { lp, rows, placeInPair } = symbols;
    return meanOfRows(symbols, placeInPair.eq(0), lp.neg()).mul(rows.div(2));
  },
  sigmoid_norm: (terms) => smoothed(terms.symbols, perTokenMargin(terms).mul(terms.beta), 0),
} satisfies Record<string, (terms: PairTerms) => Expression>;

type LossType = keyof typeof TRL_DPO_TYPES;
/** The names of TRL's loss types. */
export const TRL_DPO_NAMES = Object.keys(TRL_DPO_TYPES) as LossType[];

/** The options that choose the loss types and their weights. */
export const TYPE_OPTIONS = {
  lossWeights: list('number', {
    typical: [null],
    help: 'the weights of the loss types, as many as there are types; all 1 if absent',
  }),
  labelSmoothing: number({
    ...SMOOTHING_OPTION,
    typical: [0.001, 0.4],
    help: 'ε, the probability that a label is wrong, for the loss types exo_pair (0 stands for 0.001), robust (below ½), aot and aot_unpaired',
  }),
  discopopTau: number({ default: 0.05, above: 0, typical: [0.05, 1], help: 'τ of loss type discopop' }),
};

/** The options that choose f. */
export const DIVERGENCE_OPTIONS = {
  fDivergenceType: choice(['reverse_kl', 'forward_kl', 'js_divergence', 'alpha_divergence'], {
    default: 'reverse_kl',
    help: 'the f-divergence that scores log-ratios; nca_pair, bco_pair, sppo_hard, apo_zero and the aot types have the reverse KL',
  }),
  fAlphaDivergenceCoef: number({
    default: 0.5,
    typical: [-0.5, 2],
    help: 'α of alpha_divergence',
  }),
};

/** Returns the score f(z) of a log-ratio. */
export function divergence(
  { expm1, logsigmoid, min }: ProgramSymbols,
  type: CheckedOptions<typeof DIVERGENCE_OPTIONS>['fDivergenceType'],
  alpha: number,
): (z: Expression) => Expression {
  if (type === 'forward_kl') return (z) => expm1(z.neg()).neg();
  if (type === 'js_divergence') return (z) => logsigmoid(z).add(Math.LN2);
  // The exponent is at most 80, which float32 can hold.
  if (type === 'alpha_divergence' && Math.abs(alpha - 1) >= 1e-6)
    return (z) => expm1(min(z.mul(alpha - 1), 80)).div(alpha - 1);
  return (z) => z;
}

/** Returns a pair of which both values are scored. */
export function scored({ chosen, rejected }: Pair, score: (z: Expression) => Expression): Pair {
  const both = { chosen: score(chosen), rejected: score(rejected) };
  return { ...both, difference: both.chosen.sub(both.rejected) };
}

/**
 * Returns the weighted sum of the losses of a pair.
 * @throws LossError `ERR_INVALID_OPTION` if there are not as many weights as loss types.
 */
export function weightedTypes<T extends string, Terms>(
  table: Readonly<Record<T, (terms: Terms) => Expression>>,
  lossType: T | readonly T[],
  lossWeights: readonly number[] | undefined,
  terms: Terms,
): Expression | 0 {
  const types = [lossType].flat() as T[];
  if (lossWeights !== undefined && lossWeights.length !== types.length)
    throw new LossError('ERR_INVALID_OPTION', {
      option: 'lossWeights',
      expected: `${types.length} numbers, one for each loss type`,
      received: String(lossWeights.length),
    });
  const losses = types.map((type, i) => table[type](terms).mul(lossWeights?.[i] ?? 1));
  const [first, ...others] = losses;
  return others.reduce((sum, each) => sum.add(each), first!) ?? 0;
}
