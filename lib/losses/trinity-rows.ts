// Trinity-RFT's losses that tell kinds of rows apart: DPO has chosen and rejected rows, and in MIX and MIX-CHORD, experts wrote
// some of the rows.
import type { NativeLossSpec } from '../../binding.js';
import { describeValue, LossError } from '../base/errors.js';
import { aggregation, flag, integer, like, number } from '../base/option.js';
import { type CheckedOptions, nativeOptions, type PassedOptions } from '../base/options.js';
import type { Normalizer } from '../batch/counts.js';
import type { Coefficients } from '../call/evaluator.js';
import type { Input } from '../device/input.js';
import { policyLoss } from './policy-loss.js';
import type { AggregatedLossOptions, PolicyLossVariant } from './policy-loss-declaration.js';
import { CLIP_RANGE } from './surrogate.js';
import { FRACTION, LOSS, NATS } from './units.js';

/** DPO: a loss over pairs of rows. It rewards a policy that prefers the chosen row to the rejected one. */
export class DPOLossFn extends policyLoss({
  name: 'dpo',
  summary: '−ln σ(β·margin), averaged over pairs of rows',
  details: [
    "The margin is the chosen row's sum of logprob − ref_logprob minus the rejected row's sum.",
    'Even rows are chosen, and each odd row is the rejected answer to the row before it, unless the batch has pair_ids.',
  ],
  source: ['arXiv 2305.18290', 'Trinity-RFT'],
  reads: ['ref_logprob', 'action_mask'],
  pairs: true,
  options: {
    beta: number({ default: 0.1, typical: [0.02, 0.5], help: 'the margin is multiplied by this' }),
    labelSmoothing: number({
      default: 0,
      atLeast: 0,
      atMost: 1,
      typical: [0, 0.4],
      help: 'the probability that a label is wrong',
    }),
    pairwise: flag({
      default: true,
      help: "a loss per pair, as in the paper; otherwise Trinity's arithmetic, one margin for the batch",
    }),
  },
  metrics: {
    chosen_reward: { unit: 'nats times beta' },
    rejected_reward: { unit: 'nats times beta' },
    accuracy_mean: { unit: 'fraction of pairs' },
    dpo_loss: LOSS,
  },
  numerics: {
    range: 'sums of logprob − ref_logprob over a row up to 1e37',
    outside: 'margins of any size are linear or 0, without overflow; row sums are float64',
  },
  kernel: ({ pairwise }) => ({ readsPairIds: pairwise }),
}) {
  /** @internal */
  override coefficients(input: Input, normalizer: Normalizer | undefined): Coefficients {
    const { pairwise } = this.nativeOptions;
    if (!pairwise && normalizer !== undefined)
      throw new LossError('ERR_INVALID_OPTION', {
        option: 'normalizer',
        expected: (spell) =>
          `no normalizer with ${spell('pairwise')} false, which computes one margin over the whole batch`,
        received: 'a normalizer',
      });
    return super.coefficients(input, normalizer);
  }
}

const COUNT = { default: 1, listed: false, atLeast: 1 } as const;
const ROWS_OF_BATCH = {
  atLeast: 1,
  defaultFrom: 'ngpusTrainer',
  atLeastOption: 'ngpusTrainer',
  typical: [4, 24],
} as const;
const SHARE = { default: 0.1, atLeast: 0, atMost: 1, typical: [0, 1] } as const;
const STEPS = { default: 0, atLeast: 0, typical: [0, 120] } as const;

// The options that MIX and MIX-CHORD share.
const MIXED_OPTIONS = {
  ...CLIP_RANGE,
  clipRange: like(CLIP_RANGE.clipRange, { trinity: 0.2 }),
  useDynamicBsz: flag({
    default: false,
    listed: false,
    help: 'compute the weights of rows from the number of rows in this batch, not from the micro-batch size',
  }),
  ppoMiniBatchSize: integer({ ...COUNT, typical: [4, 32], help: 'rows of a mini-batch over all GPUs' }),
  ppoMicroBatchSizePerGpu: integer({ ...COUNT, typical: [1, 4], help: 'rows of a micro-batch on one GPU' }),
  ngpusTrainer: integer({ ...COUNT, typical: [1, 4], help: 'the number of GPUs that train' }),
  trainBatchSizeUsual: integer({
    ...ROWS_OF_BATCH,
    help: 'rows of a training batch that the policy sampled',
  }),
  trainBatchSizeExpert: integer({ ...ROWS_OF_BATCH, help: 'rows of a training batch that experts wrote' }),
  lossAggMode: aggregation('token-mean'),
  sftLossAggMode: aggregation({ defaultFrom: 'lossAggMode', help: "the aggregation of experts' rows" }),
  grpoLossAggMode: aggregation({
    defaultFrom: 'lossAggMode',
    help: "the aggregation of the policy's own rows",
  }),
};

/**
 * The options that MIXPolicyLossFn and MIXCHORDPolicyLossFn share. clipRange, or both clipRangeLow and clipRangeHigh,
 * are required.
 */
export type MixedLossOptions = PassedOptions<typeof MIXED_OPTIONS> & AggregatedLossOptions;

const MIX_KEYS = ['old_logprob', 'action_mask', 'advantages', 'expert_mask'] as const;

