// Trinity-RFT's policy losses, but for those that tell kinds of rows apart (trinity-rows.ts). Kernels of the native module
// compute them.
import { advise } from '../base/advice.js';
import { allocate, describeValue, guarded, LossError } from '../base/errors.js';
import { native } from '../base/native.js';
import { aggregation, choice, flag, like, number } from '../base/option.js';
import { copyNumbers } from '../batch/convert.js';
import { policyLoss } from './policy-loss.js';
import { RATIO_KEYS } from './policy-loss-declaration.js';
import { CLIP_RANGE, SATURATING } from './surrogate.js';
import { FRACTION, LOSS, NATS } from './units.js';

/** PPO: the clipped surrogate loss. Where the advantage is negative, a second clip (dual clip) also limits the loss. */
export class PPOPolicyLossFn extends policyLoss({
  name: 'ppo',
  summary: 'ℓ = max(−A·r, −A·clip(r)), with a dual clip where A < 0',
  details: [
    'As in the source, seq_mask/masked_tokens counts every position of a masked row with a negative advantage, including padding.',
  ],
  source: ['arXiv 1707.06347', 'arXiv 1912.09729', 'Trinity-RFT'],
  reads: RATIO_KEYS,
  options: {
    ...CLIP_RANGE,
    clipRange: like(CLIP_RANGE.clipRange, { trinity: 0.2 }),
    clipRatioC: number({
      default: 3,
      above: 1,
      typical: [1.1, 5],
      help: 'dual clip: the loss of a token with A < 0 is at most −A times this',
    }),
    lossAggMode: aggregation('token-mean'),
    enableSequenceMasking: flag({
      default: false,
      help: 'drop tokens with A < 0 from rows whose mean −ln r exceeds a bound',
    }),
    deltaSequenceMasking: number({
      default: 0.1,
      typical: [-0.1, 0.2],
      help: 'bound on the mean −ln r of a row, in nats per token',
    }),
    fallbackToPolicyGradient: flag({
      default: false,
      help: 'use the current policy as the old one: r = 1, and old_logprob is not read',
    }),
  },
  metrics: {
    pg_clipfrac: FRACTION,
    pg_clipfrac_lower: FRACTION,
    ppo_kl: NATS,
    pg_loss: LOSS,
    'seq_mask/masked_tokens': { unit: 'masked tokens per token', when: 'with sequence masking' },
    'seq_mask/mean_sequence_kl': { ...NATS, when: 'with sequence masking' },
  },
  numerics: { ...SATURATING, variants: [{ fallback_to_policy_gradient: true }] },
  kernel: ({ enableSequenceMasking, fallbackToPolicyGradient }) => ({
    name: `ppo${enableSequenceMasking ? '_sequence_masking' : ''}${fallbackToPolicyGradient ? '_on_policy' : ''}`,
    ...(fallbackToPolicyGradient && { unread: ['old_logprob'] }),
    readsMaskedAdvantages: enableSequenceMasking,
  }),
}) {}

/** GSPO: PPO's clipped loss, in which every token has the geometric mean of its row's ratios as its ratio. */
export class GSPOLossFn extends policyLoss({
  name: 'gspo',
  summary: "PPO's clip on the geometric mean of the sequence's ratios",
  details: [
    'The ratio is exp(mean of logprob − old_logprob over the unmasked tokens of the row), and the gradient flows to each of them.',
    'An aggregation other than the published one is allowed, with a warning.',
  ],
  source: ['arXiv 2507.18071', 'Trinity-RFT'],
  reads: RATIO_KEYS,
  options: {
    clipRange: CLIP_RANGE.clipRange,
    clipRangeLow: like(CLIP_RANGE.clipRangeLow, { trinity: 0.0003, typical: [0.0003, 0.3] }),
    clipRangeHigh: like(CLIP_RANGE.clipRangeHigh, { trinity: 0.0004, typical: [0.0004, 0.3] }),
    lossAggMode: aggregation('seq-mean-token-mean'),
  },
  stopsGradient: true,
  metrics: {
    pg_clipfrac: FRACTION,
    ppo_kl: NATS,
    ppo_kl_seq: { unit: 'nats per token, mean over rows' },
    pg_loss: LOSS,
  },
  numerics: {
    range: "the row's mean of logprob − old_logprob up to 88.7",
    outside:
      'A < 0: the ratio overflows, loss and gradient are ±Infinity; A ≥ 0: the clip bounds it; below −87.3 the ratio ' +
      'is 0',
    overflows: 'for A < 0',
  },
  kernel: ({ lossAggMode }) => {
    if (lossAggMode !== 'seq-mean-token-mean')
      advise(
        'POLICY_LOSS_GSPO_AGGREGATION',
        `GSPO was published with loss_agg_mode seq-mean-token-mean, not ${lossAggMode}`,
      );
    return {};
  },
}) {}

