// Losses of papers in which the loss of a token depends on other tokens of its row, group or batch.
import { aggregation, flag, number } from '../base/option.js';
import type { Expression, ProgramSymbols } from '../program/expression.js';
import { lossMetric } from '../program/loss-program.js';
import { clamped } from './corrections.js';
import { aggregated, TOKEN_MEAN } from './divisors.js';
import { isAmongSmallest, quantile } from './order-statistics.js';
import { policyLoss } from './policy-loss.js';
import { RATIO_KEYS } from './policy-loss-declaration.js';
import { limitedLog, segmentMean } from './statistics.js';
import {
  clipRange,
  DUAL_CLIP,
  limited,
  OVERFLOWING,
  outsideOf,
  rangeOf,
  SATURATING,
  surrogate,
} from './surrogate.js';
import { FRACTION, IN_ONE_CALL, LOSS, NATS, RATIO } from './units.js';

/** M2PO as in AReaL: the tokens with the largest squared log-ratios are dropped until the mean of the others is small. */
export class M2POLossFn extends policyLoss({
  name: 'm2po',
  summary: 'decoupled PPO of the tokens that are left when those with the largest (old − prox)² are dropped',
  details: [
    'Tokens are dropped until the mean of (old_logprob − prox_logprob)² is below m2_threshold. One token stays.',
    'The loss is the mean over the tokens that are left.',
  ],
  source: ['arXiv 2510.01161', 'AReaL'],
  reads: [...RATIO_KEYS, 'prox_logprob'],
  options: {
    ...clipRange(0.2, 0.2),
    ...DUAL_CLIP,
    ...TOKEN_MEAN,
    m2Threshold: number({
      default: 0.04,
      above: 0,
      typical: [0.001, 0.1],
      help: 'the mean square of the log-ratios of the tokens that are left is below this',
    }),
  },
  metrics: {
    pg_loss: LOSS,
    importance_weight: { ...RATIO, when: IN_ONE_CALL },
    approx_kl: { ...NATS, when: IN_ONE_CALL },
    clip_ratio: { ...FRACTION, when: IN_ONE_CALL },
    dual_clip_ratio: { ...FRACTION, when: IN_ONE_CALL },
    m2_masked_fraction: FRACTION,
  },
  numerics: OVERFLOWING,
  formula: (symbols, options) => {
    const { lp, old, prox, exp, max, select, square, batchSum, batchUnderMean } = symbols;
    const squares = square(old.sub(prox));
    const count = max(batchUnderMean(squares, options.m2Threshold), 1);
    // This many tokens are kept. A further pass to count them would only differ in rows that count more than once.
    const kept = isAmongSmallest(symbols, squares, count);
    const d = lp.sub(prox);
    const ppo = surrogate(symbols, exp(d), rangeOf(options));
    const { loss: perToken, cut } = limited(symbols, ppo.loss, options.clipRatioC);
    const loss = select(kept, perToken, 0).div(count);
    const keptMean = (x: Expression) => ({ batch: batchSum(select(kept, x, 0)).div(count.add(1e-8)) });
    return {
      loss,
      metrics: {
        pg_loss: lossMetric(symbols, loss),
        importance_weight: keptMean(exp(d)),
        approx_kl: keptMean(d),
        clip_ratio: keptMean(ppo.clipped),
        dual_clip_ratio: keptMean(cut),
        m2_masked_fraction: { token: kept.not() },
      },
    };
  },
}) {}

function least(side: string, value: number) {
  return number({
    default: value,
    atLeast: 0,
    typical: [0.05, 0.6],
    help: `the clip range reaches at least this far ${side} 1 if it is limited`,
  });
}

/** M2PO: tokens that moved as their advantage favours are clipped so that the mean square of log-ratios stays small. */
export class M2POClipLossFn extends policyLoss({
  name: 'm2po_clip',
  summary: 'PPO whose clip range limits the mean of (ln r)² to m2_budget',
  details: [
    'The mean is over the tokens that moved in the direction which their advantage favours.',
    'Nothing is clipped while the mean is within the budget.',
  ],
  source: ['arXiv 2510.01161', 'M2PO'],
  reads: RATIO_KEYS,
  options: {
    m2Budget: number({
      default: 0.04,
      above: 0,
      typical: [0.001, 0.1],
      help: 'the largest mean of (ln r)² without clipping',
    }),
    miniclipLow: least('below', 0.3),
    miniclipHigh: least('above', 0.5),
    lossAggMode: aggregation('token-mean'),
  },
  metrics: {
    pg_clipfrac: FRACTION,
    ppo_kl: NATS,
    clip_low: RATIO,
    clip_high: RATIO,
    m2: { unit: 'square nats' },
    m2_after: { unit: 'square nats' },
    pg_loss: LOSS,
  },
  numerics: {
    range: 'logprob − old_logprob up to 88.7',
    outside: 'the ratio is not clipped where A < 0: it overflows',
    overflows: 'for A < 0',
  },
  formula: (symbols, options) => {
    const { d, r, constant } = symbols;
    const { low, high, m2, after } = rangeWithin(symbols, options);
    const one = constant(1);
    const ppo = surrogate(symbols, r, [one.sub(low), one.add(high)]);
    return aggregated(symbols, ppo.loss, options.lossAggMode, {
      pg_clipfrac: { token: ppo.clipped },
      ppo_kl: { token: d.neg() },
      clip_low: { batch: low },
      clip_high: { batch: high },
      m2: { batch: m2 },
      m2_after: { batch: after },
    });
  },
}) {}

