// What the losses of TRL's GRPO trainer have in common: Σ weight · (k·ℓ + beta·kl) over all tokens, less an entropy bonus.
// Each loss of the trainer chooses the weight and ℓ.

import type { ColumnName } from '../../../core/native-batch.js';
import type { CheckedOptions } from '../../../core/options.js';
import type { Expression, ProgramSymbols } from '../../../program/expression.js';
import { isFarOff } from '../../correction/masks.js';
import { isTopEntropy, TOP_ENTROPY, topEntropyNeeds } from '../../correction/top-entropy.js';
import type { LossType } from '../aggregation.js';
import type { Has, MetricExpression } from '../expression-loss.js';
import { RATIO_KEYS } from '../policy-loss-fn.js';
import { CLIP, CLIP_METRICS, clipped } from './clipped.js';
import { BONUS, BONUS_METRICS, ENTROPY_METRIC, entropyMetric, hasBonus, withBonus } from './entropy-bonus.js';
import { BETA, biasCorrected, KL_METRIC, klTerm } from './kl-term.js';
import { RATIO_LEVEL, type Ratio, ratioOf } from './ratio.js';
import { isDividedByItems, meanWeight, SCALE, weightOf } from './scale.js';
import { isCorrected, VLLM, VLLM_METRICS, vllmCorrection } from './vllm-correction.js';

const MASK_AND_KL = {
  offPolicyMaskThreshold: {
    type: 'number',
    above: 0,
    typical: [0.01, 0.5],
    help: 'tokens with A < 0 do not count in rows whose mean log-ratio, of the sampling to the current policy, exceeds this; all count if absent',
  },
  useBiasCorrectionKl: {
    type: 'boolean',
    default: false,
    help: 'whether the KL term is multiplied by the importance ratio',
  },
} as const;

/** The options that all losses of the family have. */
export const FAMILY = {
  ...RATIO_LEVEL,
  ...TOP_ENTROPY,
  ...MASK_AND_KL,
  ...BETA,
  ...VLLM,
  ...BONUS,
  ...SCALE,
} as const;

/** The declarations of the metrics that all losses of the family have. */
export const FAMILY_METRICS = {
  ...KL_METRIC,
  ...VLLM_METRICS,
  ...BONUS_METRICS,
  ...ENTROPY_METRIC,
} as const;

/** The batch keys that a loss of the family can read. The last three depend on its options and on the batch. */
export const FAMILY_KEYS = [...RATIO_KEYS, 'ref_logprob', 'rollout_logprob', 'entropy'] as const;

/** The columns that a batch may lack, or may have one value per row of. */
export const FAMILY_BATCHES = { optional: ['old_logprob', 'entropy'], perRow: ['advantages'] } as const;

/** Returns the optional columns that a loss of the family needs with its options. */
export function familyNeeds(options: FamilyOptions): ColumnName[] {
  const needed: ColumnName[] = isCorrected(options) ? ['old_logprob'] : [];
  return hasBonus(options) ? [...needed, 'entropy'] : [...needed, ...topEntropyNeeds(options)];
}

/** The declaration of the losses with the clipped surrogate. */
export const CLIPPED_FAMILY = {
  ...FAMILY_BATCHES,
  options: { ...CLIP, ...FAMILY },
  metrics: { ...CLIP_METRICS, ...FAMILY_METRICS },
} as const;

type FamilyOptions = CheckedOptions<typeof FAMILY>;
type Metrics = Record<string, MetricExpression | undefined>;

/** The loss ℓ of a token. */
export interface TokenLoss<M extends Metrics> {
  readonly loss: Expression;
  readonly metrics: M;
  /** Whether ℓ already includes the vLLM correction. */
  readonly isCorrected?: boolean;
  /** Whether rows without tokens count in the metrics. */
  readonly allRows?: boolean;
}

/** Returns ℓ for a ratio, and for the weight of the vLLM correction if there is one. */
type Surrogate<M extends Metrics> = (ratio: Ratio, correction: Expression | undefined) => TokenLoss<M>;

/** Builds a loss of the family. */
export function familyLoss<M extends Metrics>(
  symbols: ProgramSymbols,
  type: LossType,
  options: FamilyOptions,
  has: Has,
  surrogate: Surrogate<M>,
) {
  const { loss, metrics, allRows } = policyTerm(
    symbols,
    options,
    ratioOf(symbols, options.importanceSamplingLevel),
    surrogate,
  );
  const weight = weightOf(symbols, type, options);
  const isTop = isTopEntropy(symbols, options.topEntropyQuantile);
  const ofTop = isTop ? { ...symbols, tokens: symbols.batchSum(isTop) } : symbols;
  const bonus = isDividedByItems(type)
    ? withBonus(symbols, options, loss.mul(weight), weight, 1, isTop)
    : withBonus(
        symbols,
        options,
        loss.mul(weight),
        meanWeight(ofTop, options),
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
  surrogate: Surrogate<M>,
) {
  const correction = vllmCorrection(symbols, options);
  const { loss, metrics, isCorrected, allRows } = surrogate(ratio, correction.weight);
  const corrected = correction.weight && !isCorrected ? loss.mul(correction.weight) : loss;
  const isTop = isTopEntropy(symbols, options.topEntropyQuantile);
  const kept = withoutFarRows(symbols, options, isTop ? symbols.select(isTop, corrected, 0) : corrected);
  const plain = klTerm(symbols, options);
  const kl = plain && options.useBiasCorrectionKl ? biasCorrected(symbols, plain, ratio) : plain;
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
