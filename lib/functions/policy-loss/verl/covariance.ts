// What verl's losses with covariances have in common.
import type { Expression, ProgramSymbols } from '../../../program/expression.js';

/**
 * Returns a token's term of the covariance of advantages and log-probabilities, as a constant for the gradient.
 * @param mean returns the mean over the tokens of the batch.
 */
export function covariance({ A, lp, sg }: ProgramSymbols, mean: (x: Expression) => Expression): Expression {
  return sg(A.sub(mean(A)).mul(lp.sub(mean(lp))));
}