// Returns how far the clip range reaches, and the mean square of the log-ratios before and after clipping. Clipping all
// squares at a level leaves the sum of min(square, level); the range reaches up to the last square below the level at
// which this sum reaches the budget.
function rangeWithin(
  { A, d, exp, max, select, sg, square, sqrt, batchSum, batchRanked, batchUnderFill }: ProgramSymbols,
  options: { m2Budget: number; miniclipLow: number; miniclipHigh: number },
): Record<'low' | 'high' | 'm2' | 'after', Expression> {
  const tiny = 1e-12;
  const logRatio = sg(d);
  const hasMoved = A.gt(tiny)
    .and(logRatio.gt(0))
    .or(A.lt(-tiny).and(logRatio.lt(0)));
  // The squares of other tokens count as 0, which changes neither the sums nor how many squares are above a level.
  const squares = select(hasMoved, square(logRatio), 0);
  const n = batchSum(hasMoved);
  const m2 = batchSum(squares).div(max(n, 1));
  const below = batchUnderFill(squares, n.mul(options.m2Budget));
  const last = select(below.gt(0), batchRanked(squares, below.sub(1)), 0);
  const isBelow = squares.le(last);
  const rest = batchSum(isBelow.not()).mul(last);
  const cut = batchSum(select(isBelow, squares, 0))
    .add(rest)
    .div(max(n, 1));
  // The token with the last square is itself clipped, because the range is a little too short for it. In float32, that
  // takes a few rounding errors.
  const reach = max(sqrt(max(last.sub(tiny), 0)).sub(4e-7), 0);
  const isFree = m2.le(options.m2Budget + tiny);
  const ratio = exp(reach);
  return {
    low: select(isFree, 1, max(exp(reach.neg()).neg().add(1), options.miniclipLow)),
    high: select(isFree, 99999, max(ratio.sub(1), options.miniclipHigh)),
    m2,
    after: select(isFree, m2, select(last.gt(0), cut, m2)),
  };
}

function range(tokens: string, side: string, value: number) {
  return number({
    default: value,
    atLeast: 0,
    typical: [0.05, 0.6],
    help: `how far the clip range of tokens with a ${tokens} entropy reaches ${side} 1`,
  });
}

function cap(tokens: string) {
  return number({
    default: 3,
    above: 1,
    typical: [1.1, 5],
    help: `the largest weight of a ${tokens} token; beyond it, the token has the weight and gradient of this bound`,
  });
}

