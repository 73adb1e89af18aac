// TRL's DAPO: the clipped surrogate, as the mean over the tokens of the global batch.
import type { MetricsOf } from '../../../core/declaration.js';
import { expressionLossClass } from '../expression-loss.js';
import { POLICY_LOSS_FN } from '../policy-loss-fn.js';
import { CLIP_NUMERICS } from './clipped.js';
import { CLIPPED_FAMILY, clippedFamilyLoss, FAMILY_KEYS, familyNeeds } from './grpo-family.js';

/** DAPO as in TRL: the clipped surrogate without a dual clip, averaged over all tokens of a global batch. */
export class TRLDAPOLossFn extends expressionLossClass(
  {
    name: 'trl/dapo',
    summary: 'ℓ = −min(min(r, δ)·A, clip(r)·A), the mean over the tokens of the global batch',
    source: ['arXiv 2503.14476', 'TRL'],
    reads: FAMILY_KEYS,
    ...CLIPPED_FAMILY,
    numerics: CLIP_NUMERICS,
  },
  (symbols, options, has) => clippedFamilyLoss(symbols, 'dapo', options, has),
  familyNeeds,
) {
  static {
    POLICY_LOSS_FN.register('trl/dapo', TRLDAPOLossFn);
  }
}

/** Options of {@link TRLDAPOLossFn}. */
export type TRLDAPOLossOptions = NonNullable<ConstructorParameters<typeof TRLDAPOLossFn>[0]>;
/** Metrics of {@link TRLDAPOLossFn}. */
export type TRLDAPOMetrics = MetricsOf<(typeof TRLDAPOLossFn)['declaration']['metrics']>;