/**
 * CISPO: the loss of a token is −advantage·weight·logprob, where the weight is the clipped probability ratio between
 * the current policy and the old one. No gradient flows through the weight.
 */
export class CISPOPolicyLossFn extends policyLoss({
  name: 'cispo',
  summary: 'ℓ = −A·clip(r)·logprob, with the ratio held constant',
  details: ["Clipping bounds a token's weight but keeps its gradient."],
  source: ['arXiv 2506.13585', 'Trinity-RFT'],
  reads: RATIO_KEYS,
  options: {
    clipRangeLow: number({
      default: 1,
      typical: [0.1, 1],
      help: 'the weight is clipped to at least 1 − this; 1 means no lower bound, as in the paper',
    }),
    clipRangeHigh: number({
      default: 0.28,
      typical: [0.1, 0.6],
      help: 'the weight is clipped to at most 1 + this',
    }),
    enableMaskClip: flag({
      default: false,
      help: "drop tokens whose ratio has left the mask's range in the direction of their advantage",
    }),
    maskClipRangeLow: number({
      default: 1,
      typical: [0.1, 1],
      help: 'tokens with A < 0 are dropped below a ratio of 1 − this',
    }),
    maskClipRangeHigh: number({
      default: 0.28,
      typical: [0.1, 0.6],
      help: 'tokens with A > 0 are dropped above a ratio of 1 + this',
    }),
    lossAggMode: aggregation('token-mean'),
  },
  stopsGradient: true,
  metrics: { cispo_loss: LOSS, ppo_kl: NATS, unmasked_frac: FRACTION },
  numerics: {
    range: 'any finite logprobs and advantages',
    outside: 'the ratio overflows and is clipped: loss and gradient are finite',
  },
  kernel: () => ({}),
}) {}

/**
 * TOPR: the loss of a token is −advantage·weight·logprob. If the advantage is at most advantageThreshold (0 by
 * default), the weight is the probability ratio between the current policy and the old one, truncated to [0, 1].
 * Otherwise the weight is 1.
 */
export class TOPRPolicyLossFn extends policyLoss({
  name: 'topr',
  summary: 'ℓ = −α·A·logprob, with α = clip(r, 0, 1) where A ≤ 0 and 1 elsewhere',
  details: ['α is held constant.'],
  source: ['arXiv 2503.14286', 'Trinity-RFT'],
  reads: RATIO_KEYS,
  options: {
    advantageThreshold: number({
      default: 0,
      typical: [-0.5, 0.5],
      help: 'tokens with an advantage up to this are weighted by the truncated ratio',
    }),
    lossAggMode: aggregation('token-mean'),
  },
  stopsGradient: true,
  metrics: {
    topr_loss: LOSS,
    avg_alpha: { unit: 'weight, mean over tokens' },
    avg_ratio: { unit: 'ratio, mean over tokens' },
  },
  numerics: {
    range: 'any finite logprobs and advantages',
    outside:
      'the ratio overflows and is truncated to 1 where A is at most the threshold; the metric avg_ratio is Infinity',
  },
  kernel: () => ({}),
}) {}

/**
 * SAPO: the loss of a token is −advantage·gate·logprob, where the gate is a sigmoid function of the ratio to the old
 * policy. By default, no gradient flows through the gate.
 */
