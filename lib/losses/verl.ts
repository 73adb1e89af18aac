// verl's policy losses, as its actor computes them: under a rollout correction, with verl's aggregation modes. verl-recipes.ts
// has the others.
import { choice, number } from '../base/option.js';
import type { CheckedOptions } from '../base/options.js';
import type { Expression, ProgramSymbols } from '../program/expression.js';
import {
  CLIP_RATIO,
  CLIP_RATIO_C,
  CORRECTED_KEYS,
  corrected,
  correctionOf,
  dualClipped,
  inBatch,
  underCorrection,
  verlRange,
} from './corrected-loss.js';
import { VERL_AGGREGATION, VERL_DIVISOR } from './divisors.js';
import { policyLoss } from './policy-loss.js';
import { RATIO_KEYS } from './policy-loss-declaration.js';
import { CORRECTION_METRICS, rolloutCorrection } from './rollout-correction.js';
import { ROLLOUT_CORRECTION } from './rollout-weights.js';
import { limitedLog, meanOfRow } from './statistics.js';
import { CLIP_METRICS, clipMetrics, reinforced, softGate, surrogate } from './surrogate.js';
import { FRACTION, LOSS, NATS } from './units.js';

// The metrics of the losses that clip, and of their rollout correction.
const CLIPPED_METRICS = { ...CLIP_METRICS, pg_loss: LOSS, ...CORRECTION_METRICS };
const LOG_RATIOS = 'logprob − old_logprob from −20 to 20';

/** PPO with a dual clip as in verl: ℓ = max(−A·r, −A·clip(r)), and at most −A·clip_ratio_c where A < 0. */
export class VerlVanillaLossFn extends policyLoss({
  name: 'verl/vanilla',
  summary: 'ℓ = max(−A·r, −A·clip(r)), at most −A·clip_ratio_c where A < 0',
  source: ['arXiv 1707.06347', 'arXiv 1912.09729', 'verl'],
  unlike: { ppo: "no sequence masking; verl's aggregation and rollout correction" },
  reads: CORRECTED_KEYS,
  options: { ...CLIP_RATIO, ...CLIP_RATIO_C, ...VERL_AGGREGATION, ...ROLLOUT_CORRECTION },
  metrics: CLIPPED_METRICS,
  numerics: { range: LOG_RATIOS, outside: 'the log-ratio is clipped to this range, where the gradient is 0' },
  formula: (symbols, options) => corrected(symbols, options, (kept) => dualClipped(kept, kept.A, options)),
}) {}

const DPPO = {
  source: ['arXiv 2602.04879', 'verl'],
  details: [
    'k is 1 for tokens that are kept. The ratio is constant for the gradient, which is −A·min(r, clip_ratio_c)·k.',
    'clip_ratio_low and clip_ratio_high bound the divergence. The paper compares with the policy that sampled the tokens.',
  ],
  reads: CORRECTED_KEYS,
  options: { ...CLIP_RATIO, ...CLIP_RATIO_C, ...VERL_AGGREGATION, ...ROLLOUT_CORRECTION },
  metrics: CLIPPED_METRICS,
  numerics: {
    range: LOG_RATIOS,
    outside: 'the log-ratio is clipped to this range, and the ratio to clip_ratio_c',
  },
};
type DPPOOptions = CheckedOptions<typeof DPPO.options>;

// `isNear` tells which tokens are kept.
function dppo(symbols: ProgramSymbols, { clipRatioC }: DPPOOptions, isNear: Expression) {
  const d = limitedLog(symbols, symbols.d);
  const ratio = symbols.exp(d);
  return {
    perToken: reinforced(symbols, symbols.min(ratio, clipRatioC).mul(isNear)),
    metrics: clipMetrics(isNear.not(), ratio.gt(clipRatioC).and(isNear), d),
  };
}

/** DPPO with a bound on the total variation, as in verl: ℓ = −A·min(r, clip_ratio_c)·k·logprob. */
export class VerlDPPOTVLossFn extends policyLoss({
  name: 'verl/dppo_tv',
  summary: 'ℓ = −A·min(r, clip_ratio_c)·k·logprob, where k bounds the change of the probability',
  ...DPPO,
  formula: (symbols, options) =>
    corrected(symbols, options, (kept) => {
      // The probability rose by at most clipRatioHigh where A > 0, and fell by at most clipRatioLow elsewhere.
      const { lp, old, A, exp, select } = kept;
      const rise = exp(lp).sub(exp(old));
      return dppo(
        kept,
        options,
        select(A.gt(0), rise.le(options.clipRatioHigh), rise.ge(-options.clipRatioLow)),
      );
    }),
}) {}

