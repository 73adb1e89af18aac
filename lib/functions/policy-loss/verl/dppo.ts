// verl's DPPO: REINFORCE with a truncated ratio, on tokens whose probability has not moved too far.
import type { MetricsOf } from '../../../core/declaration.js';
import type { CheckedOptions } from '../../../core/options.js';
import type { Expression, ProgramSymbols } from '../../../program/expression.js';
import { bounded } from '../../correction/verl/arithmetic.js';
import { CORRECTION_METRICS } from '../../correction/verl/rollout-metrics.js';
import { ROLLOUT_CORRECTION } from '../../correction/verl/rollout-weights.js';
import { expressionLossClass } from '../expression-loss.js';
import { POLICY_LOSS_FN } from '../policy-loss-fn.js';
import { AGGREGATION, weightOf } from './aggregation.js';
import { CLIP_METRICS, CLIP_RATIO, CLIP_RATIO_C, type Surrogate } from './clipped.js';
import { CORRECTED_KEYS, corrected } from './corrected.js';

const OPTIONS = { ...CLIP_RATIO, ...CLIP_RATIO_C, ...AGGREGATION, ...ROLLOUT_CORRECTION } as const;
type Options = CheckedOptions<typeof OPTIONS>;

const SHARED = {
  source: ['arXiv 2602.04879', 'verl'],
  reads: CORRECTED_KEYS,
  options: OPTIONS,
  metrics: { ...CLIP_METRICS, pg_loss: { unit: 'loss' }, ...CORRECTION_METRICS },
  numerics: {
    range: 'logprob − old_logprob from −20 to 20',
    outside: 'the log-ratio is clipped to this range, and the ratio to clip_ratio_c',
  },
} as const;

const DETAILS = [
  'k is 1 for tokens that are kept. The ratio is constant for the gradient, which is −A·min(r, clip_ratio_c)·k.',
  'clip_ratio_low and clip_ratio_high bound the divergence. The paper compares with the policy that sampled the tokens.',
];

// `isNear` tells which tokens are kept.
function dppo(symbols: ProgramSymbols, { clipRatioC }: Options, isNear: Expression): Surrogate {
  const { lp, A, exp, min, sg } = symbols;
  const d = bounded(symbols, symbols.d);
  const ratio = exp(d);
  return {
    perToken: A.neg()
      .mul(sg(min(ratio, clipRatioC).mul(isNear)))
      .mul(lp),
    metrics: {
      pg_clipfrac: { token: isNear.not() },
      pg_clipfrac_lower: { token: ratio.gt(clipRatioC).and(isNear) },
      ppo_kl: { token: d.neg() },
    },
  };
}

// Returns whether the probability rose by at most clipRatioHigh where A > 0, and fell by at most clipRatioLow elsewhere.
function hasNearProbability(
  { lp, old, A, exp, select }: ProgramSymbols,
  { clipRatioLow, clipRatioHigh }: Options,
): Expression {
  const rise = exp(lp).sub(exp(old));
  return select(A.gt(0), rise.le(clipRatioHigh), rise.ge(-clipRatioLow));
}

// Returns whether the Kullback–Leibler divergence of "this token or another" is at most clipRatioHigh where A > 0 and
// clipRatioLow elsewhere, or whether the gradient step would bring the two policies closer.
function hasNearDivergence(
  { lp, old, A, constant, expm1, log, select }: ProgramSymbols,
  { clipRatioLow, clipRatioHigh }: Options,
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

/** DPPO with a bound on the total variation, as in verl: ℓ = −A·min(r, clip_ratio_c)·k·logprob. */
export class VerlDPPOTVLossFn extends expressionLossClass(
  {
    ...SHARED,
    name: 'verl/dppo_tv',
    summary: 'ℓ = −A·min(r, clip_ratio_c)·k·logprob, where k bounds the change of the probability',
    details: DETAILS,
  },
  (symbols, options) =>
    corrected('VerlDPPOTVLossFn', symbols, options, (kept) => {
      const { perToken, metrics } = dppo(kept, options, hasNearProbability(kept, options));
      return { loss: perToken.mul(weightOf('VerlDPPOTVLossFn', kept, options)), metrics };
    }),
) {
  static {
    POLICY_LOSS_FN.register('verl/dppo_tv', VerlDPPOTVLossFn);
  }
}

/** DPPO with a bound on the Kullback–Leibler divergence, as in verl: ℓ = −A·min(r, clip_ratio_c)·k·logprob. */
export class VerlDPPOKLLossFn extends expressionLossClass(
  {
    ...SHARED,
    name: 'verl/dppo_kl',
    summary: 'ℓ = −A·min(r, clip_ratio_c)·k·logprob, where k bounds the divergence',
    details: DETAILS,
  },
  (symbols, options) =>
    corrected('VerlDPPOKLLossFn', symbols, options, (kept) => {
      const { perToken, metrics } = dppo(kept, options, hasNearDivergence(kept, options));
      return { loss: perToken.mul(weightOf('VerlDPPOKLLossFn', kept, options)), metrics };
    }),
) {
  static {
    POLICY_LOSS_FN.register('verl/dppo_kl', VerlDPPOKLLossFn);
  }
}

/** Options of {@link VerlDPPOTVLossFn}. */
export type VerlDPPOTVLossOptions = NonNullable<ConstructorParameters<typeof VerlDPPOTVLossFn>[0]>;
/** Metrics of {@link VerlDPPOTVLossFn}. */
export type VerlDPPOTVMetrics = MetricsOf<(typeof VerlDPPOTVLossFn)['declaration']['metrics']>;
/** Options of {@link VerlDPPOKLLossFn}. */
export type VerlDPPOKLLossOptions = NonNullable<ConstructorParameters<typeof VerlDPPOKLLossFn>[0]>;
/** Metrics of {@link VerlDPPOKLLossFn}. */
export type VerlDPPOKLMetrics = MetricsOf<(typeof VerlDPPOKLLossFn)['declaration']['metrics']>;
