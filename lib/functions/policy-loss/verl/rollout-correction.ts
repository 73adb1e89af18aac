// verl's rollout correction. The inference engine samples tokens with log-probabilities that differ from those of the
// policy that is trained. The correction weights the tokens, and rejects some.
import { LossError } from '../../../core/errors.js';
import type { CheckedOptions } from '../../../core/options.js';
import type { Expression, ProgramSymbols } from '../../../program/expression.js';
import { bounded } from './clipped.js';

/** The options of the correction. */
export const ROLLOUT_CORRECTION = {
  rolloutIs: {
    type: 'choice',
    choices: ['token', 'sequence'],
    help: 'whether tokens or whole rows have an importance weight; no weights if absent',
  },
  rolloutIsThreshold: {
    type: 'text',
    default: '2',
    typical: ['2', '1.2', '0.5_5.0'],
    help: "the largest weight; with two numbers ('0.5_5.0'), weights outside them become 0",
  },
  rolloutIsBatchNormalize: {
    type: 'boolean',
    default: false,
    help: 'whether the weights are divided by their mean over the batch',
  },
  rolloutRs: {
    type: 'text',
    typical: [null, 'token_k1', 'seq_mean_k3', 'token_k2,seq_max_k3'],
    help: "the statistics by which tokens or rows are rejected, such as 'token_k1,seq_max_k2'; none if absent",
  },
  rolloutRsThreshold: {
    type: 'text',
    typical: ['1.2', '2'],
    help: "the bounds of each statistic: '2' for all, '2,0.1' for two, '0.5_2' for both bounds of a k1",
  },
} as const;

/** The checked options of the correction. */
export type CorrectionOptions = CheckedOptions<typeof ROLLOUT_CORRECTION>;

/** The importance weights. Those of rows have one value per row. */
export interface Weights {
  /** The weight before it is limited. */
  readonly raw: Expression;
  /** The limited weight. */
  readonly limited: Expression;
  /** The weight that the loss is multiplied by. */
  readonly weight: Expression;
  /** What the limited weight is divided by, if the weights are normalized. */
  readonly factor: Expression | undefined;
  readonly bounds: Bounds;
}

/** Two bounds. */
export interface Bounds {
  readonly low: number;
  readonly high: number;
  /** Whether both bounds were given. Otherwise the lower one is the reciprocal of the upper one. */
  readonly both: boolean;
}

/** Returns the mean over the unmasked tokens of the row. Like verl, it divides by their number plus 1e-8. */
export function meanOfRow({ rowSum, n }: ProgramSymbols, x: Expression): Expression {
  return rowSum(x).div(n.add(1e-8));
}

/** Returns the mean over the unmasked tokens of the batch. Like verl, it divides by their number plus 1e-8. */
export function meanOfBatch({ batchSum, tokens }: ProgramSymbols, x: Expression): Expression {
  return batchSum(x).div(tokens.add(1e-8));
}

/**
 * Returns the importance weights, or undefined if the options ask for none.
 * @param q the log-ratio of the policy to the rollout.
 * @throws LossError `ERR_INVALID_OPTION`
 */
export function importanceWeights(
  owner: string,
  symbols: ProgramSymbols,
  options: CorrectionOptions,
  q: Expression,
): Weights | undefined {
  const { rolloutIs, rolloutIsThreshold, rolloutIsBatchNormalize } = options;
  if (rolloutIs === undefined) return undefined;
  const { exp, rowSum, min, select } = symbols;
  const bounds = boundsOf(owner, 'rolloutIsThreshold', String(rolloutIsThreshold));
  const raw = exp(bounded(symbols, rolloutIs === 'token' ? q : rowSum(q)));
  const limited = bounds.both
    ? select(raw.ge(bounds.low).and(raw.le(bounds.high)), raw, 0)
    : min(raw, bounds.high);
  if (!rolloutIsBatchNormalize) return { raw, limited, weight: limited, factor: undefined, bounds };
  const factor = normalizer(symbols, limited, rolloutIs);
  return { raw, limited, weight: limited.div(factor), factor, bounds };
}

