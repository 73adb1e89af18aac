// MIX's class, and the options that MIX-CHORD shares with it.
import type { Coefficients } from '../../core/evaluator.js';
import type { LossAggMode, OptionReader, TrinityArgs } from '../../core/options.js';
import { type ClipRangeOptions, readClipRange } from './clip-range.js';
import { type AggregatedLossOptions, openOptions, PolicyLossFn } from './policy-loss-fn.js';
import type { PPOMetrics } from './ppo.js';

/** Options that {@link MIXPolicyLossFn} and MIXCHORDPolicyLossFn share. A clip range must be given. */
export interface MixedLossOptions extends AggregatedLossOptions, ClipRangeOptions {
  /** Weigh rows by the batch that came, and not by the number of micro-batches of a training batch. */
  useDynamicBsz?: boolean | null | undefined;
  /** Rows of a mini-batch, over all GPUs; 1 by default, as all counts here. */
  ppoMiniBatchSize?: number | null | undefined;
  /** Rows of a micro-batch on one GPU. */
  ppoMicroBatchSizePerGpu?: number | null | undefined;
  /** GPUs that train. */
  ngpusTrainer?: number | null | undefined;
  /** Rows of a training batch that the policy sampled; at least ngpusTrainer. */
  trainBatchSizeUsual?: number | null | undefined;
  /** Rows of a training batch that experts gave; at least ngpusTrainer. */
  trainBatchSizeExpert?: number | null | undefined;
  /** Of experts' rows; lossAggMode by default. */
  sftLossAggMode?: LossAggMode | null | undefined;
  /** Of the other rows; lossAggMode by default. */
  grpoLossAggMode?: LossAggMode | null | undefined;
}

/** Options of {@link MIXPolicyLossFn}. */
export interface MIXPolicyLossOptions extends MixedLossOptions {
  /** The share of the experts' loss, from 0 to 1; 0.1 by default. */
  mu?: number | null | undefined;
}

/** Metrics of {@link MIXPolicyLossFn}; those of a kind of rows that the batch does not have are absent. */
export type MIXMetrics = { [K in keyof PPOMetrics as `usual/${K}`]?: number } & {
  /** Of all kinds of rows together. */
  loss: number;
  /** Of experts' rows, before mu. */
  'expert/sft_loss'?: number;
};

/** The keys that both mixed losses read. */
export const MIX_KEYS = ['old_logprob', 'action_mask', 'advantages', 'expert_mask'] as const;

/** Reads the shared options, into native options and the two aggregations. */
export function readMixedOptions(owner: string, reader: OptionReader) {
  const gpus = reader.count('ngpusTrainer', 1);
  const native = {
    ...readClipRange(owner, reader),
    clip_ratio_c: 3,
    use_dynamic_bsz: reader.boolean('useDynamicBsz', false),
    ppo_mini_batch_size: reader.count('ppoMiniBatchSize', 1),
    ppo_micro_batch_size_per_gpu: reader.count('ppoMicroBatchSizePerGpu', 1),
    ngpus_trainer: gpus,
    train_batch_size_usual: reader.count('trainBatchSizeUsual', gpus, gpus),
    train_batch_size_expert: reader.count('trainBatchSizeExpert', gpus, gpus),
    cutoff_prob: 1,
  };
  const both = reader.lossAggMode('token-mean');
  return {
    options: native,
    aggregation: reader.lossAggMode(both, 'grpoLossAggMode'),
    expertAggregation: reader.lossAggMode(both, 'sftLossAggMode'),
  };
}

/**
 * MIX: (1 − mu) of PPO's loss on the rows that the policy sampled plus mu of the SFT loss on experts' rows, each
 * kind aggregated over its own rows and weighted by its share of a training batch.
 *
 * Reads old_logprob, action_mask, advantages, expert_mask [B]. Metrics: usual/… (PPO's), expert/sft_loss, loss.
 *
 * Source: arXiv 2505.17826; Trinity-RFT's MIXPolicyLossFn.
 */
export class MIXPolicyLossFn extends PolicyLossFn<MIXMetrics> {
  readonly #coefficients: Coefficients;

  /** @throws LossError `ERR_INVALID_OPTION` */
  constructor(options: MIXPolicyLossOptions = {}) {
    const { reader, backend } = openOptions('MIXPolicyLossFn', options);
    const mu = reader.number('mu', 0.1, { holds: (x) => x >= 0 && x <= 1, says: 'from 0 to 1' });
    const shared = readMixedOptions('MIXPolicyLossFn', reader);
    reader.end();
    super(backend, { policyLoss: { name: 'mix', ...shared }, keys: MIX_KEYS });
    this.#coefficients = { mu };
  }

  /** Trinity-RFT's default arguments (snake_case). */
  static override defaultArgs(): TrinityArgs {
    return { mu: 0.1, clip_range: 0.2, loss_agg_mode: 'token-mean' };
  }

  /** @internal */
  override coefficients(): Coefficients {
    return this.#coefficients;
  }
}