/** DPPO with a bound on the Kullback–Leibler divergence, as in verl: ℓ = −A·min(r, clip_ratio_c)·k·logprob. */
export class VerlDPPOKLLossFn extends policyLoss({
  name: 'verl/dppo_kl',
  summary: 'ℓ = −A·min(r, clip_ratio_c)·k·logprob, where k bounds the divergence',
  ...DPPO,
  formula: (symbols, options) =>
    corrected(symbols, options, (kept) => dppo(kept, options, hasNearDivergence(kept, options))),
}) {}

// Returns whether the Kullback–Leibler divergence of "this token or another" is at most clipRatioHigh where A > 0 and
// clipRatioLow elsewhere, or whether the gradient step would bring the two policies closer.
function hasNearDivergence(
  { lp, old, A, constant, expm1, log, select }: ProgramSymbols,
  { clipRatioLow, clipRatioHigh }: DPPOOptions,
): Expression {
  const [notQ, notP] = [expm1(old).neg(), expm1(lp).neg()];
  const q = constant(1).sub(notQ);
  const ofOthers = notQ.mul(log(notQ.add(1e-8).div(notP.add(1e-8))));
  const divergence = q.mul(old.sub(lp)).add(ofOthers);
  return select(
    A.gt(0),
    divergence.le(clipRatioHigh).or(lp.le(old)),
    divergence.le(clipRatioLow).or(lp.ge(old)),
  );
}

/** GPG (group policy gradient) as in verl: ℓ = −A·logprob. */
export class VerlGPGLossFn extends policyLoss({
  name: 'verl/gpg',
  summary: 'ℓ = −A·logprob',
  details: ['old_logprob is read only for a rollout correction.'],
  source: ['arXiv 2504.02546', 'verl'],
  reads: CORRECTED_KEYS,
  options: { ...VERL_AGGREGATION, ...ROLLOUT_CORRECTION },
  metrics: { pg_loss: LOSS, ...CORRECTION_METRICS },
  numerics: { range: 'any finite logprobs and advantages', outside: 'nothing is clipped' },
  formula: (symbols, options) =>
    corrected(symbols, options, (kept) => ({ perToken: reinforced(kept), metrics: {} })),
}) {}

/** DRO (direct reward optimisation) as in verl: ℓ = −A·logprob + β/2·(ln r)². */
export class VerlDROLossFn extends policyLoss({
  name: 'verl/dro',
  summary: 'ℓ = −A·logprob + β/2·(ln r)²',
  details: ['The paper squares the sum of ln r over a row; verl squares it for each token.'],
  source: ['arXiv 2405.19107', 'verl'],
  reads: CORRECTED_KEYS,
  options: {
    droBeta: number({
      above: 0,
      required: true,
      typical: [0.05, 5],
      help: 'β, the coefficient of the penalty',
    }),
    ...VERL_AGGREGATION,
    ...ROLLOUT_CORRECTION,
  },
  metrics: { ppo_kl: NATS, pg_loss: LOSS, ...CORRECTION_METRICS },
  numerics: {
    range: 'any finite logprobs and advantages',
    outside: 'nothing is clipped',
    /** REINFORCE and the penalty cancel each other. */
    cancels: ({ advantage, logprob }) => ({
      value: Math.abs(advantage * logprob),
      gradient: Math.abs(advantage),
    }),
  },
  formula: (symbols, options) =>
    corrected(symbols, options, (kept) => ({
      perToken: reinforced(kept).add(kept.square(kept.d).mul(options.droBeta / 2)),
      metrics: { ppo_kl: { token: kept.d.neg() } },
    })),
}) {}

