/** Masks that every policy loss accepts as an option. */
import type { Formula } from '../batch.js';
import { ones, tokenMean } from './shared.js';
import { topEntropy } from './trl-options.js';
import { underCorrection } from './verl-correction.js';

/**
 * Computes a loss from the share of the tokens that has the highest entropies. The losses of the other tokens are 0. A
 * loss of rows has no losses of tokens, so its rows lack the other tokens.
 */
export const withTopEntropy =
  (formula: Formula, share: number, isOfRows: boolean): Formula =>
  (x, args) => {
    const top = topEntropy(x, { top_entropy_quantile: share });
    const metrics = { 'mask/low_entropy_fraction': tokenMean(x, ones(x).sub(top)) };
    const correction = isOfRows ? { weights: null, kept: top } : { weights: top, kept: ones(x) };
    return underCorrection(formula, x, args, { ...correction, metrics });
  };