const USUAL = "with rows of the policy's own";
// The metrics of PPO for the rows that the policy sampled.
const USUAL_METRICS = {
  'usual/pg_clipfrac': { ...FRACTION, when: USUAL },
  'usual/pg_clipfrac_lower': { ...FRACTION, when: USUAL },
  'usual/ppo_kl': { ...NATS, when: USUAL },
  'usual/pg_loss': { ...LOSS, when: USUAL },
};

// Returns the native loss with a name, and its options. MIX and MIX-CHORD have no options for PPO's dual clip and for the
// cutoff of SFT weighted by φ, so these have their default values.
function mixedVariant(
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

/**
 * MIX: the loss is (1 − mu) times PPO's loss on the policy's own rows plus mu times the loss of supervised fine-tuning
 * on experts' rows. Each of the two is also weighted by the share that its rows have in a training batch.
 */
export class MIXPolicyLossFn extends policyLoss({
  name: 'mix',
  summary: "(1 − mu)·PPO on the policy's own rows + mu·SFT on experts' rows",
  details: ['Each kind of rows is aggregated on its own and weighted by its share of a training batch.'],
  source: ['arXiv 2505.17826', 'Trinity-RFT'],
  reads: MIX_KEYS,
  options: { mu: number({ ...SHARE, help: "the share of the experts' loss" }), ...MIXED_OPTIONS },
  metrics: {
    ...USUAL_METRICS,
    'expert/sft_loss': { unit: 'nats, before mu', when: "with experts' rows" },
    loss: LOSS,
  },
  numerics: {
    range: "ppo's in the policy's own rows, sft's in experts' rows",
    outside: "as ppo's and sft's",
  },
  kernel: (options) => {
    const variant = mixedVariant('mix', options);
    return { ...variant, options: { ...variant.options, mu: options.mu } };
  },
}) {
  /** @internal */
  override coefficients(): Coefficients {
    return { mu: this.nativeOptions.mu as number };
  }
}

const SCHEDULE = {
  muWarmupSteps: integer({ ...STEPS, help: 'steps over which mu rises from 0 to its peak' }),
  muDecaySteps: integer({ ...STEPS, help: 'steps over which mu then falls to its valley, along a cosine' }),
  muPeak: number({ ...SHARE, help: "the experts' share at the peak" }),
  muValley: number({ ...SHARE, help: "the experts' share after the fall" }),
};

/**
 * MIX-CHORD: the MIX loss, but with mu (the experts' share of the loss) following a schedule over the trainer's steps.
 * By default, each expert token is weighted by φ = p(1 − p), where p is its probability.
 */
export class MIXCHORDPolicyLossFn extends policyLoss({
  name: 'mix_chord',
  summary: 'MIX with mu scheduled over the steps, and SFT weighted by p(1 − p)',
  details: ['step is one number, or [B] with the same number in every row.'],
  source: ['arXiv 2508.11408', 'Trinity-RFT'],
  reads: [...MIX_KEYS, 'step'],
  options: {
    ...SCHEDULE,
    ...MIXED_OPTIONS,
    enablePhiFunction: flag({ default: true, help: "weight experts' tokens by p(1 − p)" }),
  },
  metrics: {
    ...USUAL_METRICS,
    'expert/sft_loss': { unit: 'nats, before mu', when: "with experts' rows and without the phi function" },
    'expert/sft_phi_loss': { unit: 'nats, before mu', when: "with experts' rows and the phi function" },
    loss: LOSS,
    mu: { unit: "share of the experts' loss at this step" },
  },
  numerics: {
    range: "ppo's in the policy's own rows, sft_phi's in experts' rows",
    outside: "as ppo's and sft_phi's",
  },
  kernel: (options) => {
    const variant = mixedVariant(options.enablePhiFunction ? 'mix_chord' : 'mix_chord_sft', options);
    return {
      ...variant,
      options: { ...variant.options, ...nativeOptions(SCHEDULE, options) },
      stopsGradient: options.enablePhiFunction,
    };
  },
}) {
  /**
   * Returns mu, the experts' share of the loss, at a step. It rises linearly from 0 to the peak, falls to the valley
   * along half a cosine wave, and then stays there.
   * @param step the trainer's step.
   * @param warmup the number of steps in which mu rises.
   * @param decay the number of steps in which mu falls.
   * @param peak mu after the rise.
   * @param valley mu after the fall.
   * @throws LossError `ERR_INVALID_INPUT` if an argument is not a number.
   */
  muScheduleFunction(step: number, warmup: number, decay: number, peak: number, valley: number): number {
    for (const [key, value] of Object.entries({ step, warmup, decay, peak, valley }))
      if (typeof value !== 'number')
        throw new LossError('ERR_INVALID_INPUT', {
          key,
          expected: 'a number',
          received: describeValue(value),
        });
    if (step < warmup) return (step / warmup) * peak;
    if (step >= warmup + decay) return valley;
    const along = (step - warmup) / decay;
    return (peak - valley) * 0.5 * (1 + Math.cos(Math.PI * along)) + valley;
  }

  /** @internal */
  override coefficients({ step }: Input): Coefficients {
    const { mu_warmup_steps, mu_decay_steps, mu_peak, mu_valley } = this.nativeOptions as Record<
      string,
      number
    >;
    return { mu: this.muScheduleFunction(step!, mu_warmup_steps!, mu_decay_steps!, mu_peak!, mu_valley!) };
  }
}
