// TRL's Dr. GRPO: the clipped surrogate, divided by a constant number of tokens per row.
import type { MetricsOf } from '../../../core/declaration.js';
import { expressionLossClass } from '../expression-loss.js';
import { POLICY_LOSS_FN } from '../policy-loss-fn.js';
import { CLIP_NUMERICS } from './clipped.js';
import { CLIPPED_FAMILY, clippedFamilyLoss, FAMILY_KEYS, familyNeeds } from './grpo-family.js';
import { COMPLETION_LENGTH } from './scale.js';

/** Dr. GRPO as in TRL: the clipped surrogate without a dual clip, divided by a constant number of tokens per row. */
export class TRLDrGRPOLossFn extends expressionLossClass(
  {
    name: 'trl/dr_grpo',
    summary: 'ℓ = −min(min(r, δ)·A, clip(r)·A), divided by a constant number of tokens per row',
    source: ['arXiv 2503.20783', 'TRL'],
    reads: FAMILY_KEYS,
    ...CLIPPED_FAMILY,
    options: { ...CLIPPED_FAMILY.options, ...COMPLETION_LENGTH },
    numerics: CLIP_NUMERICS,
  },
  (symbols, options, has) => clippedFamilyLoss(symbols, 'dr_grpo', options, has),
  familyNeeds,
) {
  static {
    POLICY_LOSS_FN.register('trl/dr_grpo', TRLDrGRPOLossFn);
  }
}

/** Options of {@link TRLDrGRPOLossFn}. */
export type TRLDrGRPOLossOptions = NonNullable<ConstructorParameters<typeof TRLDrGRPOLossFn>[0]>;
/** Metrics of {@link TRLDrGRPOLossFn}. */
export type TRLDrGRPOMetrics = MetricsOf<(typeof TRLDrGRPOLossFn)['declaration']['metrics']>;
