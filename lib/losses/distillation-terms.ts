// What the distillation losses share: log-probabilities, divergences, lists with a bucket for all other tokens, and
// divisors.
import { integer } from '../base/option.js';
import { float32Of } from '../batch/convert.js';
import { readTokenMatrix } from '../logits/loss-inputs.js';
import type { Expression, Operand, ProgramSymbols } from '../program/expression.js';
import type { EntrySymbols } from './entries.js';
import type { MaskInputs } from './logits-loss-fn.js';

/** Returns the log-probability of each entry from its logit. */
export function logSoftmax(symbols: ProgramSymbols, logit: Expression, temperature = 1): Expression {
  const { sg, rowMax, rowSum, exp, log } = symbols;
  const shifted = logit.sub(sg(rowMax(logit))).mul(1 / temperature);
  return shifted.sub(log(rowSum(exp(shifted))));
}

/** Returns p·x, and 0 where p is 0. */
export function expected({ select }: ProgramSymbols, p: Expression, x: Expression): Expression {
  return select(p.gt(0), p.mul(x), 0);
}

/** Returns the term of KL(p‖q) for an entry, from the logarithms of p and q. */
export function klTerm(symbols: ProgramSymbols, logP: Expression, logQ: Expression): Expression {
  return expected(symbols, symbols.exp(logP), logP.sub(logQ));
}

// Returns ln(1 + share·(eˣ − 1)). Of two forms, it takes the one that neither cancels nor overflows.
function logMixed({ expm1, log1p, min, select }: ProgramSymbols, share: number, x: Expression): Expression {
  const one = log1p(expm1(min(x, FAR)).mul(share));
  const other = x.add(log1p(expm1(min(x.neg(), FAR)).mul(1 - share)));
  const isFar = x.ge(FAR);
  return select(share < 0.5 ? isFar : isFar.or(x.lt(0).and(x.gt(-FAR))), other, one);
}

// The exponential of this number and of smaller ones is far from an overflow.
const FAR = 30;

/**
 * Returns the term of the generalized Jensen-Shannon divergence β·KL(q‖M) + (1−β)·KL(p‖M) with M = (1−β)·p + β·q for an
 * entry. It is that of KL(q‖p) for β = 0, and that of KL(p‖q) for β = 1.
 * @param logP the logarithm of the student's probability.
 * @param logQ that of the teacher's.
 */
export function jsdTerm(
  symbols: ProgramSymbols,
  beta: number,
  logP: Expression,
  logQ: Expression,
): Expression {
  if (beta === 0) return klTerm(symbols, logQ, logP);
  if (beta === 1) return klTerm(symbols, logP, logQ);
  const ofQ = skewedTerm(symbols, beta, logQ, logP).mul(beta);
  return ofQ.add(skewedTerm(symbols, 1 - beta, logP, logQ).mul(1 - beta));
}

/** Returns the term of KL(p‖share·p + (1 − share)·q) for an entry, from the logarithms of p and q. */
export function skewedTerm(
  symbols: ProgramSymbols,
  share: number,
  logP: Expression,
  logQ: Expression,
): Expression {
  if (share === 0) return klTerm(symbols, logP, logQ);
  if (share === 1) return symbols.constant(0);
  return expected(symbols, symbols.exp(logP), logMixed(symbols, 1 - share, logQ.sub(logP))).neg();
}

/** Returns the sum over the listed entries of a token. */
export function listSum({ rowSum, select, isListed }: EntrySymbols, x: Operand): Expression {
  return rowSum(select(isListed, x, 0));
}

// Returns the logarithm of the sum of eˣ over the listed entries of a token.
function logSumOfList(symbols: EntrySymbols, x: Expression): Expression {
  const { sg, rowMax, exp, log, select, isListed } = symbols;
  const largest = sg(rowMax(select(isListed.and(x.gt(-1e30)), x, -1e30)));
  return log(listSum(symbols, exp(x.sub(largest)))).add(largest);
}

