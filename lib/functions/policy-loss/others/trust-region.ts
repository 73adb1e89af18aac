// What the losses of prime-rl share: tokens whose probability has changed too much are dropped, and the square of the
// log-ratio is a penalty on all tokens.
import type { TokenValues } from '../../../core/declaration.js';
import type { Expression, ProgramSymbols } from '../../../program/expression.js';
import type { MetricExpression } from '../expression-loss.js';
import { aggregated } from './aggregation.js';
import { k3 } from './bounds.js';

/** The option of the penalty. */
export const PENALTY = {
  klTau: {
    type: 'number',
    default: 1e-3,
    atLeast: 0,
    typical: [0, 0.2],
    help: 'coefficient of (ln r)², the penalty on all tokens',
  },
} as const;

/**
 * Returns the penalty of a token with the default coefficient, and its slope. It cancels the other term of the loss where
 * the two are equally large.
 */
export function penaltyOf({ logprob, oldLogprob }: TokenValues): { value: number; gradient: number } {
  const d = Math.abs(logprob - oldLogprob);
  return { value: PENALTY.klTau.default * d ** 2, gradient: 2 * PENALTY.klTau.default * d };
}

/** The option of the policy gradient's coefficient. */
export const ADVANTAGE_SCALE = {
  advTau: {
    type: 'number',
    default: 1,
    atLeast: 0,
    typical: [0, 2],
    help: 'factor of the advantages',
  },
} as const;

const OF_ROWS = { unit: 'mean per row, averaged over rows' } as const;

/** The declarations of the metrics of {@link trustRegion}. */
export const TRUST_REGION_METRICS = {
  masked_mismatch_kl: OF_ROWS,
  unmasked_mismatch_kl: OF_ROWS,
  is_masked: OF_ROWS,
  pg_loss: { unit: 'loss' },
} as const;

/** Returns how much the token's probability has changed: exp(logprob) − exp(old_logprob). */
export function probabilityChange({ lp, old, exp }: ProgramSymbols): Expression {
  return exp(lp).sub(exp(old));
}

/** Returns the metric that averages a value over each row's flagged tokens, and then over all rows. */
export function meanOfRows(
  { rowSum, select, max }: ProgramSymbols,
  flag: Expression,
  value: Expression,
): MetricExpression {
  return { row: rowSum(select(flag, value, 0)).div(max(rowSum(flag), 1)) };
}

/** Returns the loss −A·r, without the dropped tokens, plus the penalty on all tokens. */
export function trustRegion(
  symbols: ProgramSymbols,
  A: Expression,
  dropped: Expression,
  klTau: number,
): { loss: Expression; metrics: Record<keyof typeof TRUST_REGION_METRICS, MetricExpression> } {
  const { d, r, select, square, rowMean } = symbols;
  const perToken = select(dropped, 0, A.neg().mul(r)).add(square(d).mul(klTau));
  const { loss, pg_loss } = aggregated(symbols, perToken, 'token-mean');
  return {
    loss,
    metrics: {
      masked_mismatch_kl: meanOfRows(symbols, dropped, k3(symbols, d)),
      unmasked_mismatch_kl: meanOfRows(symbols, dropped.not(), k3(symbols, d)),
      is_masked: { row: rowMean(dropped) },
      pg_loss,
    },
  };
}
