// Estimates of a divergence from a log-ratio, as expressions, and the KL terms that losses add.
import { number } from '../base/option.js';
import type { CheckedOptions } from '../base/options.js';
import type { Expression, ProgramSymbols } from '../program/expression.js';
import { limitedLog } from './statistics.js';

/** Estimates of the divergence at a token, from ln(other policy's probability / policy's probability). */
export const ESTIMATES = {
  k1: (_: ProgramSymbols, x: Expression) => x.neg(),
  k2: ({ square }: ProgramSymbols, x: Expression) => square(x).div(2),
  k3: ({ expm1 }: ProgramSymbols, x: Expression) => expm1(x).sub(x),
};

function lowVarKl(symbols: ProgramSymbols, x: Expression): Expression {
  return symbols.clip(ESTIMATES.k3(symbols, limitedLog(symbols, x)), -10, 10);
}

/** verl's estimates of the divergence, under its names. */
export const VERL_ESTIMATES = {
  ...ESTIMATES,
  kl: ESTIMATES.k1,
  mse: ESTIMATES.k2,
  k3: lowVarKl,
  abs: ({ abs }: ProgramSymbols, x: Expression) => abs(x),
  low_var_kl: lowVarKl,
};

/** Returns the value of an estimate with the gradient of k2. */
export function straightThrough(symbols: ProgramSymbols, x: Expression, value: Expression): Expression {
  const k2 = ESTIMATES.k2(symbols, x);
  return k2.add(symbols.sg(value.sub(k2)));
}

/** The option that sets the coefficient of the KL term of TRL's losses. */
export const BETA = {
  beta: number({
    default: 0,
    atLeast: 0,
    typical: [0, 0.5],
    help: 'the coefficient of the KL to the reference policy; the batch needs ref_logprob unless it is 0',
  }),
};

/** The metric of the KL term. */
export const KL_METRIC = { kl: { unit: 'nats per token', when: 'if beta is not 0' } };

/** Returns the k3 estimate of the KL to the reference policy for a token; undefined if its coefficient is 0. */
export function klTerm(
  symbols: ProgramSymbols,
  { beta }: CheckedOptions<typeof BETA>,
): Expression | undefined {
  return beta === 0 ? undefined : ESTIMATES.k3(symbols, symbols.ref.sub(symbols.lp));
}

/**
 * Returns a token's KL times its importance ratio.
 * @param perRow whether all tokens of a row have the same ratio.
 */
export function biasCorrected(
  { old, lp, ref, n, exp, expm1, select }: ProgramSymbols,
  kl: Expression,
  ratio: Expression,
  perRow: boolean,
): Expression {
  // r·(e^δ − 1 − δ) = −e^(ref − old)·(e^(−δ) − 1 + δe^(−δ)) if r is the token's own ratio. Where δ is large, the terms of
  // the left side's derivative cancel, and those of the right side's do not. Near δ = 0 it is the other way round.
  const difference = ref.sub(lp);
  const isLarge = difference.gt(1);
  const inverse = exp(difference.neg());
  const sum = expm1(difference.neg()).add(difference.mul(inverse));
  return select(perRow ? isLarge.and(n.eq(1)) : isLarge, exp(ref.sub(old)).mul(sum).neg(), kl.mul(ratio));
}
