// Corrections for samples that come from another policy than the old one: weights of the tokens' losses, and rejected
// tokens. rollout_logprob is the log-probability that the sampler reported. Corrections have no gradient.
import type { CheckedOptions } from '../../../core/options.js';
import type { Expression, ProgramSymbols } from '../../../program/expression.js';
import { bounded, ofLevel, type StatisticLevel, within } from './bounds.js';

/** The options of {@link weightOf} and {@link keptOf}. */
export const CORRECTION = {
  logRatioBound: {
    type: 'number',
    atLeast: 0,
    typical: [1, 20],
    help: 'log-ratios of old_logprob to rollout_logprob are clipped to ± this; no bound if absent',
  },
  isLevel: {
    type: 'choice',
    choices: ['none', 'token', 'sequence', 'geometric', 'segment'],
    default: 'none',
    help: "what the weight is computed from: the token's ratio, the product or geometric mean of the row's, or the geometric mean of those of a run of unmasked tokens",
  },
  isMode: {
    type: 'choice',
    choices: ['none', 'truncate', 'clip', 'mask'],
    default: 'none',
    help: 'how the weight is bounded: not, from above, to both bounds, or set to 0 outside the bounds',
  },
  isLower: { type: 'number', typical: [0.3, 0.9], help: 'the lower bound on the weight; none if absent' },
  isUpper: { type: 'number', typical: [1.05, 3], help: 'the upper bound on the weight; none if absent' },
  isBatchNormalize: {
    type: 'boolean',
    default: false,
    needs: { isLevel: ['token', 'sequence'], isMode: ['truncate', 'clip'] },
    help: "divide the weights by their mean over the batch's tokens, or rows if isLevel is sequence",
  },
  rejectLevel: {
    type: 'choice',
    choices: ['token', 'sequence', 'geometric', 'segment'],
    default: 'token',
    help: "what rejectMetric is computed for: the token, the sum or mean of the row's log-ratios or differences, or their mean over a run of unmasked tokens",
  },
  rejectMetric: {
    type: 'choice',
    choices: ['ratio', 'diff', 'tv'],
    help: 'tokens outside the bounds are rejected by this: the ratio, the difference of the probabilities, or the mean of |ratio − 1| in the row, which rejects only tokens with (old_logprob − rollout_logprob)·A > 0',
  },
  rejectLower: { type: 'number', typical: [-0.2, 0.95], help: 'the lower bound on rejectMetric' },
  rejectUpper: { type: 'number', typical: [0.05, 2], help: 'the upper bound on rejectMetric' },
  vetoLower: {
    type: 'number',
    typical: [0.3, 0.8],
    help: 'a row is rejected if the ratio of one token is below this',
  },
  vetoUpper: {
    type: 'number',
    typical: [1.5, 3],
    help: 'a row is rejected if the ratio of one token is above this',
  },
  opsmDelta: {
    type: 'number',
    typical: [-0.1, 0.2],
    help: 'tokens with A < 0 are rejected in rows whose mean log-ratio to logprob exceeds this',
  },
  opsmReference: {
    type: 'choice',
    choices: ['old', 'rollout'],
    default: 'old',
    help: 'which policy the log-ratio of opsmDelta is of',
  },
} as const;

type Options = CheckedOptions<typeof CORRECTION>;

// The ratio of the old policy to the sampler, at a level.
function ratioOf(symbols: ProgramSymbols, { logRatioBound }: Options, level: StatisticLevel): Expression {
  const { old, rollout, exp, clip } = symbols;
  const log = ofLevel(symbols, level, old.sub(rollout));
  return exp(logRatioBound === undefined ? log : clip(log, -logRatioBound, logRatioBound));
}

/**
 * Returns the weight of a token, the ratio from which it is computed, and the condition that this ratio is within the
 * bounds; or undefined if tokens have no weights.
 */
export function weightOf(
  symbols: ProgramSymbols,
  options: Options,
): { weight: Expression; ratio: Expression; isInside: Expression } | undefined {
  const { isLevel, isMode, isLower, isUpper } = options;
  if (isLevel === 'none') return undefined;
  const ratio = ratioOf(symbols, options, isLevel);
  const isInside = within(symbols, ratio, isLower, isUpper);
  const modes = {
    none: () => ratio,
    truncate: () => bounded(symbols, ratio, undefined, isUpper),
    clip: () => bounded(symbols, ratio, isLower, isUpper),
    mask: () => symbols.select(isInside, ratio, 0),
  };
  const weight = modes[isMode]();
  const { batchMean, rowsMean } = symbols;
  const mean = isLevel === 'token' ? batchMean : rowsMean;
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
  const { rejectLevel, rejectMetric, rejectLower, rejectUpper } = options;
  if (rejectMetric === undefined) return constant(1);
  const statistics = {
    ratio: () => ratioOf(symbols, options, rejectLevel),
    diff: () => ofLevel(symbols, rejectLevel, exp(old).sub(exp(rollout))),
    tv: () => rowMean(abs(ratioOf(symbols, options, 'token').sub(1))),
  };
  const isInside = within(symbols, statistics[rejectMetric](), rejectLower, rejectUpper);
  return rejectMetric === 'tv' ? isInside.or(old.sub(rollout).mul(A).le(0)) : isInside;
}

function keptByVeto(symbols: ProgramSymbols, options: Options): Expression {
  const { vetoLower, vetoUpper } = options;
  if (vetoLower === undefined && vetoUpper === undefined) return symbols.constant(1);
  return symbols.rowMin(within(symbols, ratioOf(symbols, options, 'token'), vetoLower, vetoUpper));
}

function keptByDistance(
  { A, lp, old, rollout, rowMean, constant }: ProgramSymbols,
  { opsmDelta, opsmReference }: Options,
): Expression {
  if (opsmDelta === undefined) return constant(1);
  const from = opsmReference === 'old' ? old : rollout;
  return rowMean(from.sub(lp)).gt(opsmDelta).and(A.lt(0)).not();
}
