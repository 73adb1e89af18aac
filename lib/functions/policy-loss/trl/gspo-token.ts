// TRL's GSPO-token: the clipped surrogate with the ratio of a row as its value and that of a token in its gradient.
import type { MetricsOf } from '../../../core/declaration.js';
import type { ProgramSymbols } from '../../../program/expression.js';
import { TOP_ENTROPY, topEntropyNeeds } from '../../correction/top-entropy.js';
import { expressionLossClass } from '../expression-loss.js';
import { POLICY_LOSS_FN } from '../policy-loss-fn.js';
import { CLIP, CLIP_METRICS, CLIP_NUMERICS, clipped } from './clipped.js';
import { ENTROPY_METRIC, entropyMetric } from './entropy-bonus.js';
import { FAMILY_BATCHES, FAMILY_KEYS, policyTerm } from './grpo-family.js';
import { BETA, KL_METRIC } from './kl-term.js';
import { RATIO_LEVEL, type Ratio, ratioOf } from './ratio.js';
import { COMPLETION_LENGTH, SCALE, weightOf } from './scale.js';
import { isCorrected, VLLM, VLLM_METRICS } from './vllm-correction.js';

/** GSPO-token as in TRL: with advantages that differ within a row, its gradient differs from that of GSPO. */
export class TRLGSPOTokenLossFn extends expressionLossClass(
  {
    name: 'trl/gspo_token',
    summary:
      'ℓ = −min(min(r, δ)·A, clip(r)·A), r = exp(logprob − sg(logprob) + sg(mean log-ratio of the row))',
    source: ['arXiv 2507.18071', 'TRL'],
    unlike: { gspo: 'by default, the ratio is that of a token' },
    reads: FAMILY_KEYS,
    ...FAMILY_BATCHES,
    options: {
      ...CLIP,
      importanceSamplingLevel: {
        ...RATIO_LEVEL.importanceSamplingLevel,
        choices: ['token', 'sequence', 'sequence_token'],
        help: 'the ratio of a token, the geometric mean over the row, or this mean with the gradient of a token',
      },
      lossType: {
        type: 'choice',
        choices: ['grpo', 'bnpo', 'dr_grpo', 'dapo'],
        default: 'grpo',
        help: 'the loss whose mean over tokens is used',
      },
      ...TOP_ENTROPY,
      ...BETA,
      ...VLLM,
      ...SCALE,
      ...COMPLETION_LENGTH,
    },
    metrics: { ...CLIP_METRICS, ...KL_METRIC, ...VLLM_METRICS, ...ENTROPY_METRIC },
    numerics: CLIP_NUMERICS,
  },
  (symbols, options, has) => {
    const ratio = levelRatio(symbols, options.importanceSamplingLevel);
    const term = policyTerm(symbols, options, ratio, () => clipped(symbols, ratio, options));
    return {
      ...term,
      loss: term.loss.mul(weightOf(symbols, options.lossType, options)),
      metrics: { ...term.metrics, ...entropyMetric(symbols, has) },
    };
  },
  (options) => [...(isCorrected(options) ? ['old_logprob' as const] : []), ...topEntropyNeeds(options)],
) {
  static {
    POLICY_LOSS_FN.register('trl/gspo_token', TRLGSPOTokenLossFn);
  }
}

function levelRatio(symbols: ProgramSymbols, level: 'token' | 'sequence' | 'sequence_token'): Ratio {
  if (level !== 'sequence_token') return ratioOf(symbols, level);
  const { lp, d, exp, rowMean, sg } = symbols;
  const log = lp.sub(sg(lp)).add(sg(rowMean(d)));
  return { log, value: exp(log), perRow: false };
}

/** Options of {@link TRLGSPOTokenLossFn}. */
export type TRLGSPOTokenLossOptions = NonNullable<ConstructorParameters<typeof TRLGSPOTokenLossFn>[0]>;
/** Metrics of {@link TRLGSPOTokenLossFn}. */
export type TRLGSPOTokenMetrics = MetricsOf<(typeof TRLGSPOTokenLossFn)['declaration']['metrics']>;
