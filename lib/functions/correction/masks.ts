// The masks that every policy loss accepts as options.
import type { CheckedOptions, OptionSchema, OptionsOf } from '../../core/options.js';
import type { Expression, ProgramSymbols } from '../../program/expression.js';
import type { CorrectionExpressions } from './correction-programs.js';
import { isTopEntropy, TOP_ENTROPY } from './top-entropy.js';

/** The declarations of the masks. */
export const MASKS = {
  offPolicyMaskThreshold: {
    type: 'number',
    above: 0,
    typical: [0.01, 0.5],
    help: 'the loss of tokens with A < 0 is 0 in rows whose mean of old_logprob − logprob exceeds this (arXiv 2512.02556)',
  },
  delta: {
    type: 'number',
    above: 0,
    typical: [1.3, 4],
    help: 'the ratio of logprob to old_logprob counts as at most this, without a gradient above it (arXiv 2505.07291)',
  },
  overlongLength: {
    type: 'integer',
    atLeast: 1,
    typical: [4, 4096],
    help: 'rows with at least this many unmasked tokens are left out, as responses that were cut off (arXiv 2503.14476)',
  },
  ...TOP_ENTROPY,
} as const satisfies OptionSchema;

/** Masks, as an option of every policy loss. */
export type MaskOptions = OptionsOf<typeof MASKS>;

/**
 * Returns masks as a correction.
 * @param isOfRows whether the loss is one of rows. The row is then computed without the tokens of a low entropy, because
 * they have no losses of their own that could be 0.
 */
export function maskCorrection(
  symbols: ProgramSymbols,
  { offPolicyMaskThreshold, delta, overlongLength, topEntropyQuantile }: CheckedOptions<typeof MASKS>,
  isOfRows: boolean,
): CorrectionExpressions {
  const { lp, d, n, old, min, sg } = symbols;
  const isFar =
    offPolicyMaskThreshold === undefined ? undefined : isFarOff(symbols, old, offPolicyMaskThreshold);
  const isShort = overlongLength === undefined ? undefined : n.lt(overlongLength);
  const most = delta === undefined ? undefined : Math.log(delta);
  const passing = most === undefined ? undefined : sg(d).le(most);
  const isTop = isTopEntropy(symbols, topEntropyQuantile);
  return {
    weight: both(isFar?.not(), isOfRows ? undefined : isTop),
    kept: both(isShort, isOfRows ? isTop : undefined),
    logprob: most === undefined ? undefined : sg(min(lp, old.add(most))),
    passing,
    metrics: {
      'mask/off_policy_fraction': isFar && { token: isFar },
      'mask/delta_fraction': passing && { token: passing.not() },
      'mask/overlong_fraction': isShort && { row: isShort.not() },
      'mask/low_entropy_fraction': isTop && { token: isTop.not() },
    },
  };
}

function both(a: Expression | undefined, b: Expression | undefined): Expression | undefined {
  return a && b ? a.and(b) : (a ?? b);
}

/**
 * Returns 1 for tokens with A < 0 in rows that the current policy would hardly have sampled: those whose mean log-ratio of
 * the sampling to the current policy exceeds a threshold.
 * @param sampled the log-probability under the sampling policy.
 */
export function isFarOff(
  { A, lp, rowMean, sg }: ProgramSymbols,
  sampled: Expression,
  threshold: number,
): Expression {
  return A.lt(0).and(rowMean(sg(sampled.sub(lp))).gt(threshold));
}