/** GMPO (geometric-mean policy optimization) as in verl. It is meant for advantages that are the same in a row. */
export class VerlGeoMeanLossFn extends policyLoss({
  name: 'verl/geo_mean',
  summary: 'a row’s loss is −mean(A)·exp(mean(e)), e = the clipped ln r',
  details: [
    'e = s·min(s·ln r, s·clip(ln r, −clip_ratio_low, clip_ratio_high)), where s is the sign of A.',
    'The loss is the mean over all rows. pg_clipfrac counts tokens with A > 0, and pg_clipfrac_lower those with A < 0.',
  ],
  source: ['arXiv 2507.20673', 'verl'],
  unlike: { 'trl/gmpo': 'another default clip range, no KL term, and tokens with A = 0 count as ln r = 0' },
  reads: CORRECTED_KEYS,
  ofRows: true,
  options: { ...CLIP_RATIO, ...ROLLOUT_CORRECTION },
  metrics: CLIPPED_METRICS,
  numerics: {
    range: LOG_RATIOS,
    overflows: 'for A < 0',
    outside:
      'the ratio is not clipped where A < 0: the gradient overflows if its mean over a row is above 88',
  },
  formula: (symbols, { clipRatioLow, clipRatioHigh, ...correction }) =>
    underCorrection(symbols, correctionOf(symbols, correction), (kept) => {
      const { A, d, rows, sign, min, clip, exp } = kept;
      const s = sign(A);
      const e = s.mul(min(s.mul(d), s.mul(clip(d, -clipRatioLow, clipRatioHigh))));
      const ofRow = meanOfRow(kept, A)
        .neg()
        .mul(exp(meanOfRow(kept, e)));
      const isOutside = d.lt(-clipRatioLow).or(d.gt(clipRatioHigh));
      return {
        rowLoss: ofRow.div(rows),
        metrics: clipMetrics(isOutside.and(A.gt(0)), isOutside.and(A.lt(0)), d),
      };
    }),
}) {}

/** GSPO as in verl: ℓ = max(−A·s, −A·clip(s)), where s is the geometric mean of the row's ratios. */
export class VerlGSPOLossFn extends policyLoss({
  name: 'verl/gspo',
  summary: 'ℓ = max(−A·s, −A·clip(s)), s = exp(mean of ln r over the row)',
  details: [
    'The gradient of s is that of the token alone. The aggregation is always seq-mean-token-mean.',
    'pg_clipfrac_lower is 0.',
  ],
  source: ['arXiv 2507.18071', 'verl'],
  unlike: { gspo: 'another default clip range, a ratio of at most e^10, and always seq-mean-token-mean' },
  reads: CORRECTED_KEYS,
  options: { ...CLIP_RATIO, ...VERL_DIVISOR, ...ROLLOUT_CORRECTION },
  metrics: CLIPPED_METRICS,
  numerics: {
    range: 'a mean of logprob − old_logprob of at most 10 in each row',
    outside: 'larger means count as 10, and the gradient is 0',
  },
  formula: (symbols, options) =>
    corrected(symbols, { ...options, lossAggMode: 'seq-mean-token-mean' }, (kept) => {
      const { lp, d, exp, min, sg, rowMean } = kept;
      const ratio = exp(min(lp.sub(sg(lp)).add(sg(rowMean(d))), 10));
      const { loss, clipped } = surrogate(kept, ratio, verlRange(options));
      return { perToken: loss, metrics: clipMetrics(clipped, 0, d) };
    }),
}) {}

/** SAPO as in verl: ℓ = −A·4/τ·sigmoid(τ·(r − 1)). */
export class VerlSAPOLossFn extends policyLoss({
  name: 'verl/sapo',
  summary: 'ℓ = −A·4/τ·sigmoid(τ·(r − 1))',
  details: [
    'τ is tau_pos where A > 0, and tau_neg elsewhere.',
    'The aggregation is always seq-mean-token-mean. The fractions of clipped tokens are 0.',
  ],
  source: ['arXiv 2511.20347', 'verl'],
  unlike: { sapo: 'the gradient goes through the gate, and the aggregation is always seq-mean-token-mean' },
  reads: CORRECTED_KEYS,
  options: {
    tauPos: number({ default: 1, above: 0, typical: [0.5, 3], help: 'how sharp the gate is where A > 0' }),
    tauNeg: number({ default: 1.05, above: 0, typical: [0.5, 3], help: 'how sharp the gate is elsewhere' }),
    ...VERL_DIVISOR,
    ...ROLLOUT_CORRECTION,
  },
  metrics: CLIPPED_METRICS,
  numerics: {
    range: LOG_RATIOS,
    outside: 'the log-ratio is clipped to this range, where the gradient is 0',
    /** Far from a ratio of 1, the gate's slope is nearly 0 and has a large relative error. At 1, the gradient is −A. */
    cancels: ({ advantage }) => ({ gradient: Math.abs(advantage) }),
  },
  formula: (symbols, options) =>
    corrected(symbols, { ...options, lossAggMode: 'seq-mean-token-mean' }, (kept) => {
      const { A, expm1, select } = kept;
      const d = limitedLog(kept, kept.d);
      const gate = softGate(kept, expm1(d), select(A.gt(0), options.tauPos, options.tauNeg));
      return { perToken: A.neg().mul(gate), metrics: clipMetrics(0, 0, d) };
    }),
}) {}

