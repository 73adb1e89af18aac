// verl's rollout correction.
import type { MetricsOf } from '../../../core/declaration.js';
import { CORRECTION_FN, correctionClass } from '../correction-fn.js';
import { rolloutCorrection } from './rollout-expressions.js';
import { CORRECTION_METRICS } from './rollout-metrics.js';
import { ROLLOUT_CORRECTION } from './rollout-weights.js';

/** The rollout correction of verl: importance weights of tokens or rows, and rejection by statistics. */
export class VerlRolloutCorrectionFn extends correctionClass(
  {
    name: 'verl/rollout_correction',
    summary: 'weights exp(old_logprob − rollout_logprob), of tokens or rows, and rejection by statistics',
    details: [
      'rollout_is chooses the weights: one bound truncates them, and two bounds set weights outside to 0.',
      'rollout_rs lists the statistics by which tokens or rows are rejected. Tokens that pass all of them are kept.',
    ],
    source: ['arXiv 2110.00641', 'arXiv 2512.23075', 'verl'],
    reads: ['old_logprob', 'rollout_logprob', 'action_mask'],
    options: {
      ...ROLLOUT_CORRECTION,
      bypassMode: {
        type: 'boolean',
        default: false,
        help: 'whether logprob takes the place of old_logprob',
      },
    },
    metrics: CORRECTION_METRICS,
    numerics: {
      range: 'old_logprob − rollout_logprob from −20 to 20',
      outside: 'the weights clip the log-ratio to this range',
    },
  },
  (symbols, { bypassMode, ...options }, owner) => {
    const { lp, old, rollout, sg } = symbols;
    return rolloutCorrection(owner, symbols, options, bypassMode ? sg(lp) : old, rollout);
  },
) {
  static {
    CORRECTION_FN.register('verl/rollout_correction', VerlRolloutCorrectionFn);
  }
}

/** Options of {@link VerlRolloutCorrectionFn}. */
export type VerlRolloutCorrectionOptions = NonNullable<
  ConstructorParameters<typeof VerlRolloutCorrectionFn>[0]
>;
/** Metrics of {@link VerlRolloutCorrectionFn}. */
export type VerlRolloutCorrectionMetrics = MetricsOf<
  (typeof VerlRolloutCorrectionFn)['declaration']['metrics']
>;
