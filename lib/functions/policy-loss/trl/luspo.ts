// TRL's LUSPO: the clipped surrogate with one ratio per row, summed over the tokens of each row.
import type { MetricsOf } from '../../../core/declaration.js';
import { expressionLossClass } from '../expression-loss.js';
import { POLICY_LOSS_FN } from '../policy-loss-fn.js';
import { CLIPPED_FAMILY, clippedFamilyLoss, FAMILY_KEYS, familyNeeds } from './grpo-family.js';

/** LUSPO as in TRL: the clipped surrogate with one ratio per row, summed over each row and averaged over the rows. */
export class TRLLUSPOLossFn extends expressionLossClass(
  {
    name: 'trl/luspo',
    summary: 'ℓ = −min(min(r, δ)·A, clip(r)·A), summed over each row; r is the geometric mean of the row',
    details: ['Where losses differ within a row, TRL also reads masked tokens. This function does not.'],
    source: ['arXiv 2602.05261', 'TRL'],
    reads: FAMILY_KEYS,
    ...CLIPPED_FAMILY,
    options: {
      ...CLIPPED_FAMILY.options,
      importanceSamplingLevel: { ...CLIPPED_FAMILY.options.importanceSamplingLevel, default: 'sequence' },
    },
    numerics: {
      range: 'mean log-ratios of rows up to 88',
      outside: 'the ratio of a row is at most e^88, and has no gradient there',
    },
  },
  (symbols, options, has) => clippedFamilyLoss(symbols, 'luspo', options, has),
  familyNeeds,
) {
  static {
    POLICY_LOSS_FN.register('trl/luspo', TRLLUSPOLossFn);
  }
}

/** Options of {@link TRLLUSPOLossFn}. */
export type TRLLUSPOLossOptions = NonNullable<ConstructorParameters<typeof TRLLUSPOLossFn>[0]>;
/** Metrics of {@link TRLLUSPOLossFn}. */
export type TRLLUSPOMetrics = MetricsOf<(typeof TRLLUSPOLossFn)['declaration']['metrics']>;