/** ASPO: a positive token weighs the more, the less likely it has become; a negative token weighs as in PPO. */
export class ASPOLossFn extends policyLoss({
  name: 'aspo',
  summary:
    'ℓ = −A·s where A < 0, −A/s elsewhere; s is the ratio, clipped on one side by a range that the entropy sets',
  details: [
    "A token's entropy is low if it is at most the quantile of its row.",
    'The gradient of −A/s is −A/r, as if s were constant but for a factor r.',
    'Weights above their bounds c are replaced: ℓ = −A·c·logprob.',
  ],
  source: ['arXiv 2510.06062', 'ASPO'],
  reads: [...RATIO_KEYS, 'entropy'],
  options: {
    entropyQuantile: number({
      default: 0.8,
      atLeast: 0,
      atMost: 1,
      typical: [0.2, 0.9],
      help: 'the quantile of the entropies of a row up to which an entropy is low',
    }),
    lowEntropyClipRangeLow: range('low', 'below', 0.2),
    highEntropyClipRangeLow: range('high', 'below', 0.4),
    lowEntropyClipRangeHigh: range('low', 'above', 0.2),
    highEntropyClipRangeHigh: range('high', 'above', 0.4),
    negativeClipRatioC: cap('negative'),
    positiveClipRatioC: cap('positive'),
    lossAggMode: aggregation('token-mean'),
  },
  metrics: {
    pg_clipfrac_upper: FRACTION,
    pg_clipfrac_lower: FRACTION,
    negative_clipfrac_dual: { ...FRACTION, when: IN_ONE_CALL },
    positive_clipfrac_dual: { ...FRACTION, when: IN_ONE_CALL },
    pg_loss: LOSS,
  },
  numerics: SATURATING,
  formula: (symbols, options) => {
    const { A, H, d, lp, n, exp, max, min, select, sg, constant, batchSum, rowRanked } = symbols;
    const ratio = exp(limitedLog(symbols, d));
    const isLow = H.le(quantile((rank) => rowRanked(H, rank), n, options.entropyQuantile));
    const low = select(isLow, 1 - options.lowEntropyClipRangeLow, 1 - options.highEntropyClipRangeLow);
    const high = select(isLow, 1 + options.lowEntropyClipRangeHigh, 1 + options.highEntropyClipRangeHigh);
    const isNegative = A.lt(0);
    const bounded = select(isNegative, max(ratio, low), min(ratio, high));
    const inverse = constant(1).div(sg(bounded));
    const flipped = bounded.mul(inverse).mul(inverse);
    const weight = select(isNegative, bounded, flipped);
    const largest = select(isNegative, options.negativeClipRatioC, options.positiveClipRatioC);
    const isTooLarge = sg(weight).gt(largest);
    const perToken = A.neg().mul(select(isTooLarge, largest.mul(lp), weight));
    const shareOf = (tokens: Expression) => ({
      batch: batchSum(isTooLarge.and(tokens)).div(batchSum(tokens).add(1e-8)),
    });
    return aggregated(symbols, perToken, options.lossAggMode, {
      pg_clipfrac_upper: { token: ratio.gt(bounded) },
      pg_clipfrac_lower: { token: ratio.lt(bounded) },
      negative_clipfrac_dual: shareOf(isNegative),
      positive_clipfrac_dual: shareOf(A.gt(0)),
    });
  },
}) {}

/** FIPO (future-KL influenced policy optimization): PPO's loss times the influence of a token on those after it. */
export class FIPOLossFn extends policyLoss({
  name: 'fipo',
  summary:
    'ℓ = sg(f)·max(−A·min(r, δ), −A·clip(r)), where f = exp(Σ γ^k·ln r over the tokens from this one on)',
  details: [
    'A token k columns later has the weight γ^k, where γ = 2^(−1/decayRate). Masked columns count as distance.',
    'Tokens whose ratio exceeds δ are left out of the sum.',
  ],
  source: ['arXiv 2603.19835', 'ms-swift'],
  reads: RATIO_KEYS,
  options: {
    ...clipRange(0.2, 0.28),
    delta: number({
      above: 0,
      typical: [1.3, 10],
      help: 'δ, the upper bound on the ratio where clipping does not bound it; none if absent',
    }),
    decayRate: number({
      default: 32,
      above: 0,
      typical: [1, 64],
      help: 'the distance in columns at which a token counts half',
    }),
    influenceClipRange: number({
      default: 0.2,
      atLeast: 0,
      nullable: true,
      typical: [0, 0.4],
      help: 'f is clipped to at most 1 + this; null or 0 for no bound',
    }),
    influenceClipHighOnly: flag({
      default: true,
      help: 'clip f to at least 1; otherwise to at least 1 − influenceClipRange',
    }),
    safetyThreshold: number({
      default: 4,
      above: 0,
      nullable: true,
      typical: [1.2, 5],
      help: 'where A < 0 and the ratio exceeds this, f is also clipped to the range from 0.8 to 1; null for never',
    }),
    ...TOKEN_MEAN,
  },
  metrics: {
    pg_loss: LOSS,
    future_kl_mean: { unit: 'nats' },
    influence_weight_mean: RATIO,
    safety_keep_ratio: FRACTION,
    low_clip: FRACTION,
    high_clip: FRACTION,
  },
  numerics: {
    range: 'logprob − old_logprob from −20 to 20',
    outside: 'ratios are not clipped where A < 0, unless delta is given: they overflow from 88 on',
    overflows: 'for A < 0',
  },
  formula: (symbols, options) => {
    const { A, d, r, clip, exp, select, sg, suffixSum, constant } = symbols;
    const { delta, influenceClipRange: range, safetyThreshold } = options;
    const counted = delta === undefined ? d : select(r.gt(delta), 0, d);
    const future = suffixSum(sg(counted), 2 ** (-1 / options.decayRate));
    const least = options.influenceClipHighOnly ? 1 : 1 - (range ?? 0);
    const influence = range ? clip(exp(future), least, 1 + range) : exp(future);
    const isUnsafe = safetyThreshold === undefined ? constant(0) : r.gt(safetyThreshold).and(A.lt(0));
    const weight = select(isUnsafe, clip(influence, 0.8, 1), influence);

    const capped = clamped(symbols, r, { high: delta });
    const outside = outsideOf(capped, A, rangeOf(options));
    const ppo = surrogate(symbols, r, rangeOf(options), { unclipped: capped });
    return aggregated(symbols, ppo.loss.mul(weight), options.lossAggMode, {
      future_kl_mean: { token: future },
      influence_weight_mean: { token: weight },
      safety_keep_ratio: { token: isUnsafe.not() },
      low_clip: { token: outside.low },
      high_clip: { token: outside.high },
    });
  },
}) {}

