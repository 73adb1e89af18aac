// TRL's CISPO: REINFORCE with a bounded importance weight.
import type { MetricsOf } from '../../../core/declaration.js';
import { expressionLossClass } from '../expression-loss.js';
import { POLICY_LOSS_FN } from '../policy-loss-fn.js';
import { CLIP_RANGE } from './clipped.js';
import {
  FAMILY,
  FAMILY_BATCHES,
  FAMILY_KEYS,
  FAMILY_METRICS,
  familyLoss,
  familyNeeds,
} from './grpo-family.js';
import { isOfRow, meanOfRow } from './rows.js';

/** CISPO as in TRL: the importance weight is bounded above by epsilonHigh itself. */
export class TRLCISPOLossFn extends expressionLossClass(
  {
    name: 'trl/cispo',
    summary: 'ℓ = −A·sg(min(r, epsilonHigh))·logprob, the mean over the tokens of the global batch',
    details: [
      'With the default arguments the weight is at most 0.2, not 1.2; TRL recommends epsilonHigh = 5.',
      'The paper clips the weight on both sides.',
    ],
    source: ['arXiv 2506.13585', 'arXiv 2510.13786', 'TRL'],
    reads: FAMILY_KEYS,
    ...FAMILY_BATCHES,
    options: {
      epsilon: { ...CLIP_RANGE.epsilon, help: 'the default of epsilonHigh' },
      epsilonHigh: { ...CLIP_RANGE.epsilonHigh, typical: [0.2, 5], help: 'the upper bound on the weight' },
      ...FAMILY,
    },
    metrics: { cispo_clip_ratio: { unit: 'fraction of tokens' }, ...FAMILY_METRICS },
    numerics: {
      range: 'any finite logprobs and advantages',
      outside: 'the ratio overflows and is bounded: loss and gradient are finite',
    },
  },
  (symbols, options, has) => {
    const { A, lp, sg, min } = symbols;
    const { epsilonHigh } = options;
    return familyLoss(symbols, 'cispo', options, has, ({ value: ratio, perRow }) => {
      const isBounded = ratio.gt(epsilonHigh).and(A.gt(0));
      return {
        loss: A.neg()
          .mul(sg(min(ratio, epsilonHigh)))
          .mul(lp),
        metrics: {
          cispo_clip_ratio:
            perRow && isOfRow(A) ? { row: meanOfRow(symbols, isBounded) } : { token: isBounded },
        },
      };
    });
  },
  familyNeeds,
) {
  static {
    POLICY_LOSS_FN.register('trl/cispo', TRLCISPOLossFn);
  }
}

/** Options of {@link TRLCISPOLossFn}. */
export type TRLCISPOLossOptions = NonNullable<ConstructorParameters<typeof TRLCISPOLossFn>[0]>;
/** Metrics of {@link TRLCISPOLossFn}. */
export type TRLCISPOMetrics = MetricsOf<(typeof TRLCISPOLossFn)['declaration']['metrics']>;
