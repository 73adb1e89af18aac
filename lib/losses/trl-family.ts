// What the losses of TRL share. Those of its GRPO trainer are Σ weight · (k·ℓ + beta·kl) over all tokens, less an entropy
// bonus. Each of them chooses the weight and ℓ.

import { choice, flag, number } from '../base/option.js';
import type { CheckedOptions } from '../base/options.js';
import type { ColumnName } from '../batch/columns.js';
import type { Expression, ProgramSymbols } from '../program/expression.js';
import type { MetricExpression } from '../program/loss-program.js';
import { isFarOff } from './corrections.js';
import { isDividedByItems, type LossType, TRL_DIVISOR, trlWeight } from './divisors.js';
import { BETA, biasCorrected, KL_METRIC, klTerm } from './kl-terms.js';
import { isTopEntropy, TOP_ENTROPY, topEntropyNeeds } from './order-statistics.js';
import type { Has, Metrics } from './policy-loss.js';
import { RATIO_KEYS } from './policy-loss-declaration.js';
import { isOfRow, meanOrZero, minOfFilled } from './statistics.js';
import { LEAST, MOST, outsideOf, surrogate } from './surrogate.js';
import {
  BONUS,
  BONUS_METRICS,
  ENTROPY_METRIC,
  entropyMetric,
  hasBonus,
  isCorrected,
  VLLM,
  VLLM_METRICS,
  vllmCorrection,
  withBonus,
} from './trl-terms.js';
import { FRACTION, IN_ONE_CALL } from './units.js';

/** The options that set the range to which a ratio is clipped. */
export const CLIP_RANGE = {
  epsilon: number({ ...LEAST, default: 0.2 }),
  epsilonHigh: number({ ...MOST, defaultFrom: 'epsilon' }),
};

/** The options of {@link clipped}. */
export const CLIP = {
  ...CLIP_RANGE,
  delta: number({
    above: 0,
    typical: [1.5, 5],
    help: 'an upper bound on the ratio for tokens with A < 0 also (two-sided clipping); no bound if absent',
  }),
};

/** The metrics of {@link clipMetrics}. */
export const CLIP_METRICS = {
  'clip_ratio/low_mean': FRACTION,
  'clip_ratio/high_mean': FRACTION,
  'clip_ratio/region_mean': FRACTION,
  'clip_ratio/low_min': { ...FRACTION, when: IN_ONE_CALL },
  'clip_ratio/high_max': { ...FRACTION, when: IN_ONE_CALL },
};

/** How the clipped losses behave outside the range of their inputs. */
export const CLIP_NUMERICS = {
  range: 'logprob − old_logprob from −20 to 20',
  outside: 'the ratio is not clipped where A < 0 and no delta is given: it overflows from 88.7 on',
  overflows: 'for A < 0',
} as const;

/** An importance ratio. */
export interface Ratio {
  /** The ratio's logarithm. */
  readonly log: Expression;
  readonly value: Expression;
  /** Whether all tokens of a row have the same ratio. */
  readonly perRow: boolean;
}

// The ratio of a row is at most e^88, which float32 can hold.
const LARGEST_LOG_RATIO = 88;

/** Returns the ratio of each token, or the geometric mean of a row's ratios. */
export function ratioOf(symbols: ProgramSymbols, level: 'token' | 'sequence'): Ratio {
  const { d, r, exp, min, rowMean } = symbols;
  if (level === 'token') return { log: d, value: r, perRow: false };
  const log = rowMean(d);
  return { log, value: exp(min(log, LARGEST_LOG_RATIO)), perRow: true };
}

/** Returns the loss −min(min(r, δ)·A, clip(r, 1−ε, 1+ε_h)·A) of a token, and the metrics of its clipping. */
export function clipped(
  symbols: ProgramSymbols,
  { value: ratio, perRow }: Ratio,
  { epsilon, epsilonHigh, delta }: CheckedOptions<typeof CLIP>,
): { loss: Expression; metrics: Record<keyof typeof CLIP_METRICS, MetricExpression> } {
  const { A, min } = symbols;
  const unclipped = delta === undefined ? ratio : min(ratio, delta);
  const range = [1 - epsilon, 1 + epsilonHigh] as const;
  const { loss } = surrogate(symbols, ratio, range, { unclipped });
  return { loss, metrics: clipMetrics(symbols, outsideOf(unclipped, A, range), perRow && isOfRow(A)) };
}

/**
 * Returns the metrics of clipping.
 * @param perRow whether a whole row is clipped or not. The metrics then count rows, including those without tokens.
 */
export function clipMetrics(
  symbols: ProgramSymbols,
  { low, high }: { low: Expression; high: Expression },
  perRow: boolean,
): Record<keyof typeof CLIP_METRICS, MetricExpression> {
  const { rowsMin, rowsMax } = symbols;
  const mean = (flag: Expression) => (perRow ? { row: flag } : { token: flag });
  // The ratio of a row without tokens is 1.
  const ofRow = (flag: Expression) => (perRow ? flag : meanOrZero(symbols, flag));
  return {
    'clip_ratio/low_mean': mean(low),
    'clip_ratio/high_mean': mean(high),
    'clip_ratio/region_mean': mean(low.or(high)),
    'clip_ratio/low_min': { batch: perRow ? rowsMin(low) : minOfFilled(symbols, ofRow(low)) },
    'clip_ratio/high_max': { batch: rowsMax(ofRow(high)) },
  };
}

/** The option that chooses the ratio. */
const RATIO_LEVEL = {
  importanceSamplingLevel: choice(['token', 'sequence'], {
    default: 'token',
    help: 'whether each token has its own ratio, or all tokens of a row have the geometric mean of their ratios',
  }),
};