export class SAPOPolicyLossFn extends policyLoss({
  name: 'sapo',
  summary: 'ℓ = −A·gate(r)·logprob, with a sigmoid gate instead of a clip',
  details: [
    'The gate is f(r) = σ(τ(r − 1))·4/τ.',
    'Trinity holds the gate constant. The paper differentiates it too: its loss is −A·f(r).',
  ],
  source: ['arXiv 2511.20347', 'Trinity-RFT'],
  reads: RATIO_KEYS,
  options: {
    tauPos: number({ default: 1, above: 0, typical: [0.3, 1.5], help: "the gate's temperature where A > 0" }),
    tauNeg: number({
      default: 1.05,
      above: 0,
      atLeastOption: 'tauPos',
      typical: [1.5, 3],
      help: "the gate's temperature where A ≤ 0",
    }),
    lossAggMode: aggregation('token-mean'),
    differentiateGate: flag({
      default: false,
      help: "take the gate's gradient, as in the paper, instead of holding it constant",
    }),
  },
  metrics: {
    sapo_loss: LOSS,
    ppo_kl: NATS,
    avg_soft_gate: { unit: 'gate, mean over tokens' },
    avg_ratio: { unit: 'ratio, mean over tokens' },
    pos_adv_frac: FRACTION,
  },
  numerics: {
    range: 'any finite logprobs and advantages',
    outside: 'the ratio overflows and the gate is open: the loss is finite; the metric avg_ratio is Infinity',
    /**
     * Far from a ratio of 1, the gate's slope is nearly 0 and has a large relative error. Errors of the gradient are
     * therefore measured relative to its size at a ratio of 1, which is |advantage|.
     */
    cancels: ({ advantage }) => ({ gradient: Math.abs(advantage) }),
    variants: [{ differentiate_gate: true }],
  },
  kernel: ({ differentiateGate }) => ({ stopsGradient: !differentiateGate }),
}) {
  /**
   * Returns the gate f(r) = σ(τ(r − 1))·4/τ of each ratio r. τ is tauPos where the advantage is positive, and tauNeg
   * elsewhere.
   * @param ratio the importance ratios.
   * @param advantages one advantage for each ratio; only the sign matters.
   * @throws LossError `ERR_SHAPE_MISMATCH` if the lengths differ, `ERR_INVALID_INPUT` for a value that is not a number.
   */
  softGateFunction(ratio: ArrayLike<number>, advantages: ArrayLike<number>): Float32Array {
    return guarded(() => {
      const [length, others] = [lengthOf('ratio', ratio), lengthOf('advantages', advantages)];
      if (length !== others)
        throw new LossError('ERR_SHAPE_MISMATCH', {
          key: 'advantages',
          expected: `${length} values, one for each ratio`,
          received: String(others),
        });
      const ratios = toFloats('ratio', ratio, length);
      const signs = toFloats('advantages', advantages, length);
      const out = allocate('the gates', () => new Float32Array(length));
      const { tau_pos, tau_neg } = this.nativeOptions;
      native.softGate(tau_pos as number, tau_neg as number, ratios, signs, out);
      return out;
    });
  }
}

/**
 * sPPO: the loss of a token is −advantage·ln(ratio) if the ratio is within a range, and 0 otherwise. The ratio is the
 * token's probability under the current policy divided by that under the old one.
 */
export class sPPOPolicyLossFn extends policyLoss({
  name: 'sppo',
  summary: 'ℓ = −A·ln r while r is in range, else 0',
  source: ['Trinity-RFT'],
  reads: RATIO_KEYS,
  options: {
    epsilon: number({
      default: 0.3,
      atLeast: 0,
      typical: [0.05, 0.6],
      help: 'a token counts while its ratio is within [1/(1 + epsilon), 1 + epsilon]',
    }),
    lossAggMode: aggregation('token-mean'),
  },
  metrics: { pg_clipfrac: FRACTION, pg_loss: LOSS },
  numerics: {
    range: 'any finite logprobs and advantages',
    outside: 'a token whose ratio is out of range has loss and gradient 0',
  },
  kernel: () => ({}),
}) {}