/** CISPO as in verl: ℓ = −A·clip(r)·logprob, where the clipped ratio is constant for the gradient. */
export class VerlCISPOLossFn extends policyLoss({
  name: 'verl/cispo',
  summary: 'ℓ = −A·sg(clip(r))·logprob',
  details: ['pg_clipfrac is the fraction of tokens whose ratio is clipped; pg_clipfrac_lower is 0.'],
  source: ['arXiv 2506.13585', 'verl'],
  unlike: { cispo: 'another default clip range, and no masking of clipped tokens' },
  reads: CORRECTED_KEYS,
  options: { ...CLIP_RATIO, ...VERL_AGGREGATION, ...ROLLOUT_CORRECTION },
  metrics: CLIPPED_METRICS,
  numerics: {
    range: LOG_RATIOS,
    outside: 'the log-ratio is clipped to this range, and the ratio to the clip range',
  },
  formula: (symbols, options) =>
    corrected(symbols, options, (kept) => {
      const d = limitedLog(kept, kept.d);
      const ratio = kept.exp(d);
      const [low, high] = verlRange(options);
      return {
        perToken: reinforced(kept, kept.clip(ratio, low, high)),
        metrics: clipMetrics(ratio.lt(low).or(ratio.gt(high)), 0, d),
      };
    }),
}) {}

const ONLY_PPO = "with loss_type 'ppo_clip'";

/** PPO or REINFORCE under a rollout correction that compares the current policy with old_logprob, as in verl. */
export class VerlBypassModeLossFn extends policyLoss({
  name: 'verl/bypass_mode',
  summary: 'ppo_clip: PPO; reinforce: ℓ = −A·W·logprob, W = importance weight',
  details: [
    'old_logprob is what the inference engine reported. The rollout correction compares logprob with it.',
    'PPO corrects by its own ratio, so its loss does not use the weights.',
  ],
  source: ['arXiv 2512.23075', 'verl'],
  reads: RATIO_KEYS,
  options: {
    lossType: choice(['ppo_clip', 'reinforce'], { default: 'ppo_clip', help: 'the loss that is corrected' }),
    ...CLIP_RATIO,
    ...CLIP_RATIO_C,
    ...VERL_AGGREGATION,
    ...ROLLOUT_CORRECTION,
  },
  metrics: {
    pg_clipfrac: { ...FRACTION, when: ONLY_PPO },
    pg_clipfrac_lower: { ...FRACTION, when: ONLY_PPO },
    ppo_kl: NATS,
    pg_loss: LOSS,
    ...CORRECTION_METRICS,
  },
  numerics: {
    range: LOG_RATIOS,
    outside: 'PPO clips the log-ratio to this range, and the weights do so too',
  },
  formula: (symbols, options) => {
    const { lp, old, sg } = symbols;
    const correction = rolloutCorrection(symbols, options, sg(lp), old);
    if (options.lossType === 'ppo_clip')
      return underCorrection(symbols, { ...correction, weight: undefined }, (kept) =>
        inBatch(kept, options, dualClipped(kept, kept.A, options)),
      );
    const { metrics, ...loss } = underCorrection(symbols, correction, (kept) =>
      inBatch(kept, options, {
        perToken: reinforced(kept),
        metrics: { ppo_kl: { token: kept.d.neg() } },
      }),
    );
    return { ...loss, metrics: { ...metrics, pg_clipfrac: undefined, pg_clipfrac_lower: undefined } };
  },
}) {}
