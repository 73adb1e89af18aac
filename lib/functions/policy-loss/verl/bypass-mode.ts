// verl's bypass mode: the log-probabilities that the inference engine reported are the old ones.
import type { MetricsOf } from '../../../core/declaration.js';
import { rolloutCorrection } from '../../correction/verl/rollout-expressions.js';
import { CORRECTION_METRICS } from '../../correction/verl/rollout-metrics.js';
import { ROLLOUT_CORRECTION } from '../../correction/verl/rollout-weights.js';
import { expressionLossClass } from '../expression-loss.js';
import { POLICY_LOSS_FN, RATIO_KEYS } from '../policy-loss-fn.js';
import { AGGREGATION, weightOf } from './aggregation.js';
import { CLIP_METRICS, CLIP_RATIO, CLIP_RATIO_C, dualClipped } from './clipped.js';
import { underCorrection } from './corrected.js';

const ONLY_PPO = "with loss_type 'ppo_clip'";

/** PPO or REINFORCE under a rollout correction that compares the current policy with old_logprob, as in verl. */
export class VerlBypassModeLossFn extends expressionLossClass(
  {
    name: 'verl/bypass_mode',
    summary: 'ppo_clip: PPO; reinforce: ℓ = −A·W·logprob, W = importance weight',
    details: [
      'old_logprob is what the inference engine reported. The rollout correction compares logprob with it.',
      'PPO corrects by its own ratio, so its loss does not use the weights.',
    ],
    source: ['arXiv 2512.23075', 'verl'],
    reads: RATIO_KEYS,
    options: {
      lossType: {
        type: 'choice',
        choices: ['ppo_clip', 'reinforce'],
        default: 'ppo_clip',
        help: 'the loss that is corrected',
      },
      ...CLIP_RATIO,
      ...CLIP_RATIO_C,
      ...AGGREGATION,
      ...ROLLOUT_CORRECTION,
    },
    metrics: {
      pg_clipfrac: { ...CLIP_METRICS.pg_clipfrac, when: ONLY_PPO },
      pg_clipfrac_lower: { ...CLIP_METRICS.pg_clipfrac_lower, when: ONLY_PPO },
      ppo_kl: CLIP_METRICS.ppo_kl,
      pg_loss: { unit: 'loss' },
      ...CORRECTION_METRICS,
    },
    numerics: {
      range: 'logprob − old_logprob from −20 to 20',
      outside: 'PPO clips the log-ratio to this range, and the weights do so too',
    },
  },
  (symbols, options) => {
    const owner = 'VerlBypassModeLossFn';
    const { lp, old, sg } = symbols;
    const correction = rolloutCorrection(owner, symbols, options, sg(lp), old);
    if (options.lossType === 'ppo_clip')
      return underCorrection(symbols, { ...correction, weight: undefined }, (kept) => {
        const { perToken, metrics } = dualClipped(kept, kept.A, options);
        return { loss: perToken.mul(weightOf(owner, kept, options)), metrics };
      });
    const { metrics, ...loss } = underCorrection(symbols, correction, (kept) => ({
      loss: kept.A.neg()
        .mul(kept.lp)
        .mul(weightOf(owner, kept, options)),
      metrics: { ppo_kl: { token: kept.d.neg() } },
    }));
    return { ...loss, metrics: { ...metrics, pg_clipfrac: undefined, pg_clipfrac_lower: undefined } };
  },
) {
  static {
    POLICY_LOSS_FN.register('verl/bypass_mode', VerlBypassModeLossFn);
  }
}

/** Options of {@link VerlBypassModeLossFn}. */
export type VerlBypassModeLossOptions = NonNullable<ConstructorParameters<typeof VerlBypassModeLossFn>[0]>;
/** Metrics of {@link VerlBypassModeLossFn}. */
export type VerlBypassModeMetrics = MetricsOf<(typeof VerlBypassModeLossFn)['declaration']['metrics']>;
