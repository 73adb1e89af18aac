// Losses of papers that bound how far a token moves: by the change of its probability, or by a clip
// range of their own.
import type { TokenValues } from '../base/declaration.js';
import { LossError } from '../base/errors.js';
import { aggregation, choice, number } from '../base/option.js';
import type { CheckedOptions } from '../base/options.js';
import type { Expression, ProgramSymbols } from '../program/expression.js';
import { aggregated, TOKEN_MEAN } from './divisors.js';
import { ESTIMATES } from './kl-terms.js';
import { policyLoss } from './policy-loss.js';
import { RATIO_KEYS } from './policy-loss-declaration.js';
import { limitedLog } from './statistics.js';
import {
  CLIP_METRICS,
  clipMetrics,
  clipRange,
  DUAL_CLIP,
  dualClip,
  gentleSurrogate,
  limited,
  rangeOf,
  SATURATING,
  surrogate,
  unitRatio,
} from './surrogate.js';
import { FRACTION, LOSS, NATS, RATIO } from './units.js';

const KL_TAU = 1e-3;
const PENALTY = {
  klTau: number({
    default: KL_TAU,
    atLeast: 0,
    typical: [0, 0.2],
    help: 'coefficient of (ln r)², the penalty on all tokens',
  }),
};
const ADVANTAGE_SCALE = {
  advTau: number({ default: 1, atLeast: 0, typical: [0, 2], help: 'factor of the advantages' }),
};
const OF_ROWS = { unit: 'mean per row, averaged over rows' };
const TRUST_REGION = {
  masked_mismatch_kl: OF_ROWS,
  unmasked_mismatch_kl: OF_ROWS,
  is_masked: OF_ROWS,
  pg_loss: LOSS,
};

// Returns the penalty of a token with the default coefficient, and its slope. It cancels the other term of the loss where
// the two are equally large.
function penaltyOf({ logprob, oldLogprob }: TokenValues): { value: number; gradient: number } {
  const d = Math.abs(logprob - oldLogprob);
  return { value: KL_TAU * d ** 2, gradient: 2 * KL_TAU * d };
}

// Returns how much the token's probability has changed.
function probabilityChange({ lp, old, exp }: ProgramSymbols): Expression {
  return exp(lp).sub(exp(old));
}

// Returns the loss −A·r, without the dropped tokens, plus the penalty on all tokens.
function trustRegion(symbols: ProgramSymbols, A: Expression, dropped: Expression, klTau: number) {
  const { d, r, select, square, rowMean, rowSum, max } = symbols;
  const perToken = select(dropped, 0, A.neg().mul(r)).add(square(d).mul(klTau));
  const mismatchOf = (flag: Expression) => ({
    row: rowSum(select(flag, ESTIMATES.k3(symbols, d), 0)).div(max(rowSum(flag), 1)),
  });
  return aggregated(symbols, perToken, 'token-mean', {
    masked_mismatch_kl: mismatchOf(dropped),
    unmasked_mismatch_kl: mismatchOf(dropped.not()),
    is_masked: { row: rowMean(dropped) },
  });
}

/**
 * prime-rl's default loss: −A·r plus a penalty. Tokens whose probability has already moved far in the direction of the
 * advantage are dropped from the first term.
 */
