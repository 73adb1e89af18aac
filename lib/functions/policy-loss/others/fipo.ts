// FIPO: weighs a token's loss by how the policy changed on the tokens after it.
import type { MetricsOf } from '../../../core/declaration.js';
import { expressionLossClass } from '../expression-loss.js';
import { POLICY_LOSS_FN, RATIO_KEYS } from '../policy-loss-fn.js';
import { aggregated, TOKEN_MEAN } from './aggregation.js';
import { bounded } from './bounds.js';
import { clipRange } from './surrogate.js';

/** FIPO (future-KL influenced policy optimization): PPO's loss times the influence of a token on those after it. */
export class FIPOLossFn extends expressionLossClass(
  {
    name: 'fipo',
    summary:
      'ℓ = sg(f)·max(−A·min(r, δ), −A·clip(r)), where f = exp(Σ γ^k·ln r over the tokens from this one on)',
    details: [
      'A token k columns later has the weight γ^k, where γ = 2^(−1/decayRate). Masked columns count as distance.',
      'Tokens whose ratio exceeds δ are left out of the sum.',
    ],
    source: ['arXiv 2603.19835', 'ms-swift'],
    reads: RATIO_KEYS,
    options: {
      ...clipRange(0.2, 0.28),
      delta: {
        type: 'number',
        above: 0,
        typical: [1.3, 10],
        help: 'δ, the upper bound on the ratio where clipping does not bound it; none if absent',
      },
      decayRate: {
        type: 'number',
        default: 32,
        above: 0,
        typical: [1, 64],
        help: 'the distance in columns at which a token counts half',
      },
      influenceClipRange: {
        type: 'number',
        default: 0.2,
        atLeast: 0,
        nullable: true,
        typical: [0, 0.4],
        help: 'f is clipped to at most 1 + this; null or 0 for no bound',
      },
      influenceClipHighOnly: {
        type: 'boolean',
        default: true,
        help: 'clip f to at least 1; otherwise to at least 1 − influenceClipRange',
      },
      safetyThreshold: {
        type: 'number',
        default: 4,
        above: 0,
        nullable: true,
        typical: [1.2, 5],
        help: 'where A < 0 and the ratio exceeds this, f is also clipped to the range from 0.8 to 1; null for never',
      },
      ...TOKEN_MEAN,
    },
    metrics: {
      pg_loss: { unit: 'loss' },
      future_kl_mean: { unit: 'nats' },
      influence_weight_mean: { unit: 'ratio' },
      safety_keep_ratio: { unit: 'fraction of tokens' },
      low_clip: { unit: 'fraction of tokens' },
      high_clip: { unit: 'fraction of tokens' },
    },
    numerics: {
      range: 'logprob − old_logprob from −20 to 20',
      outside: 'ratios are not clipped where A < 0, unless delta is given: they overflow from 88 on',
      overflows: 'for A < 0',
    },
  },
  (symbols, options) => {
    const { A, d, r, clip, exp, max, select, sg, suffixSum, constant } = symbols;
    const { delta, influenceClipRange: range, safetyThreshold } = options;
    const counted = delta === undefined ? d : select(r.gt(delta), 0, d);
    const future = suffixSum(sg(counted), 2 ** (-1 / options.decayRate));
    const least = options.influenceClipHighOnly ? 1 : 1 - (range ?? 0);
    const influence = range ? clip(exp(future), least, 1 + range) : exp(future);
    const isUnsafe = safetyThreshold === undefined ? constant(0) : r.gt(safetyThreshold).and(A.lt(0));
    const weight = select(isUnsafe, clip(influence, 0.8, 1), influence);

    const [low, high] = [1 - options.clipRangeLow, 1 + options.clipRangeHigh];
    const capped = bounded(symbols, r, undefined, delta);
    const perToken = max(A.neg().mul(capped), A.neg().mul(clip(r, low, high))).mul(weight);
    const { loss, pg_loss } = aggregated(symbols, perToken, options.lossAggMode);
    return {
      loss,
      metrics: {
        pg_loss,
        future_kl_mean: { token: future },
        influence_weight_mean: { token: weight },
        safety_keep_ratio: { token: isUnsafe.not() },
        low_clip: { token: A.lt(0).and(capped.lt(low)) },
        high_clip: { token: A.gt(0).and(capped.gt(high)) },
      },
    };
  },
) {
  static {
    POLICY_LOSS_FN.register('fipo', FIPOLossFn);
  }
}

/** Options of {@link FIPOLossFn}. */
export type FIPOLossOptions = NonNullable<ConstructorParameters<typeof FIPOLossFn>[0]>;
/** Metrics of {@link FIPOLossFn}. */
export type FIPOMetrics = MetricsOf<(typeof FIPOLossFn)['declaration']['metrics']>;
