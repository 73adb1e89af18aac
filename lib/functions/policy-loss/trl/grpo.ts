// TRL's GRPO: the clipped surrogate, as the mean over each row, then over the rows.
import type { MetricsOf } from '../../../core/declaration.js';
import { expressionLossClass } from '../expression-loss.js';
import { POLICY_LOSS_FN } from '../policy-loss-fn.js';
import { CLIP_NUMERICS } from './clipped.js';
import { CLIPPED_FAMILY, clippedFamilyLoss, FAMILY_KEYS, familyNeeds } from './grpo-family.js';

/** GRPO as in TRL: the clipped surrogate without a dual clip, averaged over the tokens of each row and over the rows. */
export class TRLGRPOLossFn extends expressionLossClass(
  {
    name: 'trl/grpo',
    summary: 'ℓ = −min(min(r, δ)·A, clip(r)·A), the mean over each row, then over the rows',
    source: ['arXiv 2402.03300', 'TRL'],
    reads: FAMILY_KEYS,
    ...CLIPPED_FAMILY,
    numerics: CLIP_NUMERICS,
  },
  (symbols, options, has) => clippedFamilyLoss(symbols, 'grpo', options, has),
  familyNeeds,
) {
  static {
    POLICY_LOSS_FN.register('trl/grpo', TRLGRPOLossFn);
  }
}

/** Options of {@link TRLGRPOLossFn}. */
export type TRLGRPOLossOptions = NonNullable<ConstructorParameters<typeof TRLGRPOLossFn>[0]>;
/** Metrics of {@link TRLGRPOLossFn}. */
export type TRLGRPOMetrics = MetricsOf<(typeof TRLGRPOLossFn)['declaration']['metrics']>;
