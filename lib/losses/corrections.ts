// Corrections for samples that come from another policy than the old one: bounded weights of the tokens' losses, and
// rejected tokens. rollout_logprob is the log-probability that the sampler reported. Corrections have no gradient.
import { choice, flag, number } from '../base/option.js';
import type { CheckedOptions } from '../base/options.js';
import type { Expression, ProgramSymbols } from '../program/expression.js';
import { type Level, ofLevel } from './statistics.js';

/** Two bounds, which are inclusive. A bound that is undefined is open. */
export interface Bounds {
  readonly low?: number | undefined;
  readonly high?: number | undefined;
}

/** Returns the condition that x is within bounds. */
export function within({ constant }: ProgramSymbols, x: Expression, { low, high }: Bounds): Expression {
  const above = low === undefined ? constant(1) : x.ge(low);
  return high === undefined ? above : above.and(x.le(high));
}

/** Limits x to bounds. */
export function clamped(
  { clip, min, max }: ProgramSymbols,
  x: Expression,
  { low, high }: Bounds,
): Expression {
  if (low !== undefined && high !== undefined) return clip(x, low, high);
  const above = low === undefined ? x : max(x, low);
  return high === undefined ? above : min(above, high);
}

/** Limits x to ±limit. An undefined limit changes nothing. */
export function clampedTo(symbols: ProgramSymbols, x: Expression, limit: number | undefined): Expression {
  return limit === undefined ? x : symbols.clip(x, -limit, limit);
}

/** Returns x where it is within bounds, and 0 elsewhere. */
export function masked(symbols: ProgramSymbols, x: Expression, bounds: Bounds): Expression {
  return symbols.select(within(symbols, x, bounds), x, 0);
}

/**
 * Returns 1 for tokens with A < 0 in rows that the current policy would hardly have sampled: those whose mean log-ratio of
 * the sampling to the current policy exceeds a threshold.
 * @param sampled the log-probability under the sampling policy.
 */
export function isFarOff(
  { A, lp, rowMean }: ProgramSymbols,
  sampled: Expression,
  threshold: number,
): Expression {
  return A.lt(0).and(rowMean(sampled.sub(lp)).gt(threshold));
}

/** The options of {@link samplerWeight} and {@link keptOf}. */
export const CORRECTION = {
  logRatioBound: number({
    atLeast: 0,
    typical: [1, 20],
    help: 'log-ratios of old_logprob to rollout_logprob are clipped to ± this; no bound if absent',
  }),
  isLevel: choice(['none', 'token', 'sequence', 'geometric', 'segment'], {
    default: 'none',
    help: "what the weight is computed from: the token's ratio, the product or geometric mean of the row's, or the geometric mean of those of a run of unmasked tokens",
  }),
  isMode: choice(['none', 'truncate', 'clip', 'mask'], {
    default: 'none',
    help: 'how the weight is bounded: not, from above, to both bounds, or set to 0 outside the bounds',
  }),
  isLower: number({ typical: [0.3, 0.9], help: 'the lower bound on the weight; none if absent' }),
  isUpper: number({ typical: [1.05, 3], help: 'the upper bound on the weight; none if absent' }),
  isBatchNormalize: flag({
    default: false,
    needs: { isLevel: ['token', 'sequence'], isMode: ['truncate', 'clip'] },
    help: "divide the weights by their mean over the batch's tokens, or rows if isLevel is sequence",
  }),
  rejectLevel: choice(['token', 'sequence', 'geometric', 'segment'], {
    default: 'token',
    help: "what rejectMetric is computed for: the token, the sum or mean of the row's log-ratios or differences, or their mean over a run of unmasked tokens",
  }),
  rejectMetric: choice(['ratio', 'diff', 'tv'], {
    help: 'tokens outside the bounds are rejected by this: the ratio, the difference of the probabilities, or the mean of |ratio − 1| in the row, which rejects only tokens with (old_logprob − rollout_logprob)·A > 0',
  }),
  rejectLower: number({ typical: [-0.2, 0.95], help: 'the lower bound on rejectMetric' }),
  rejectUpper: number({ typical: [0.05, 2], help: 'the upper bound on rejectMetric' }),
  vetoLower: number({
    typical: [0.3, 0.8],
    help: 'a row is rejected if the ratio of one token is below this',
  }),
  vetoUpper: number({ typical: [1.5, 3], help: 'a row is rejected if the ratio of one token is above this' }),
  opsmDelta: number({
    typical: [-0.1, 0.2],
    help: 'tokens with A < 0 are rejected in rows whose mean log-ratio to logprob exceeds this',
  }),
  opsmReference: choice(['old', 'rollout'], {
    default: 'old',
    help: 'which policy the log-ratio of opsmDelta is of',
  }),
};