export class PrimeRLLossFn extends policyLoss({
  name: 'prime_rl',
  summary: 'ℓ = −A·r + τ·(ln r)², where the first term lacks tokens whose probability has moved far',
  source: ['arXiv 2602.04879', 'arXiv 2602.02276', 'prime-rl'],
  reads: RATIO_KEYS,
  options: {
    dppoMaskLow: number({
      default: 0.2,
      atLeast: 0,
      typical: [0.02, 0.5],
      help: 'tokens with A ≤ 0 are dropped if their probability has fallen by more than this',
    }),
    dppoMaskHigh: number({
      default: 0.2,
      atLeast: 0,
      typical: [0.02, 0.5],
      help: 'tokens with A > 0 are dropped if their probability has risen by more than this',
    }),
    ...ADVANTAGE_SCALE,
    ...PENALTY,
    ...TOKEN_MEAN,
  },
  metrics: {
    ...TRUST_REGION,
    is_masked_low: OF_ROWS,
    is_masked_high: OF_ROWS,
    masked_advantage_positive: OF_ROWS,
    masked_advantage_negative: OF_ROWS,
  },
  numerics: {
    range: 'logprob − old_logprob from −20 to 20',
    outside: 'the ratio is not clipped: where A < 0, it overflows from 88 on',
    overflows: 'for A < 0',
    /** The penalty cancels the policy gradient where the two are equally large. */
    cancels: penaltyOf,
  },
  formula: (symbols, { dppoMaskLow, dppoMaskHigh, advTau, klTau }) => {
    const { A, select, rowMean, rowSum, max } = symbols;
    const change = probabilityChange(symbols);
    const tooLow = change.lt(-dppoMaskLow);
    const tooHigh = change.gt(dppoMaskHigh);
    const dropped = select(A.gt(0), tooHigh, tooLow);
    const low = A.lt(0).and(tooLow);
    const high = A.gt(0).and(tooHigh);
    const shareOfDropped = (some: Expression) => ({ row: rowSum(some).div(max(rowSum(dropped), 1)) });
    const { loss, metrics } = trustRegion(symbols, A.mul(advTau), dropped, klTau);
    return {
      loss,
      metrics: {
        ...metrics,
        is_masked_low: { row: rowMean(low) },
        is_masked_high: { row: rowMean(high) },
        // Dropped tokens are too high where A > 0, and too low elsewhere.
        masked_advantage_positive: shareOfDropped(high),
        masked_advantage_negative: shareOfDropped(low),
      },
    };
  },
}) {}

/**
 * prime-rl's loss −A·r plus a penalty, where the first term lacks all tokens whose probability has moved far. It is not
 * the preference loss IPO.
 */
export class PrimeRLIPOLossFn extends policyLoss({
  name: 'prime_rl_ipo',
  summary: 'ℓ = −A·r + τ·(ln r)², where the first term lacks tokens whose probability has moved, up or down',
  source: ['arXiv 2602.02276', 'prime-rl'],
  reads: RATIO_KEYS,
  options: {
    ipoThreshold: number({
      default: 0.1,
      atLeast: 0,
      typical: [0.02, 0.5],
      help: 'tokens are dropped if their probability has changed by more than this',
    }),
    ...ADVANTAGE_SCALE,
    ...PENALTY,
    ...TOKEN_MEAN,
  },
  metrics: TRUST_REGION,
  numerics: {
    range: 'logprob − old_logprob from −20 to 20',
    outside: 'the ratio is not clipped: it overflows from 88 on where both probabilities are small',
    /** The penalty cancels the policy gradient where the two are equally large. */
    cancels: penaltyOf,
  },
  formula: (symbols, { ipoThreshold, advTau, klTau }) => {
    const dropped = symbols.abs(probabilityChange(symbols)).gt(ipoThreshold);
    return trustRegion(symbols, symbols.A.mul(advTau), dropped, klTau);
  },
}) {}

