// The weights and the statistics of verl's rollout correction. The inference engine samples tokens with log-probabilities
// that differ from those of the policy that is trained. The correction weights the tokens, and rejects some.
import { describeValue, LossError } from '../base/errors.js';
import { choice, flag, text } from '../base/option.js';
import type { CheckedOptions } from '../base/options.js';
import type { Expression, ProgramSymbols } from '../program/expression.js';
import { clamped, masked } from './corrections.js';
import { ESTIMATES } from './kl-terms.js';
import { filledRows, limitedLog, meanOfBatch, meanOfRow } from './statistics.js';

/** The options of the correction. */
export const ROLLOUT_CORRECTION = {
  rolloutIs: choice(['token', 'sequence'], {
    help: 'whether tokens or whole rows have an importance weight; no weights if absent',
  }),
  rolloutIsThreshold: text({
    default: '2',
    typical: ['2', '1.2', '0.5_5.0'],
    help: "the largest weight; with two numbers ('0.5_5.0'), weights outside them become 0",
  }),
  rolloutIsBatchNormalize: flag({
    default: false,
    help: 'whether the weights are divided by their mean over the batch',
  }),
  rolloutRs: text({
    typical: [null, 'token_k1', 'seq_mean_k3', 'token_k2,seq_max_k3'],
    help: "the statistics by which tokens or rows are rejected, such as 'token_k1,seq_max_k2'; none if absent",
  }),
  rolloutRsThreshold: text({
    typical: ['1.2', '2'],
    help: "the bounds of each statistic: '2' for all, '2,0.1' for two, '0.5_2' for both bounds of a k1",
  }),
};

/** The checked options of the correction. */
export type CorrectionOptions = CheckedOptions<typeof ROLLOUT_CORRECTION>;