// Returns the mean weight, of tokens or of the rows that have tokens. It is 1 if the mean is nearly 0.
function normalizer(symbols: ProgramSymbols, weight: Expression, level: 'token' | 'sequence'): Expression {
  const { n, max, rowsSum, select } = symbols;
  const mean =
    level === 'token'
      ? meanOfBatch(symbols, weight)
      : rowsSum(meanOfRow(symbols, weight)).div(max(rowsSum(n.gt(0)), 1));
  return select(mean.gt(1e-8), mean, 1);
}

type Statistic = (symbols: ProgramSymbols, x: Expression) => Expression;

// Estimates of the divergence at a token, from the log-ratio of the policy to the rollout.
const ESTIMATES: Record<string, Statistic> = {
  k1: (_, q) => q.neg(),
  k2: ({ square }, q) => square(q).div(2),
  k3: ({ expm1 }, q) => expm1(q).sub(q),
};

const LEVELS: Record<string, Statistic> = {
  token: (_, x) => x,
  seq_sum: ({ rowSum }, x) => rowSum(x),
  seq_mean: meanOfRow,
  seq_max: ({ rowMax }, x) => rowMax(x),
};

// The maximum over a row is no estimate with a sign, so verl has none of k1.
const STATISTICS = Object.keys(LEVELS).flatMap((level) =>
  Object.keys(ESTIMATES)
    .map((estimate) => `${level}_${estimate}`)
    .filter((name) => name !== 'seq_max_k1'),
);

/**
 * Returns 1 for the tokens that all statistics keep and 0 for the others, or undefined if the options name no statistic.
 * @param q the log-ratio of the policy to the rollout.
 * @throws LossError `ERR_INVALID_OPTION`
 */
export function keptTokens(
  owner: string,
  symbols: ProgramSymbols,
  { rolloutRs, rolloutRsThreshold }: CorrectionOptions,
  q: Expression,
): Expression | undefined {
  if (rolloutRs === undefined) return undefined;
  const names = [...new Set(listOf(rolloutRs))];
  const thresholds = listOf(rolloutRsThreshold ?? '');
  if (thresholds.length !== 1 && thresholds.length !== names.length)
    throw invalid(owner, 'rolloutRsThreshold', `one number, or ${names.length}`, String(rolloutRsThreshold));
  const passed = names.map((name, i) => {
    if (!STATISTICS.includes(name))
      throw invalid(owner, 'rolloutRs', `some of ${STATISTICS.join(', ')}`, name);
    const at = name.lastIndexOf('_');
    const estimate = ESTIMATES[name.slice(at + 1)]!(symbols, bounded(symbols, q));
    const statistic = LEVELS[name.slice(0, at)]!(symbols, estimate);
    return isWithin(owner, statistic, thresholds[i] ?? thresholds[0]!, name.endsWith('_k1'));
  });
  return passed.reduce((all, one) => all.and(one));
}

// k1 estimates −q and can be negative, so it has two bounds, which are given as ratios.
function isWithin(owner: string, statistic: Expression, threshold: string, isTwoSided: boolean): Expression {
  const { low, high, both } = boundsOf(owner, 'rolloutRsThreshold', threshold);
  if (isTwoSided) return statistic.ge(Math.log(low)).and(statistic.le(Math.log(high)));
  if (both) throw invalid(owner, 'rolloutRsThreshold', 'one number for a statistic of k2 or k3', threshold);
  return statistic.le(high);
}

function listOf(text: string | number): string[] {
  return String(text)
    .split(',')
    .map((part) => part.trim());
}

function boundsOf(owner: string, option: string, text: string): Bounds {
  const numbers = text.split('_').map((part) => (part.trim() === '' ? Number.NaN : Number(part)));
  const high = numbers.at(-1)!;
  const low = numbers.length === 2 ? numbers[0]! : 1 / high;
  const isValid = numbers.every((x) => x > 0 && Number.isFinite(x)) && numbers.length <= 2;
  if (!isValid || (numbers.length === 2 && low > high))
    throw invalid(owner, option, "a number above 0, or two in ascending order such as '0.5_2'", text);
  return { low, high, both: numbers.length === 2 };
}

function invalid(at: string, option: string, expected: string, received: string): LossError {
  return new LossError('ERR_INVALID_OPTION', { at, option, expected, received: `'${received}'` });
}