/**
 * REC: REINFORCE with three choices. The clip mode decides which tokens keep their loss, the weight multiplies the
 * advantage, and the regularizer is added to the loss of every token.
 */
export class RECPolicyLossFn extends policyLoss({
  name: 'rec',
  summary: 'ℓ = −A·logprob with a clip mode, a weight and a regularizer',
  details: [
    'The advantage is multiplied by a constant weight, and the regularizer acts on all tokens, clipped or not.',
    'The aggregation is token-mean, or seq-mean-token-mean with clipMode gspo-one-side.',
  ],
  source: ['arXiv 2509.24203', 'Trinity-RFT'],
  reads: RATIO_KEYS,
  options: {
    epsilonLow: number({
      default: 0.2,
      above: 0,
      atMost: 1,
      typical: [0.05, 0.5],
      help: 'the lower bound on the ratio is 1 − this',
    }),
    epsilonHigh: number({
      default: 0.2,
      above: 0,
      typical: [0.05, 0.5],
      help: 'the upper bound on the ratio is 1 + this',
    }),
    epsilonLowPrime: number({
      default: 0.4,
      trinity: 0.6,
      above: 0,
      atMost: 1,
      typical: [0.1, 1],
      help: "the ring's outer lower bound is 1 − this",
    }),
    epsilonHighPrime: number({
      default: 0.4,
      trinity: 2,
      above: 0,
      typical: [0.1, 2],
      help: "the ring's outer upper bound is 1 + this",
    }),
    clipMode: choice(['none', 'one-side', 'gspo-one-side', 'two-side', 'ring'], {
      default: 'none',
      help: 'which tokens are kept',
    }),
    weight: choice(['none', 'importance_sampling', 'gspo_importance_sampling', 'advantage'], {
      default: 'none',
      needs: { gspo_importance_sampling: { clipMode: ['gspo-one-side'] } },
      help: 'what the advantage is multiplied by',
    }),
    regularizer: choice(['none', 'k2', 'forward-kl'], {
      default: 'none',
      help: 'what is added to the loss of every token, clipped or not',
    }),
    regularizerCoef: number({
      default: 0,
      atLeast: 0,
      typical: [0, 0.5],
      help: 'the regularizer is multiplied by this',
    }),
    temp: number({ default: 1, above: 0, typical: [0.5, 2], help: 'temperature of the advantage weight' }),
  },
  metrics: { pg_clipfrac: FRACTION, pg_loss: LOSS },
  numerics: {
    range:
      'any finite logprobs and advantages; with importance weights, logprob − old_logprob up to 88.7; weighted by ' +
      'advantage, advantages / temp up to 88.7',
    outside: 'the weight overflows: loss and gradient are ±Infinity',
    /** The regularizer may cancel the policy term, so errors are measured relative to the size of the policy term. */
    cancels: ({ logprob, advantage }) => ({
      value: Math.abs(advantage * logprob),
      gradient: Math.abs(advantage),
    }),
    variants: [
      { weight: 'importance_sampling' },
      { weight: 'advantage' },
      { regularizer: 'k2', regularizer_coef: 0.1 },
    ],
  },
  kernel: ({ clipMode }) => ({
    aggregation: clipMode === 'gspo-one-side' ? 'seq-mean-token-mean' : 'token-mean',
  }),
}) {}

/** OPMD: the loss of a token is −advantage·logprob / (1 + τ), where τ is the option `tau`. */
export class OPMDPolicyLossFn extends policyLoss({
  name: 'opmd',
  summary: 'ℓ = −A·logprob / (1 + τ)',
  source: ['arXiv 2505.17826', 'Trinity-RFT'],
  reads: ['action_mask', 'advantages'],
  options: {
    tau: number({ default: 1, atLeast: 0, typical: [0, 3], help: 'the loss is divided by 1 + this' }),
    lossAggMode: aggregation('token-mean'),
  },
  metrics: { opmd_loss: LOSS },
  numerics: {
    range: 'any finite logprobs and advantages',
    outside: 'products beyond 3.4e38 overflow to ±Infinity',
  },
  kernel: () => ({}),
}) {}