type Options = CheckedOptions<typeof CORRECTION>;

// The ratio of the old policy to the sampler, at a level.
function samplerRatio(symbols: ProgramSymbols, { logRatioBound }: Options, level: Level): Expression {
  const log = ofLevel(symbols, level, symbols.old.sub(symbols.rollout));
  return symbols.exp(clampedTo(symbols, log, logRatioBound));
}

/**
 * Returns the weight of a token, the ratio from which it is computed, and the condition that this ratio is within the
 * bounds; or undefined if tokens have no weights.
 */
export function samplerWeight(
  symbols: ProgramSymbols,
  options: Options,
): { weight: Expression; ratio: Expression; isInside: Expression } | undefined {
  const { isLevel, isMode, isLower: low, isUpper: high } = options;
  if (isLevel === 'none') return undefined;
  const ratio = samplerRatio(symbols, options, isLevel);
  const isInside = within(symbols, ratio, { low, high });
  const modes = {
    none: () => ratio,
    truncate: () => clamped(symbols, ratio, { high }),
    clip: () => clamped(symbols, ratio, { low, high }),
    mask: () => masked(symbols, ratio, { low, high }),
  };
  const weight = modes[isMode]();
  const mean = isLevel === 'token' ? symbols.batchMean : symbols.rowsMean;
  return { weight: options.isBatchNormalize ? weight.div(mean(weight)) : weight, ratio, isInside };
}

/** Returns the condition that a token is not rejected. */
export function keptOf(symbols: ProgramSymbols, options: Options): Expression {
  return keptByStatistic(symbols, options)
    .and(keptByVeto(symbols, options))
    .and(keptByDistance(symbols, options));
}

function keptByStatistic(symbols: ProgramSymbols, options: Options): Expression {
  const { A, old, rollout, exp, abs, rowMean, constant } = symbols;
  const { rejectLevel, rejectMetric, rejectLower: low, rejectUpper: high } = options;
  if (rejectMetric === undefined) return constant(1);
  const statistics = {
    ratio: () => samplerRatio(symbols, options, rejectLevel),
    diff: () => ofLevel(symbols, rejectLevel, exp(old).sub(exp(rollout))),
    tv: () => rowMean(abs(samplerRatio(symbols, options, 'token').sub(1))),
  };
  const isInside = within(symbols, statistics[rejectMetric](), { low, high });
  return rejectMetric === 'tv' ? isInside.or(old.sub(rollout).mul(A).le(0)) : isInside;
}

function keptByVeto(symbols: ProgramSymbols, options: Options): Expression {
  const { vetoLower: low, vetoUpper: high } = options;
  if (low === undefined && high === undefined) return symbols.constant(1);
  return symbols.rowMin(within(symbols, samplerRatio(symbols, options, 'token'), { low, high }));
}

function keptByDistance(symbols: ProgramSymbols, { opsmDelta, opsmReference }: Options): Expression {
  if (opsmDelta === undefined) return symbols.constant(1);
  return isFarOff(symbols, opsmReference === 'old' ? symbols.old : symbols.rollout, opsmDelta).not();
}
