// PPO with the corrections for samples of another policy that seven frameworks have.
import type { MetricsOf } from '../../../core/declaration.js';
import { aggregationOption } from '../../../core/options.js';
import { expressionLossClass } from '../expression-loss.js';
import { POLICY_LOSS_FN, RATIO_KEYS } from '../policy-loss-fn.js';
import { aggregated } from './aggregation.js';
import { CORRECTION, keptOf, weightOf } from './corrections.js';
import { clipRange, DUAL_CLIP, limited, surrogateOf } from './surrogate.js';

/**
 * PPO with importance weights for samples of another policy, and with rejected tokens. A rejected token has no loss, but
 * counts in every divisor.
 */
export class CorrectedPPOLossFn extends expressionLossClass(
  {
    name: 'corrected_ppo',
    summary: 'ℓ = kept·ω·max(−A·r, −A·clip(r)), where ω corrects for the sampler',
    details: [
      'Truncated importance sampling (TIS): isLevel token, isMode truncate, isUpper 2.',
      'IcePop: isLevel token, isMode mask, isLower 0.5, isUpper 5.',
      'Off-policy sequence masking (OPSM): opsmDelta 1e-4.',
    ],
    source: ['NeMo-RL', 'OpenRLHF', 'SkyRL', 'slime', 'open-instruct', 'ROLL', 'ms-swift'],
    reads: [...RATIO_KEYS, 'rollout_logprob'],
    options: {
      ...clipRange(0.2, 0.28),
      ...DUAL_CLIP,
      lossAggMode: aggregationOption('token-mean'),
      ...CORRECTION,
    },
    metrics: {
      pg_loss: { unit: 'loss' },
      pg_clipfrac: { unit: 'fraction of tokens' },
      ppo_kl: { unit: 'nats per token' },
      is_ratio_mean: { unit: 'ratio', when: 'with weights' },
      is_clipfrac: { unit: 'fraction of tokens', when: 'with weights' },
      reject_fraction: { unit: 'fraction of tokens' },
    },
    numerics: {
      range: 'differences of log-probabilities from −20 to 20',
      outside: 'ratios overflow from 88 on, unless log_ratio_bound limits them',
      overflows: 'for A < 0',
    },
  },
  (symbols, options) => {
    const { r, d, select } = symbols;
    const correction = weightOf(symbols, options);
    const kept = keptOf(symbols, options);
    const ppo = surrogateOf(symbols, r, options);
    const perToken = limited(symbols, ppo.loss, options.clipRatioC).loss;
    const weighted = correction ? perToken.mul(correction.weight) : perToken;
    const { loss, pg_loss } = aggregated(symbols, select(kept, weighted, 0), options.lossAggMode);
    return {
      loss,
      metrics: {
        pg_loss,
        pg_clipfrac: { token: ppo.clipped },
        ppo_kl: { token: d.neg() },
        is_ratio_mean: correction && { token: correction.ratio },
        is_clipfrac: correction && { token: correction.isInside.not() },
        reject_fraction: { token: kept.not() },
      },
    };
  },
) {
  static {
    POLICY_LOSS_FN.register('corrected_ppo', CorrectedPPOLossFn);
  }
}

/** Options of {@link CorrectedPPOLossFn}. */
export type CorrectedPPOLossOptions = NonNullable<ConstructorParameters<typeof CorrectedPPOLossFn>[0]>;
/** Metrics of {@link CorrectedPPOLossFn}. */
export type CorrectedPPOMetrics = MetricsOf<(typeof CorrectedPPOLossFn)['declaration']['metrics']>;
