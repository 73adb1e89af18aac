// TRL's asynchronous GRPO: the clipped surrogate, averaged over the tokens of all processes.
import type { MetricsOf } from '../../../core/declaration.js';
import { expressionLossClass } from '../expression-loss.js';
import { POLICY_LOSS_FN, RATIO_KEYS } from '../policy-loss-fn.js';
import { CLIP_METRICS, CLIP_NUMERICS, CLIP_RANGE, clipped } from './clipped.js';
import { ENTROPY_METRIC, entropyMetric } from './entropy-bonus.js';
import { ratioOf } from './ratio.js';
import { ACCUMULATION, PROCESSES } from './scale.js';

/** Asynchronous GRPO as in TRL: the clipped surrogate without a dual clip, averaged over the tokens of a micro-batch. */
export class TRLAsyncGRPOLossFn extends expressionLossClass(
  {
    name: 'trl/async_grpo',
    summary: 'ℓ = −min(r·A, clip(r)·A), the mean over the tokens of all processes',
    source: ['arXiv 2402.03300', 'TRL'],
    reads: [...RATIO_KEYS, 'entropy'],
    optional: ['entropy'],
    options: {
      ...CLIP_RANGE,
      globalNTokens: {
        type: 'integer',
        atLeast: 0,
        typical: [0, 200],
        help: 'the number of unmasked tokens of all processes; that of the batch if absent',
      },
      numProcesses: { ...PROCESSES.numProcesses, help: 'the loss is multiplied by this number of processes' },
      gradientAccumulationSteps: {
        ...ACCUMULATION.gradientAccumulationSteps,
        help: 'the loss is divided by this number of accumulation steps',
      },
    },
    metrics: {
      ratio: { unit: 'ratio' },
      kl: { unit: 'nats per token' },
      ...CLIP_METRICS,
      'clip_ratio/low_min': { unit: 'fraction of tokens' },
      'clip_ratio/high_max': { unit: 'fraction of tokens' },
      ...ENTROPY_METRIC,
    },
    numerics: CLIP_NUMERICS,
  },
  (symbols, options, has) => {
    const { r, d, tokens, constant, max, expm1 } = symbols;
    const { globalNTokens, numProcesses, gradientAccumulationSteps } = options;
    const { loss, metrics } = clipped(symbols, ratioOf(symbols, 'token'), { ...options, delta: undefined });
    const divisor = max(globalNTokens ?? tokens, numProcesses).mul(gradientAccumulationSteps);
    return {
      loss: loss.mul(constant(numProcesses).div(divisor)),
      metrics: {
        ratio: { token: r },
        kl: { token: expm1(d).sub(d) },
        ...metrics,
        // TRL takes these over processes, of which there is one.
        'clip_ratio/low_min': metrics['clip_ratio/low_mean'],
        'clip_ratio/high_max': metrics['clip_ratio/high_mean'],
        ...entropyMetric(symbols, has),
      },
    };
  },
) {
  static {
    POLICY_LOSS_FN.register('trl/async_grpo', TRLAsyncGRPOLossFn);
  }
}

/** Options of {@link TRLAsyncGRPOLossFn}. */
export type TRLAsyncGRPOLossOptions = NonNullable<ConstructorParameters<typeof TRLAsyncGRPOLossFn>[0]>;
/** Metrics of {@link TRLAsyncGRPOLossFn}. */
export type TRLAsyncGRPOMetrics = MetricsOf<(typeof TRLAsyncGRPOLossFn)['declaration']['metrics']>;
