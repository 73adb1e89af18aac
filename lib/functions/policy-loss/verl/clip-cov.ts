// verl's Clip-Cov: PPO without some tokens, drawn at random, whose advantage and log-probability vary together.
import type { MetricsOf } from '../../../core/declaration.js';
import { CORRECTION_METRICS } from '../../correction/verl/rollout-metrics.js';
import { ROLLOUT_CORRECTION } from '../../correction/verl/rollout-weights.js';
import { isAmongSmallest } from '../../order-statistics.js';
import { expressionLossClass } from '../expression-loss.js';
import { POLICY_LOSS_FN } from '../policy-loss-fn.js';
import { AGGREGATION, weightOf } from './aggregation.js';
import { CLIP_RATIO } from './clipped.js';
import { CORRECTED_KEYS, corrected } from './corrected.js';
import { covariance } from './covariance.js';

const CHOICE = {
  clipCovRatio: {
    type: 'number',
    default: 2e-4,
    above: 0,
    typical: [0.05, 0.5],
    help: 'the fraction of the tokens that are drawn; at least one is',
  },
  clipCovLb: {
    type: 'number',
    default: 1,
    typical: [-0.5, 1],
    help: 'tokens are drawn among those with a covariance above this',
  },
  clipCovUb: {
    type: 'number',
    default: 5,
    typical: [0.8, 5],
    help: 'tokens are drawn among those with a covariance below this',
  },
  seed: {
    type: 'integer',
    default: 0,
    atLeast: 0,
    help: 'the seed of the random draw; give each step another one',
  },
} as const;

/** Clip-Cov as in verl: drawn tokens with a large covariance have neither a loss nor a gradient. */
export class VerlClipCovLossFn extends expressionLossClass(
  {
    name: 'verl/clip_cov',
    summary: 'PPO, in which random tokens with a covariance between clip_cov_lb and clip_cov_ub have ℓ = 0',
    details: [
      'The covariance of a token is (A − mean A)·(logprob − mean logprob), with the means of the batch.',
      'Clipped tokens are not drawn. Drawn ones count in the aggregation.',
      'The draw depends on the seed, and on the rows and positions of the tokens.',
      'If the batch has clip_cov_keys, the tokens with the smallest keys are taken instead.',
    ],
    source: ['arXiv 2505.22617', 'verl'],
    reads: [...CORRECTED_KEYS, 'clip_cov_keys'],
    optional: ['clip_cov_keys'],
    options: { ...CLIP_RATIO, ...CHOICE, ...AGGREGATION, ...ROLLOUT_CORRECTION },
    metrics: {
      pg_clipfrac: { unit: 'fraction of tokens' },
      ppo_kl: { unit: 'nats per token' },
      pg_loss: { unit: 'loss' },
      ...CORRECTION_METRICS,
    },
    numerics: {
      range: 'logprob − old_logprob up to 88.7',
      outside: 'the ratio is not clipped where A < 0: it overflows',
      overflows: 'for A < 0',
    },
  },
  (symbols, options, has) =>
    corrected('VerlClipCovLossFn', symbols, options, (kept) => {
      const { A, d, r, clipCovKeys, clip, max, select, sg, tokens, batchSum, draw } = kept;
      const plain = A.neg().mul(r);
      const clipped = A.neg().mul(clip(r, 1 - options.clipRatioLow, 1 + options.clipRatioHigh));
      // verl's masked mean has a divisor that is a little larger than the number of tokens.
      const cov = covariance(kept, (x) => batchSum(x).div(tokens.add(1e-8)));
      const isBetween = cov.gt(options.clipCovLb).and(cov.lt(options.clipCovUb));
      const isCandidate = isBetween.and(sg(clipped).le(sg(plain)));
      const keys = has('clip_cov_keys') ? clipCovKeys : draw(options.seed);
      const ranked = select(isCandidate, keys, Number.MAX_VALUE);
      const count = max(tokens.mul(options.clipCovRatio), 1);
      const isDrawn = isCandidate.and(isAmongSmallest(kept, ranked, count));
      const perToken = select(isDrawn, 0, max(plain, clipped));
      return {
        loss: perToken.mul(weightOf('VerlClipCovLossFn', kept, options)),
        metrics: { pg_clipfrac: { token: isDrawn }, ppo_kl: { token: d.neg() } },
      };
    }),
) {
  static {
    POLICY_LOSS_FN.register('verl/clip_cov', VerlClipCovLossFn);
  }
}

/** Options of {@link VerlClipCovLossFn}. */
export type VerlClipCovLossOptions = NonNullable<ConstructorParameters<typeof VerlClipCovLossFn>[0]>;
/** Metrics of {@link VerlClipCovLossFn}. */
export type VerlClipCovMetrics = MetricsOf<(typeof VerlClipCovLossFn)['declaration']['metrics']>;