/** The importance weights. Those of rows have one value per row. */
export interface Weights {
  readonly level: 'token' | 'sequence';
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

/**
 * Returns the importance weights, or undefined if the options ask for none.
 * @param q the log-ratio of the policy to the rollout.
 * @throws LossError `ERR_INVALID_OPTION`
 */
export function importanceWeights(
  symbols: ProgramSymbols,
  options: CorrectionOptions,
  q: Expression,
): Weights | undefined {
  const { rolloutIs, rolloutIsThreshold, rolloutIsBatchNormalize } = options;
  if (rolloutIs === undefined) return undefined;
  const { exp, rowSum } = symbols;
  const bounds = boundsOf('rolloutIsThreshold', String(rolloutIsThreshold));
  const raw = exp(limitedLog(symbols, rolloutIs === 'token' ? q : rowSum(q)));
  const limited = bounds.both ? masked(symbols, raw, bounds) : clamped(symbols, raw, { high: bounds.high });
  if (!rolloutIsBatchNormalize)
    return { level: rolloutIs, raw, limited, weight: limited, factor: undefined, bounds };
  const factor = normalizer(symbols, limited, rolloutIs);
  return { level: rolloutIs, raw, limited, weight: limited.div(factor), factor, bounds };
}

/** Returns the mean weight, of tokens or of the rows that have tokens. It is 1 if the mean is nearly 0. */
export function normalizer(
  symbols: ProgramSymbols,
  weight: Expression,
  level: 'token' | 'sequence',
): Expression {
  const { max, rowsSum, select } = symbols;
  const mean =
    level === 'token'
      ? meanOfBatch(symbols, weight)
      : rowsSum(meanOfRow(symbols, weight)).div(max(filledRows(symbols), 1));
  return select(mean.gt(1e-8), mean, 1);
}

const LEVELS = {
  token: (_: ProgramSymbols, x: Expression) => x,
  seq_sum: ({ rowSum }: ProgramSymbols, x: Expression) => rowSum(x),
  seq_mean: meanOfRow,
  seq_max: ({ rowMax }: ProgramSymbols, x: Expression) => rowMax(x),
};

type Level = keyof typeof LEVELS;
type Estimate = keyof typeof ESTIMATES;
/** The name of a statistic by which tokens or rows are rejected. */
export type StatisticName = Exclude<`${Level}_${Estimate}`, 'seq_max_k1'>;

// verl has no maximum of k1, which can be negative.
const STATISTICS = new Map(
  (Object.keys(LEVELS) as Level[])
    .flatMap((level) => (Object.keys(ESTIMATES) as Estimate[]).map((estimate) => ({ level, estimate })))
    .map(({ level, estimate }) => [`${level}_${estimate}`, { level, estimate }] as const)
    .filter(([name]) => name !== 'seq_max_k1'),
);

/** The names of all statistics. */
export const STATISTIC_NAMES = [...STATISTICS.keys()] as readonly StatisticName[];

/** A statistic by which tokens or rows are rejected. */
export interface Statistic {
  readonly name: StatisticName;
  readonly level: Level;
  /** The value, of a token or of a row. */
  readonly value: Expression;
  /** The lower bound. Only k1, which can be negative, has one; otherwise it is 0. */
  readonly low: number;
  readonly high: number;
  readonly isTwoSided: boolean;
  /** 1 where the value is within the bounds, and 0 elsewhere. */
  readonly passed: Expression;
}

/**
 * Returns the statistics that the options name. A token is kept if it passes all of them.
 * @param q the log-ratio of the policy to the rollout.
 * @throws LossError `ERR_INVALID_OPTION`
 */
export function statisticsOf(
  symbols: ProgramSymbols,
  { rolloutRs, rolloutRsThreshold }: CorrectionOptions,
  q: Expression,
): Statistic[] {
  if (rolloutRs === undefined) return [];
  const names = [...new Set(listOf(rolloutRs))];
  const thresholds = listOf(rolloutRsThreshold ?? '');
  if (thresholds.length !== 1 && thresholds.length !== names.length)
    throw invalid('rolloutRsThreshold', `one bound, or ${names.length}`, String(rolloutRsThreshold));
  return names.map((name, i) => {
    const found = STATISTICS.get(name as StatisticName);
    if (!found) throw invalid('rolloutRs', `some of ${STATISTIC_NAMES.join(', ')}`, name);
    const { level, estimate } = found;
    const value = LEVELS[level](symbols, ESTIMATES[estimate](symbols, limitedLog(symbols, q)));
    const bounds = statisticBounds(estimate, thresholds[i] ?? thresholds[0]!);
    const { low, high, isTwoSided } = bounds;
    const isBelow = value.le(high);
    const passed = isTwoSided ? isBelow.and(value.ge(low)) : isBelow;
    return { name: name as StatisticName, level, value, ...bounds, passed };
  });
}

// The bounds of k1 are given as ratios. k1 estimates −q, so they bound the reciprocal of the ratio.
function statisticBounds(estimate: Estimate, threshold: string) {
  const { low, high, both } = boundsOf('rolloutRsThreshold', threshold);
  if (estimate === 'k1') return { low: Math.log(low), high: Math.log(high), isTwoSided: true };
  if (both) throw invalid('rolloutRsThreshold', 'one number for a statistic of k2 or k3', threshold);
  return { low: 0, high, isTwoSided: false };
}

function listOf(text: string | number): string[] {
  return String(text)
    .split(',')
    .map((word) => word.trim());
}

function boundsOf(option: string, text: string): Bounds {
  const numbers = text.split('_').map((word) => (word.trim() === '' ? Number.NaN : Number(word)));
  const high = numbers.at(-1)!;
  const low = numbers.length === 2 ? numbers[0]! : 1 / high;
  const isValid = numbers.every((x) => x > 0 && Number.isFinite(x)) && numbers.length <= 2;
  if (!isValid || (numbers.length === 2 && low > high))
    throw invalid(option, "a number above 0, or two in ascending order such as '0.5_2'", text);
  return { low, high, both: numbers.length === 2 };
}

function invalid(option: string, expected: string, received: string): LossError {
  return new LossError('ERR_INVALID_OPTION', { option, expected, received: describeValue(received) });
}
