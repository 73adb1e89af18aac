// verl's distillation losses: an estimate of the divergence from a teacher, minimized itself or by policy gradient.
import type { MetricsOf } from '../../../core/declaration.js';
import { lossMetric } from '../../../program/loss-program.js';
import { expressionLossClass } from '../expression-loss.js';
import { POLICY_LOSS_FN } from '../policy-loss-fn.js';
import { AGGREGATION, weightOf } from './aggregation.js';
import { CLIP_METRICS, CLIP_RATIO, dualClipped } from './clipped.js';
import { ESTIMATES } from './estimates.js';

const BY_POLICY_GRADIENT = 'with use_policy_gradient';
const IN_ONE_CALL = 'when the whole batch is computed in one call';

/** Distillation as in verl: the loss is an estimate x of the divergence from the teacher, or PPO with A = −x. */
export class VerlDistillationLossFn extends expressionLossClass(
  {
    name: 'verl/distillation',
    summary: 'ℓ = x, an estimate of the divergence from the teacher, or PPO with A = −x',
    details: [
      'The estimates are those of the KL functions; k3 is low_var_kl. abs_loss, loss_min and loss_max are of the estimate before loss_max_clamp.',
      'PPO is that of verl/vanilla, with clip_ratio_c = 3.',
    ],
    source: ['arXiv 2306.13649', 'verl'],
    reads: ['old_logprob', 'teacher_logprob', 'action_mask'],
    options: {
      lossMode: {
        type: 'choice',
        choices: ['k1', 'k2', 'k3', 'abs', 'low_var_kl'],
        default: 'k3',
        needs: { k1: { usePolicyGradient: [true] } },
        help: 'the estimate of the divergence',
      },
      usePolicyGradient: {
        type: 'boolean',
        default: false,
        help: 'whether the estimate is the negative advantage of PPO instead of the loss',
      },
      lossMaxClamp: {
        type: 'number',
        trinity: 10,
        above: 0,
        typical: [0.5, 10],
        help: 'the estimate is clipped to this size; not clipped if absent',
      },
      ...CLIP_RATIO,
      ...AGGREGATION,
    },
    metrics: {
      'distillation/abs_loss': { unit: 'nats per token' },
      'distillation/loss_min': { unit: 'nats per token', when: IN_ONE_CALL },
      'distillation/loss_max': { unit: 'nats per token', when: IN_ONE_CALL },
      'distillation/pg_clipfrac': { ...CLIP_METRICS.pg_clipfrac, when: BY_POLICY_GRADIENT },
      'distillation/pg_clipfrac_lower': { ...CLIP_METRICS.pg_clipfrac_lower, when: BY_POLICY_GRADIENT },
      'distillation/ppo_kl': { ...CLIP_METRICS.ppo_kl, when: BY_POLICY_GRADIENT },
      'distillation/loss': { unit: 'loss' },
    },
    numerics: {
      range: 'logprobs that differ by at most 20 from each other',
      outside: 'k3 and low_var_kl are clipped to 10, and the estimate to loss_max_clamp',
    },
  },
  (symbols, options) => {
    const { lp, teacher, abs, clip, sg, batchMin, batchMax } = symbols;
    const estimate = ESTIMATES[options.lossMode](symbols, teacher.sub(lp));
    const most = options.lossMaxClamp;
    const x = most === undefined ? estimate : clip(estimate, -most, most);
    const ppo = options.usePolicyGradient
      ? dualClipped(symbols, sg(x).neg(), { ...options, clipRatioC: 3 })
      : undefined;
    const loss = (ppo?.perToken ?? x).mul(weightOf('VerlDistillationLossFn', symbols, options));
    return {
      loss,
      metrics: {
        'distillation/abs_loss': { token: abs(estimate) },
        'distillation/loss_min': { batch: batchMin(estimate) },
        'distillation/loss_max': { batch: batchMax(estimate) },
        'distillation/pg_clipfrac': ppo?.metrics.pg_clipfrac,
        'distillation/pg_clipfrac_lower': ppo?.metrics.pg_clipfrac_lower,
        'distillation/ppo_kl': ppo?.metrics.ppo_kl,
        'distillation/loss': lossMetric(symbols, loss),
      },
    };
  },
) {
  static {
    POLICY_LOSS_FN.register('verl/distillation', VerlDistillationLossFn);
  }
}

/** Options of {@link VerlDistillationLossFn}. */
export type VerlDistillationLossOptions = NonNullable<
  ConstructorParameters<typeof VerlDistillationLossFn>[0]
>;
/** Metrics of {@link VerlDistillationLossFn}. */
export type VerlDistillationMetrics = MetricsOf<(typeof VerlDistillationLossFn)['declaration']['metrics']>;