const MASK_AND_KL = {
  offPolicyMaskThreshold: number({
    above: 0,
    typical: [0.01, 0.5],
    help: 'tokens with A < 0 do not count in rows whose mean log-ratio, of the sampling to the current policy, exceeds this; all count if absent',
  }),
  useBiasCorrectionKl: flag({
    default: false,
    help: 'whether the KL term is multiplied by the importance ratio',
  }),
};

/** The options that all losses of the family have. */
export const FAMILY_OPTIONS = {
  ...RATIO_LEVEL,
  ...TOP_ENTROPY,
  ...MASK_AND_KL,
  ...BETA,
  ...VLLM,
  ...BONUS,
  ...TRL_DIVISOR,
};

/** The metrics that all losses of the family have. */
export const FAMILY_METRICS = { ...KL_METRIC, ...VLLM_METRICS, ...BONUS_METRICS, ...ENTROPY_METRIC };

/** The common part of the statements of the family. */
export const FAMILY = {
  // The last three depend on the options and on the batch.
  reads: [...RATIO_KEYS, 'ref_logprob', 'rollout_logprob', 'entropy'],
  optional: ['old_logprob', 'entropy'],
  perRow: ['advantages'],
  needs: (options: FamilyOptions): ColumnName[] => {
    const needed: ColumnName[] = isCorrected(options) ? ['old_logprob'] : [];
    return hasBonus(options) ? [...needed, 'entropy'] : [...needed, ...topEntropyNeeds(options)];
  },
} as const;

/** The common part of the statements of the family with the clipped surrogate. */
export const CLIPPED_FAMILY = {
  ...FAMILY,
  options: { ...CLIP, ...FAMILY_OPTIONS },
  metrics: { ...CLIP_METRICS, ...FAMILY_METRICS },
  numerics: CLIP_NUMERICS,
};

type FamilyOptions = CheckedOptions<typeof FAMILY_OPTIONS>;

/** The loss ℓ of a token. */
interface TokenLoss<M extends Metrics> {
  readonly loss: Expression;
  readonly metrics: M;
  /** Whether ℓ already includes the vLLM correction. */
  readonly isCorrected?: boolean;
  /** Whether rows without tokens count in the metrics. */
  readonly allRows?: boolean;
}

/** Returns ℓ for a ratio, and for the weight of the vLLM correction if there is one. */
type TokenLossOf<M extends Metrics> = (ratio: Ratio, correction: Expression | undefined) => TokenLoss<M>;

/** Builds a loss of the family. */
export function familyLoss<M extends Metrics>(
  symbols: ProgramSymbols,
  type: LossType,
  options: FamilyOptions,
  has: Has,
  tokenLoss: TokenLossOf<M>,
) {
  const ratio = ratioOf(symbols, options.importanceSamplingLevel);
  const { loss, metrics, allRows } = policyTerm(symbols, options, ratio, tokenLoss);
  const weight = trlWeight(symbols, type, options);
  const isTop = isTopEntropy(symbols, options);
  const ofTop = isTop ? { ...symbols, tokens: symbols.batchSum(isTop) } : symbols;
  const weighted = loss.mul(weight);
  // The mean entropy of an accumulation step is that of bnpo's loss.
  const bonus = isDividedByItems(type)
    ? withBonus(symbols, options, weighted, weight, 1, isTop)
    : withBonus(
        symbols,
        options,
        weighted,
        trlWeight(ofTop, 'bnpo', options),
        options.gradientAccumulationSteps,
        isTop,
      );
  return {
    loss: bonus.loss,
    metrics: { ...metrics, ...bonus.metrics, ...entropyMetric(symbols, has) },
    allRows,
  };
}

/** Builds a loss of the family with the clipped surrogate. */
export function clippedFamilyLoss(
  symbols: ProgramSymbols,
  type: LossType,
  options: CheckedOptions<typeof CLIPPED_FAMILY.options>,
  has: Has,
) {
  return familyLoss(symbols, type, options, has, (ratio) => clipped(symbols, ratio, options));
}

type TermOptions = CheckedOptions<typeof VLLM & typeof BETA & typeof TOP_ENTROPY> &
  Partial<CheckedOptions<typeof MASK_AND_KL>>;

/** Returns k·ℓ + beta·kl of a token, without its weight in the batch. */
export function policyTerm<M extends Metrics>(
  symbols: ProgramSymbols,
  options: TermOptions,
  ratio: Ratio,
  tokenLoss: TokenLossOf<M>,
) {
  const correction = vllmCorrection(symbols, options);
  const { loss, metrics, isCorrected, allRows } = tokenLoss(ratio, correction.weight);
  const corrected = correction.weight && !isCorrected ? loss.mul(correction.weight) : loss;
  const isTop = isTopEntropy(symbols, options);
  const kept = withoutFarRows(symbols, options, isTop ? symbols.select(isTop, corrected, 0) : corrected);
  const plain = klTerm(symbols, options);
  const kl =
    plain && options.useBiasCorrectionKl ? biasCorrected(symbols, plain, ratio.value, ratio.perRow) : plain;
  return {
    loss: kl ? kept.add(kl.mul(options.beta)) : kept,
    metrics: { ...metrics, ...correction.metrics, kl: kl && { token: kl } },
    allRows: ratio.perRow || correction.perRow || allRows === true,
  };
}

// Replaces the losses of tokens with A < 0 with 0 in rows that the current policy would hardly have sampled.
function withoutFarRows(
  symbols: ProgramSymbols,
  { offPolicyMaskThreshold, useVllm }: TermOptions,
  loss: Expression,
): Expression {
  if (offPolicyMaskThreshold === undefined) return loss;
  const sampled = useVllm ? symbols.rollout : symbols.old;
  return symbols.select(isFarOff(symbols, sampled, offPolicyMaskThreshold), 0, loss);
}