/** Distillation as a policy gradient, as in prime-rl and AReaL: the log-ratio of a teacher to the policy is the advantage. */
export class RefKLLossFn extends policyLoss({
  name: 'ref_kl',
  summary: 'ℓ = −c·sg(ref_logprob − logprob)·r + τ·(ln r)²: distillation as a policy gradient',
  details: ["AReaL's pure distillation is mask_low null, kl_tau 0, coef 0.005."],
  source: ['prime-rl', 'AReaL'],
  reads: ['old_logprob', 'ref_logprob', 'action_mask'],
  options: {
    maskLow: number({
      default: 0.2,
      nullable: true,
      atLeast: 0,
      typical: [0.02, 0.5],
      help: 'tokens are dropped from the first term if their probability has fallen by more than this; null for no limit',
    }),
    ...PENALTY,
    coef: number({ default: 1, typical: [0.005, 2], help: 'factor of the first term' }),
    ...TOKEN_MEAN,
  },
  metrics: { ...TRUST_REGION, ref_kl: OF_ROWS },
  numerics: {
    range: 'logprob − old_logprob from −20 to 20',
    outside: 'the ratio is not clipped: it overflows from 88 on',
    overflows: 'always',
    /** The penalty cancels the policy gradient where the two are equally large. */
    cancels: penaltyOf,
  },
  formula: (symbols, { maskLow, klTau, coef }) => {
    const { lp, ref, sg, rowMean, constant } = symbols;
    const dropped = maskLow === undefined ? constant(0) : probabilityChange(symbols).lt(-maskLow);
    const distance = sg(ref.sub(lp));
    const { loss, metrics } = trustRegion(symbols, distance.mul(coef), dropped, klTau);
    return { loss, metrics: { ...metrics, ref_kl: { row: rowMean(distance) } } };
  },
}) {}

/** CE-GPPO: PPO whose clipped tokens keep a bounded gradient. With both factors 1, it is GPPO. */
export class CEGPPOLossFn extends policyLoss({
  name: 'ce_gppo',
  summary: 'PPO whose clipped tokens keep a gradient, scaled by β₁ below the range and by β₂ above it',
  details: ['GPPO is beta1 1, beta2 1.'],
  source: ['arXiv 2509.20712', 'arXiv 2508.07629', 'CE-GPPO'],
  reads: RATIO_KEYS,
  options: {
    ...clipRange(0.2, 0.2),
    beta1: number({
      default: 0.75,
      atLeast: 0,
      typical: [0, 1.5],
      help: 'factor of tokens with A < 0 whose ratio is below the range',
    }),
    beta2: number({
      default: 1,
      atLeast: 0,
      typical: [0, 1.5],
      help: 'factor of tokens with A > 0 whose ratio is above the range',
    }),
    ...dualClip(10),
    lossAggMode: aggregation('token-mean'),
  },
  metrics: { ...CLIP_METRICS, pg_loss: LOSS },
  numerics: {
    range: 'logprob − old_logprob from −20 to 20',
    outside: 'the dual clip limits the loss where A < 0; without it, the ratio overflows from 88 on',
  },
  formula: (symbols, options) => {
    const { d } = symbols;
    const gentle = gentleSurrogate(symbols, d, rangeOf(options), {
      below: options.beta1,
      above: options.beta2,
    });
    const { loss: perToken, cut } = limited(symbols, gentle.loss, options.clipRatioC);
    return aggregated(symbols, perToken, options.lossAggMode, clipMetrics(gentle.clipped, cut, d));
  },
}) {}

/** The most values of the upper bound that can be tried. Each is a sum over the batch. */
const MAX_TRIALS = 64;

const bound = (value: number, typical: readonly [number, number], help: string) =>
  number({ default: value, atLeast: 0, typical, help });
const BOUNDS = {
  advRatioTarget: bound(
    1,
    [0.3, 3],
    'the bounds rise until the sum of A·r over positive tokens is this many times that over negative tokens',
  ),
  ratioLowerStart: bound(0.6, [0.4, 0.7], "the lower bound's first value"),
  ratioLowerMax: bound(0.8, [0.6, 0.9], "the lower bound's largest value"),
  ratioLowerStep: bound(0.05, [0, 0.1], 'how much the lower bound rises at a time; 0 keeps its first value'),
  ratioUpperStart: bound(1.2, [1.1, 1.4], "the upper bound's first value"),
  ratioUpperMax: bound(2, [1.3, 2.5], "the upper bound's largest value"),
  ratioUpperStep: bound(
    0.05,
    [0.05, 0.3],
    'how much the upper bound rises at a time; 0 keeps its first value',
  ),
  eps: number({ default: 1e-8, atLeast: 0, help: 'added to the sum over negative tokens' }),
};

