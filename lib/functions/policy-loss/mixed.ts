// What MIX and MIX-CHORD have in common: options, batch keys, metrics and the choice of the native loss.
import type { NativeLossSpec } from '../../../binding.js';
import { aggregationOption, type CheckedOptions, nativeOptions, type OptionsOf } from '../../core/options.js';
import { CLIP_RANGE } from './clip-range.js';
import type { AggregatedLossOptions, PolicyLossVariant } from './policy-loss-fn.js';
import type { PPOMetrics } from './ppo.js';

/** The declarations of the options that MIX and MIX-CHORD share. */
export const MIXED_OPTIONS = {
  ...CLIP_RANGE,
  clipRange: { ...CLIP_RANGE.clipRange, trinity: 0.2 },
  useDynamicBsz: {
    type: 'boolean',
    default: false,
    listed: false,
    help: 'compute the weights of rows from the number of rows in this batch, not from the micro-batch size',
  },
  ppoMiniBatchSize: {
    type: 'integer',
    default: 1,
    listed: false,
    atLeast: 1,
    typical: [4, 32],
    help: 'rows of a mini-batch over all GPUs',
  },
  ppoMicroBatchSizePerGpu: {
    type: 'integer',
    default: 1,
    listed: false,
    atLeast: 1,
    typical: [1, 4],
    help: 'rows of a micro-batch on one GPU',
  },
  ngpusTrainer: {
    type: 'integer',
    default: 1,
    listed: false,
    atLeast: 1,
    typical: [1, 4],
    help: 'the number of GPUs that train',
  },
  trainBatchSizeUsual: {
    type: 'integer',
    atLeast: 1,
    defaultFrom: 'ngpusTrainer',
    atLeastOption: 'ngpusTrainer',
    typical: [4, 24],
    help: 'rows of a training batch that the policy sampled',
  },
  trainBatchSizeExpert: {
    type: 'integer',
    atLeast: 1,
    defaultFrom: 'ngpusTrainer',
    atLeastOption: 'ngpusTrainer',
    typical: [4, 24],
    help: 'rows of a training batch that experts wrote',
  },
  lossAggMode: aggregationOption('token-mean'),
  sftLossAggMode: {
    type: 'aggregation',
    defaultFrom: 'lossAggMode',
    help: "the aggregation of experts' rows",
  },
  grpoLossAggMode: {
    type: 'aggregation',
    defaultFrom: 'lossAggMode',
    help: "the aggregation of the policy's own rows",
  },
} as const;

/**
 * The options that MIXPolicyLossFn and MIXCHORDPolicyLossFn share. clipRange, or both clipRangeLow and clipRangeHigh,
 * are required.
 */
export type MixedLossOptions = OptionsOf<typeof MIXED_OPTIONS> & AggregatedLossOptions;

/** The batch keys that both MIX and MIX-CHORD read. */
export const MIX_KEYS = ['old_logprob', 'action_mask', 'advantages', 'expert_mask'] as const;

/** The metrics that both MIX and MIX-CHORD report for the rows that the policy sampled. */
export const USUAL_METRICS = {
  'usual/pg_clipfrac': { unit: 'fraction of tokens', when: "with rows of the policy's own" },
  'usual/pg_clipfrac_lower': { unit: 'fraction of tokens', when: "with rows of the policy's own" },
  'usual/ppo_kl': { unit: 'nats per token', when: "with rows of the policy's own" },
  'usual/pg_loss': { unit: 'loss', when: "with rows of the policy's own" },
} as const satisfies Partial<Record<`usual/${keyof PPOMetrics}`, unknown>>;

/**
 * Returns the native loss and its options. MIX and MIX-CHORD have no options for PPO's dual clip and for the cutoff of
 * SFT weighted by φ, so these have their default values.
 * @param name the name of the native loss.
 */
export function mixedVariant(
  name: string,
  options: CheckedOptions<typeof MIXED_OPTIONS>,
): PolicyLossVariant & NativeLossSpec {
  return {
    name,
    options: { ...nativeOptions(MIXED_OPTIONS, options), clip_ratio_c: 3, cutoff_prob: 1 },
    aggregation: options.grpoLossAggMode,
    expertAggregation: options.sftLossAggMode,
  };
}
