// The KL term of TRL's losses.
import type { CheckedOptions } from '../../../core/options.js';
import type { Expression, ProgramSymbols } from '../../../program/expression.js';
import type { Ratio } from './ratio.js';

/** The option that sets the coefficient of the KL term. */
export const BETA = {
  beta: {
    type: 'number',
    default: 0,
    atLeast: 0,
    typical: [0, 0.5],
    help: 'the coefficient of the KL to the reference policy; the batch needs ref_logprob unless it is 0',
  },
} as const;

/** The declaration of the metric of the KL term. */
export const KL_METRIC = { kl: { unit: 'nats per token', when: 'if beta is not 0' } } as const;

/** Returns the k3 estimate of the KL to the reference policy for a token; undefined if its coefficient is 0. */
export function klTerm(
  { lp, ref, expm1 }: ProgramSymbols,
  { beta }: CheckedOptions<typeof BETA>,
): Expression | undefined {
  if (beta === 0) return undefined;
  const difference = ref.sub(lp);
  return expm1(difference).sub(difference);
}

/** Returns a token's KL times its importance ratio. */
export function biasCorrected(
  { old, lp, ref, n, exp, expm1, select }: ProgramSymbols,
  kl: Expression,
  { value: ratio, perRow }: Ratio,
): Expression {
  // r·(e^δ − 1 − δ) = −e^(ref − old)·(e^(−δ) − 1 + δe^(−δ)) if r is the token's own ratio. Where δ is large, the terms of
  // the left side's derivative cancel, and those of the right side's do not. Near δ = 0 it is the other way round.
  const difference = ref.sub(lp);
  const isLarge = difference.gt(1);
  const inverse = exp(difference.neg());
  const sum = expm1(difference.neg()).add(difference.mul(inverse));
  return select(perRow ? isLarge.and(n.eq(1)) : isLarge, exp(ref.sub(old)).mul(sum).neg(), kl.mul(ratio));
}