/** BAPO: PPO whose bounds on the ratio rise until positive tokens weigh enough against negative ones. */
export class BAPOLossFn extends policyLoss({
  name: 'bapo',
  summary: 'PPO whose bounds on the ratio rise until positive tokens balance negative ones',
  details: [
    'First the lower bound rises, then the upper one. Both are the same for the whole batch.',
    'A higher lower bound only adds weight to negative tokens, so it rises to its largest value or not at all.',
  ],
  source: ['arXiv 2510.18927', 'BAPO'],
  reads: RATIO_KEYS,
  options: { ...BOUNDS, ...dualClip(3), lossAggMode: aggregation('token-mean') },
  metrics: {
    ...CLIP_METRICS,
    pg_loss: LOSS,
    clip_low: RATIO,
    clip_high: RATIO,
    pos_neg_ratio: { ...RATIO, when: 'unless the sum over negative tokens is 0' },
  },
  numerics: SATURATING,
  formula: (symbols, options) => {
    const { d, exp, sg } = symbols;
    const log = limitedLog(symbols, d);
    const { low, high, balance } = adaptedBounds(symbols, sg(exp(log)), options);
    const ppo = surrogate(symbols, exp(log), [low, high]);
    const { loss: perToken, cut } = limited(symbols, ppo.loss, options.clipRatioC);
    return aggregated(symbols, perToken, options.lossAggMode, {
      ...clipMetrics(ppo.clipped, cut, log),
      clip_low: { batch: low },
      clip_high: { batch: high },
      pos_neg_ratio: { batch: balance },
    });
  },
}) {}

// Returns the bounds on the ratio, and the balance of the batch's positive and negative tokens under them. The balance is
// NaN without the latter, and the bounds then do not rise.
function adaptedBounds(
  { A, batchSum, max, min, select, constant }: ProgramSymbols,
  ratio: Expression,
  options: CheckedOptions<typeof BOUNDS>,
): { low: Expression; high: Expression; balance: Expression } {
  const { ratioLowerStart, ratioLowerMax, ratioLowerStep, eps } = options;
  const gainUnder = (high: number) => batchSum(max(A, 0).mul(min(ratio, high)));
  const lossOver = (low: number) => batchSum(max(A.neg(), 0).mul(max(ratio, low)));
  const balanceOf = (gain: Expression, loss: Expression) =>
    select(loss.gt(0), gain.div(loss.add(eps)), constant(0).div(0));
  const isShort = (gain: Expression, loss: Expression) => balanceOf(gain, loss).lt(options.advRatioTarget);

  const trials = upperTrials(options).map((high) => ({ high: constant(high), gain: gainUnder(high) }));
  let low = constant(ratioLowerStart);
  let loss = lossOver(ratioLowerStart);
  if (ratioLowerStep > 0 && ratioLowerStart < ratioLowerMax) {
    const rises = isShort(trials[0]!.gain, loss);
    low = select(rises, ratioLowerMax, low);
    loss = select(rises, lossOver(ratioLowerMax), loss);
  }
  const { high, gain } = trials.reduceRight((next, trial) => {
    const rises = isShort(trial.gain, loss);
    return { high: select(rises, next.high, trial.high), gain: select(rises, next.gain, trial.gain) };
  });
  return { low, high, balance: balanceOf(gain, loss) };
}

// Returns the values of the upper bound in the order in which they are tried.
function upperTrials({
  ratioUpperStart,
  ratioUpperMax,
  ratioUpperStep,
}: CheckedOptions<typeof BOUNDS>): number[] {
  const trials = [ratioUpperStart];
  while (ratioUpperStep > 0 && trials.at(-1)! < ratioUpperMax) {
    if (trials.length === MAX_TRIALS)
      throw new LossError('ERR_INVALID_OPTION', {
        option: 'ratioUpperStep',
        expected: (spell) => `at most ${MAX_TRIALS} values up to ${spell('ratioUpperMax')}`,
        received: String(ratioUpperStep),
      });
    trials.push(Math.min(trials.at(-1)! + ratioUpperStep, ratioUpperMax));
  }
  return trials;
}

