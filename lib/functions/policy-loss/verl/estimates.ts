// verl's estimates of a divergence as expressions.
import type { Expression, ProgramSymbols } from '../../../program/expression.js';
import { bounded } from '../../correction/verl/arithmetic.js';

type Estimate = (symbols: ProgramSymbols, delta: Expression) => Expression;

const lowVarKl: Estimate = (symbols, delta) => {
  const limited = bounded(symbols, delta);
  return symbols.clip(symbols.expm1(limited).sub(limited), -10, 10);
};

/** Estimates of the divergence at a token, from ln(other policy's probability / policy's probability). */
export const ESTIMATES = {
  k1: (_, delta) => delta.neg(),
  k2: ({ square }, delta) => square(delta).div(2),
  k3: lowVarKl,
  abs: ({ abs }, delta) => abs(delta),
  low_var_kl: lowVarKl,
} satisfies Record<string, Estimate>;

/** Returns the value of an estimate with the gradient of k2. */
export function straightThrough(symbols: ProgramSymbols, delta: Expression, value: Expression): Expression {
  const k2 = ESTIMATES.k2(symbols, delta);
  return k2.add(symbols.sg(value.sub(k2)));
}