/** Segment PPO as in ROLL: PPO with one ratio for each contiguous run of unmasked tokens, such as a turn. */
export class SegmentPPOLossFn extends policyLoss({
  name: 'segment_ppo',
  summary:
    'ℓ = max(−A·ρ, −A·clip(ρ)), where ρ is the geometric mean of the ratios in a run of unmasked tokens',
  source: ['ROLL'],
  reads: RATIO_KEYS,
  options: { ...clipRange(0.2, 0.2), ...DUAL_CLIP, lossAggMode: aggregation('token-mean') },
  metrics: { pg_loss: LOSS, ratio_high_clipfrac: FRACTION, ratio_low_clipfrac: FRACTION },
  numerics: { ...OVERFLOWING, range: 'means of logprob − old_logprob from −20 to 20' },
  formula: (symbols, options) => {
    const ratio = symbols.exp(segmentMean(symbols, symbols.d));
    const ppo = surrogate(symbols, ratio, rangeOf(options));
    const perToken = limited(symbols, ppo.loss, options.clipRatioC).loss;
    return aggregated(symbols, perToken, options.lossAggMode, {
      ratio_high_clipfrac: { token: ratio.gt(1 + options.clipRangeHigh) },
      ratio_low_clipfrac: { token: ratio.lt(1 - options.clipRangeLow) },
    });
  },
}) {}

/** REAL: raises the mean log-ratios of the rows with a positive mean advantage over those of the group's other rows. */
export class REALLossFn extends policyLoss({
  name: 'real',
  summary:
    "a group's loss is ln(1 + Σ e^{s/τ} over its negative rows) + ln(1 + Σ e^{−s/τ} over its positive rows)",
  details: [
    's is the mean of ln r over the row. A row is positive if its mean advantage is.',
    'A group without a positive or without a negative row has no loss. The loss is the mean over all groups.',
  ],
  source: ['arXiv 2602.05630'],
  reads: [...RATIO_KEYS, 'group_ids'],
  ofRows: true,
  options: { tau: number({ default: 0.5, above: 0, typical: [0.1, 1], help: 'τ, the temperature' }) },
  metrics: { pg_loss: LOSS },
  numerics: { range: 'any finite inputs', outside: 'the exponentials do not overflow' },
  formula: (symbols, { tau }) => {
    const { A, d, rows, rowMean, rowsSum, groupSum, select, constant } = symbols;
    const score = rowMean(d).div(tau);
    const isPositive = rowMean(A).gt(0);
    const isNegative = isPositive.not();
    const ofGroup = logOnePlusSum(symbols, score, isNegative).add(
      logOnePlusSum(symbols, score.neg(), isPositive),
    );
    const hasBoth = groupSum(isPositive).gt(0).and(groupSum(isNegative).gt(0));
    const rowsOfGroup = groupSum(1);
    const groups = rowsSum(constant(1).div(rowsOfGroup));
    const rowLoss = select(hasBoth, ofGroup, 0).div(rowsOfGroup.mul(groups));
    return { rowLoss, metrics: { pg_loss: { row: rowLoss.mul(rows) } }, allRows: true };
  },
}) {}

// Returns ln(1 + Σ e^x) over those rows of the group for which the condition holds. The largest exponent is subtracted
// first, so that nothing overflows.
function logOnePlusSum(
  { groupSum, groupMax, select, exp, log, max, sg }: ProgramSymbols,
  x: Expression,
  condition: Expression,
): Expression {
  const largest = max(groupMax(select(condition, sg(x), 0)), 0);
  const sum = groupSum(select(condition, exp(x.sub(largest)), 0));
  return log(sum.add(exp(largest.neg()))).add(largest);
}