/** ERC (entropy ratio clipping): PPO or GPPO. Only tokens whose entropy is near its old value have a gradient. */
export class ERCLossFn extends policyLoss({
  name: 'erc',
  summary: "PPO or GPPO, with gradients only where the entropy's ratio to its old value is within bounds",
  details: ['The loss and the metrics count all tokens.'],
  source: ['arXiv 2512.05591', 'ERC'],
  reads: [...RATIO_KEYS, 'entropy', 'old_entropy'],
  options: {
    base: choice(['ppo', 'gppo'], { default: 'ppo', help: 'the loss: PPO, or ce_gppo with both factors 1' }),
    ...clipRange(0.2, 0.28),
    ...dualClip(10),
    entropyRatioLow: number({
      default: 0.95,
      atLeast: 0,
      typical: [0.8, 0.99],
      help: 'a token has a gradient only if the ratio is above this',
    }),
    entropyRatioHigh: number({
      default: 1.05,
      atLeast: 0,
      typical: [1.01, 1.2],
      help: 'a token has a gradient only if the ratio is below this',
    }),
    lossAggMode: aggregation('token-mean'),
  },
  metrics: { pg_clipfrac: FRACTION, ppo_kl: NATS, entropy_kept_fraction: FRACTION, pg_loss: LOSS },
  numerics: SATURATING,
  formula: (symbols, options) => {
    const { d, H, oldEntropy, exp, select, sg } = symbols;
    const log = limitedLog(symbols, d);
    const base =
      options.base === 'ppo'
        ? surrogate(symbols, exp(log), rangeOf(options))
        : gentleSurrogate(symbols, log, rangeOf(options), { below: 1, above: 1 });
    const perToken = limited(symbols, base.loss, options.clipRatioC).loss;
    const ratio = H.add(1e-8).div(oldEntropy.add(1e-8));
    const isNear = ratio.gt(options.entropyRatioLow).and(ratio.lt(options.entropyRatioHigh));
    const kept = select(isNear, perToken, sg(perToken));
    return aggregated(symbols, kept, options.lossAggMode, {
      pg_clipfrac: { token: base.clipped },
      ppo_kl: { token: log.neg() },
      entropy_kept_fraction: { token: isNear },
    });
  },
}) {}

/** UP-GRPO: tokens with A > 0 have the unclipped policy gradient, and all others have PPO's loss. */
export class UPLossFn extends policyLoss({
  name: 'up',
  summary: 'ℓ = −A·exp(logprob − sg(logprob)) where A > 0, and max(−A·r, −A·clip(r)) elsewhere',
  details: ['The upper end of the clip range never has an effect.'],
  source: ['arXiv 2607.06987'],
  reads: RATIO_KEYS,
  options: { ...clipRange(0.2, 0.2), ...DUAL_CLIP, lossAggMode: aggregation('token-mean') },
  metrics: { ...CLIP_METRICS, pg_loss: LOSS },
  numerics: {
    range: 'logprob − old_logprob from −20 to 20',
    outside: 'the ratio overflows from 88 on where A < 0, unless the dual clip limits the loss',
    overflows: 'for A < 0',
  },
  formula: (symbols, options) => {
    const { A, lp, d, r, select } = symbols;
    const ppo = limited(symbols, surrogate(symbols, r, rangeOf(options)).loss, options.clipRatioC);
    const perToken = select(A.gt(0), A.neg().mul(unitRatio(symbols, lp)), ppo.loss);
    const clipped = A.lt(0).and(r.lt(1 - options.clipRangeLow));
    return aggregated(symbols, perToken, options.lossAggMode, clipMetrics(clipped, ppo.cut, d));
  },
}) {}
