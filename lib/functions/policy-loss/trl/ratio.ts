// The importance ratios of TRL's losses.
import type { Expression, ProgramSymbols } from '../../../program/expression.js';

/** An importance ratio. */
export interface Ratio {
  /** The ratio's logarithm. */
  readonly log: Expression;
  readonly value: Expression;
  /** Whether all tokens of a row have the same ratio. */
  readonly perRow: boolean;
}

/** The option that chooses the ratio. */
export const RATIO_LEVEL = {
  importanceSamplingLevel: {
    type: 'choice',
    choices: ['token', 'sequence'],
    default: 'token',
    help: 'whether each token has its own ratio, or all tokens of a row have the geometric mean of their ratios',
  },
} as const;

// The ratio of a row is at most e^88, which float32 can hold. An infinite ratio would give tokens with A > 0, whose loss is
// clipped, the gradient 0 · Infinity.
const LARGEST_LOG_RATIO = 88;

/** Returns the ratio of each token, or the geometric mean of a row's ratios. */
export function ratioOf(symbols: ProgramSymbols, level: 'token' | 'sequence'): Ratio {
  const { d, r, exp, min, rowMean } = symbols;
  if (level === 'token') return { log: d, value: r, perRow: false };
  const log = rowMean(d);
  return { log, value: exp(min(log, LARGEST_LOG_RATIO)), perRow: true };
}
