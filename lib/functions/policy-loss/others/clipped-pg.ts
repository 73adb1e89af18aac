// NeMo-RL's loss with all its options.
import type { MetricsOf } from '../../../core/declaration.js';
import { lossMetric } from '../../../program/loss-program.js';
import { expressionLossClass } from '../expression-loss.js';
import { POLICY_LOSS_FN, RATIO_KEYS } from '../policy-loss-fn.js';
import { aggregated, MEANS } from './aggregation.js';
import {
  CLIPPED_PG,
  clippedRatio,
  extremesOf,
  importanceOf,
  klPenalty,
  mismatchMetrics,
  positiveLoss,
  ratioOf,
} from './clipped-pg-terms.js';
import { limited } from './surrogate.js';

const OF_TOKENS = 'when the whole batch is computed in one call and has unmasked tokens';

/**
 * NeMo-RL's loss: a clipped surrogate or CISPO, importance weights for the sampler, a KL penalty whose gradient includes
 * that of the token's probability, and the likelihood of rows with a positive reward.
 */
export class ClippedPGLossFn extends expressionLossClass(
  {
    name: 'clipped_pg',
    summary: 'ℓ = ω·max(−A·ρ, −A·clip(ρ)) + β·KL − μ·logprob, the last term in rows with a positive reward',
    details: ['sampling_importance_ratio counts each row once at the level of sequences.'],
    source: ['arXiv 2506.09477', 'NeMo-RL'],
    reads: [...RATIO_KEYS, 'rollout_logprob', 'ref_logprob', 'rewards'],
    options: { ...CLIPPED_PG, ...MEANS },
    metrics: {
      pg_loss: { unit: 'loss' },
      probs_ratio: { unit: 'ratio' },
      probs_ratio_clamped: { unit: 'ratio' },
      probs_ratio_min: { unit: 'ratio', when: OF_TOKENS },
      probs_ratio_max: { unit: 'ratio', when: OF_TOKENS },
      probs_ratio_clamped_min: { unit: 'ratio', when: OF_TOKENS },
      probs_ratio_clamped_max: { unit: 'ratio', when: OF_TOKENS },
      kl_penalty: { unit: 'nats' },
      token_mult_prob_error: { unit: 'ratio' },
      gen_kl_error: { unit: 'nats per token' },
      policy_kl_error: { unit: 'nats per token' },
      js_divergence_error: { unit: 'nats per token' },
      approx_entropy: { unit: 'nats per token' },
      sampling_importance_ratio: { unit: 'ratio' },
      is_oob_ratio: { unit: 'fraction', when: 'with bounds on the weights' },
      positive_nll_loss: { unit: 'nats per token' },
    },
    numerics: {
      range: 'differences of log-probabilities from −20 to 20',
      outside: 'ratios are not clipped where A < 0: they overflow from 88 on',
      overflows: 'for A < 0',
      /** The policy gradient and the KL term, which is at most 10, cancel each other. This is the KL term. */
      cancels: ({ logprob, refLogprob }) => {
        const beta = CLIPPED_PG.referencePolicyKlPenalty.default;
        const kl = Math.min(Math.expm1(refLogprob - logprob) - (refLogprob - logprob), 10);
        return { value: beta * kl, gradient: beta * (kl + 1) };
      },
    },
  },
  (symbols, options) => {
    const { A, lp, max, sg, constant } = symbols;
    const { lossAggMode } = options;
    const ratio = ratioOf(symbols, options);
    const clipped = clippedRatio(symbols, options, ratio);
    const reinforced = options.useCispo
      ? A.neg().mul(sg(clipped)).mul(lp)
      : max(A.neg().mul(ratio), A.neg().mul(clipped));
    const perToken = limited(symbols, reinforced, options.ratioClipC).loss;
    const importance = importanceOf(symbols, options);
    const corrected = options.useImportanceSamplingCorrection ? perToken.mul(importance.weight) : perToken;

    const beta = options.referencePolicyKlPenalty;
    const kl = beta === 0 ? constant(0) : klPenalty(symbols, options);
    const share = options.positiveExampleNllWeight;
    const likelihood = share === 0 ? constant(0) : positiveLoss(symbols);
    const loss = aggregated(symbols, corrected.add(kl.mul(beta)), lossAggMode).loss.add(
      likelihood.mul(share),
    );
    const { smallest, largest } = extremesOf(symbols, ratio);
    return {
      loss,
      metrics: {
        pg_loss: lossMetric(symbols, loss),
        probs_ratio: { token: ratio },
        probs_ratio_clamped: { token: clipped },
        probs_ratio_min: { batch: smallest },
        probs_ratio_max: { batch: largest },
        probs_ratio_clamped_min: { batch: clippedRatio(symbols, options, smallest) },
        probs_ratio_clamped_max: { batch: clippedRatio(symbols, options, largest) },
        kl_penalty: aggregated(symbols, kl, lossAggMode).pg_loss,
        ...mismatchMetrics(symbols, options),
        sampling_importance_ratio: importance.mean,
        is_oob_ratio: importance.outside,
        positive_nll_loss: share === 0 ? { token: 0 } : lossMetric(symbols, likelihood),
      },
      // Rows without tokens count among the rows whose weights are averaged. Their weight is 1.
      allRows: options.sequenceLevelImportanceRatios,
    };
  },
) {
  static {
    POLICY_LOSS_FN.register('clipped_pg', ClippedPGLossFn);
  }
}

/** Options of {@link ClippedPGLossFn}. */
export type ClippedPGLossOptions = NonNullable<ConstructorParameters<typeof ClippedPGLossFn>[0]>;
/** Metrics of {@link ClippedPGLossFn}. */
export type ClippedPGMetrics = MetricsOf<(typeof ClippedPGLossFn)['declaration']['metrics']>;
