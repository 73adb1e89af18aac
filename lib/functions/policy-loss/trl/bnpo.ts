// TRL's BNPO: the clipped surrogate, as the mean over the tokens of this batch.
import type { MetricsOf } from '../../../core/declaration.js';
import { expressionLossClass } from '../expression-loss.js';
import { POLICY_LOSS_FN } from '../policy-loss-fn.js';
import { CLIP_NUMERICS } from './clipped.js';
import { CLIPPED_FAMILY, clippedFamilyLoss, FAMILY_KEYS, familyNeeds } from './grpo-family.js';

/** BNPO as in TRL: the clipped surrogate without a dual clip, averaged over the tokens of this batch. */
export class TRLBNPOLossFn extends expressionLossClass(
  {
    name: 'trl/bnpo',
    summary: 'ℓ = −min(min(r, δ)·A, clip(r)·A), the mean over the tokens of this batch',
    details: ['It is not Beta Normalization Policy Optimization, which has the same abbreviation.'],
    source: ['TRL'],
    reads: FAMILY_KEYS,
    ...CLIPPED_FAMILY,
    numerics: CLIP_NUMERICS,
  },
  (symbols, options, has) => clippedFamilyLoss(symbols, 'bnpo', options, has),
  familyNeeds,
) {
  static {
    POLICY_LOSS_FN.register('trl/bnpo', TRLBNPOLossFn);
  }
}

/** Options of {@link TRLBNPOLossFn}. */
export type TRLBNPOLossOptions = NonNullable<ConstructorParameters<typeof TRLBNPOLossFn>[0]>;
/** Metrics of {@link TRLBNPOLossFn}. */
export type TRLBNPOMetrics = MetricsOf<(typeof TRLBNPOLossFn)['declaration']['metrics']>;