/** Supervised fine-tuning: the loss of a token is −logprob, its negative log-likelihood. */
export class SFTLossFn extends policyLoss({
  name: 'sft',
  summary: 'ℓ = −logprob',
  source: ['Trinity-RFT'],
  reads: ['action_mask'],
  options: { lossAggMode: aggregation('token-mean') },
  metrics: { sft_loss: { unit: 'nats' } },
  numerics: { range: 'any finite logprob', outside: 'NaN and Infinity pass through' },
  kernel: () => ({}),
}) {}

/**
 * Supervised fine-tuning in which each token is weighted by its own probability. No gradient flows through the weight.
 */
export class SFTISLossFn extends policyLoss({
  name: 'sft_is',
  summary: 'ℓ = −p·logprob, with the probability p held constant',
  source: ['Trinity-RFT'],
  reads: ['action_mask'],
  options: { lossAggMode: aggregation('token-mean') },
  stopsGradient: true,
  metrics: { sft_is_loss: { unit: 'nats' } },
  numerics: {
    range: 'logprob up to 88.7 (a log-probability is at most 0)',
    outside: 'the probability overflows to Infinity; below −87.3 it is 0',
  },
  kernel: () => ({}),
}) {}

/**
 * Supervised fine-tuning in which each token is weighted by p(1 − p), where p is its probability. Tokens with a
 * probability near 0 or 1 therefore count little. No gradient flows through the weight.
 */
export class SFTPhiLossFn extends policyLoss({
  name: 'sft_phi',
  summary: 'ℓ = −p(1 − p)·logprob, with p(1 − p) held constant',
  details: ['A log-probability above the logarithm of the cutoff is lowered to it, with gradient 0.'],
  source: ['arXiv 2508.11408', 'Trinity-RFT'],
  reads: ['action_mask'],
  options: {
    lossAggMode: aggregation('token-mean'),
    cutoffProb: number({
      default: 1,
      atLeast: 0,
      atMost: 1,
      typical: [0.2, 0.9],
      help: 'the cutoff: log-probabilities above the logarithm of this are lowered to it; 1 has no effect',
    }),
  },
  stopsGradient: true,
  metrics: { sft_phi_loss: { unit: 'nats' } },
  numerics: {
    range: 'logprob of at most 0',
    outside: 'above 0, p(1 − p) is negative, and overflows from 44 on; below −87.3 it is 0',
    /** Where p is near 1, 1 − p loses digits, so errors are measured relative to the terms without this factor. */
    cancels: ({ logprob }) => ({
      value: Math.abs(logprob) * Math.exp(logprob),
      gradient: Math.exp(logprob),
    }),
    variants: [{ cutoff_prob: 0.5 }],
  },
  kernel: () => ({}),
}) {}

/**
 * The policy gradient with importance weights: the loss of a token is −advantage·ratio. The ratio of the current
 * policy's probability to the old policy's corrects for the old policy having sampled the token.
 */
export class ImportanceSamplingLossFn extends policyLoss({
  name: 'importance_sampling',
  summary: 'ℓ = −A·r',
  details: ['logprob − old_logprob is clipped to ±20 nats before it is exponentiated.'],
  source: ['Trinity-RFT', 'Tinker'],
  reads: RATIO_KEYS,
  options: { lossAggMode: aggregation('token-mean') },
  metrics: { pg_loss: LOSS, 'ratio/mean': { unit: 'ratio, mean over tokens' }, approx_kl: NATS },
  numerics: SATURATING,
  kernel: () => ({}),
}) {}

function lengthOf(key: string, values: ArrayLike<number>): number {
  const length: unknown = values?.length;
  if (!Number.isSafeInteger(length) || (length as number) < 0)
    throw new LossError('ERR_INVALID_INPUT', { key, expected: 'numbers', received: describeValue(values) });
  return length as number;
}

function toFloats(key: string, values: ArrayLike<number>, length: number): Float32Array {
  const floats = allocate(`${length} values of ${key}`, () => new Float32Array(length));
  copyNumbers(key, values, 0, floats, 0, length);
  return floats;
}