/** Returns log-probabilities, divided by a temperature, that are renormalized over the list. */
export function renormalized(symbols: EntrySymbols, x: Expression, temperature = 1): Expression {
  const divided = x.mul(1 / temperature);
  return divided.sub(logSumOfList(symbols, divided));
}

/** Returns the value of an expression at the entry of the target. */
export function atTarget({ rowSum, select, isTarget }: EntrySymbols, x: Expression): Expression {
  return rowSum(select(isTarget, x, 0));
}

/** Returns for each unmasked token how many entries of the batch's list have a finite log-probability. */
export function finiteEntries(mask: Uint8Array, { batch, mapper, layout }: MaskInputs): Float32Array {
  const list = readTokenMatrix(batch, mapper, 'teacher_topk_logprobs', layout.tokens);
  return Float32Array.from(mask, (isUnmasked, i) =>
    isUnmasked
      ? float32Of(list, i * list.width, (i + 1) * list.width).filter((x) => Math.abs(x) < Infinity).length
      : 0,
  );
}

/** The option that sets what a loss is divided by. */
export const ITEMS = {
  numItemsInBatch: integer({
    atLeast: 1,
    typical: [1, 200],
    help: 'the loss is divided by this; the number of unmasked tokens of the batch if absent',
  }),
};

/** Returns 1 divided by a given number of tokens or, without one, by that of the batch's unmasked tokens, at least 1. */
export function perItem({ constant, tokens, max }: ProgramSymbols, items: number | undefined): Expression {
  return constant(1).div(items ?? max(tokens, 1));
}

/**
 * Returns the teacher's probability of all tokens but the listed ones, precisely also where it is small.
 * @param t the log-probability of each listed entry.
 */
function teachersOthers(symbols: EntrySymbols, t: Expression): Expression {
  const { rowMax, exp, expm1, select, isListed } = symbols;
  // One of the largest entries has nearly all of the mass where the others matter.
  const largest = rowMax(select(isListed, t, -1e30));
  const count = listSum(symbols, t.ge(largest));
  const smaller = listSum(symbols, select(t.lt(largest), exp(t), 0));
  return expm1(largest)
    .neg()
    .sub(count.sub(1).mul(exp(largest)))
    .sub(smaller);
}

/** Returns the logarithm of the teacher's probability of all tokens but the listed ones, which is at least 1e-7. */
export function teachersTail(symbols: EntrySymbols, t: Expression): Expression {
  return logOfTail(symbols, teachersOthers(symbols, t));
}

// ln(1 − e^min(x, −1e-7)) where x is the logarithm of the probability of the listed tokens.
function logOfTail({ log, max }: EntrySymbols, others: Expression): Expression {
  return log(max(others, LEAST_TAIL));
}

const LEAST_TAIL = -Math.expm1(-1e-7);

/**
 * Returns the divergence of a token over a list, with one bucket for all other tokens, or renormalized over the list. A list
 * with a bucket reads `others`.
 * @param s the student's log-probability of an entry, and `t` the teacher's.
 */
export function listDivergence(
  symbols: EntrySymbols,
  beta: number,
  s: Expression,
  t: Expression,
  hasTail: boolean,
): Expression {
  if (!hasTail) {
    const of = (x: Expression) => renormalized(symbols, x);
    return listSum(symbols, jsdTerm(symbols, beta, of(s), of(t)));
  }
  const ofTail = jsdTerm(symbols, beta, logOfTail(symbols, symbols.others), teachersTail(symbols, t));
  return listSum(symbols, jsdTerm(symbols, beta, s, t)).add(ofTail);
}

/** Returns the condition that a log-probability or a logit is not −Infinity. */
export function isPossible(x: Expression): Expression {
  return x.gt(-1e30);
}

/** Returns the divergence over the whole vocabulary. */
export function fullDivergence(symbols: EntrySymbols, beta: number, temperature: number): Expression {
  const { student, teacher, rowSum } = symbols;
  const s = logSoftmax(symbols, student, temperature);
  return rowSum(jsdTerm(symbols, beta, s, logSoftmax(symbols, teacher, temperature)));
}
