// The distillation loss of verl, which may be a policy gradient, and its metrics.
import { choice, flag, integer, number } from '../base/option.js';
import type { Expression, Operand } from '../program/expression.js';
import type { MetricExpression } from '../program/loss-program.js';
import { CLIP_RATIO, CLIP_RATIO_C, dualClipped } from './corrected-loss.js';
import { LIST } from './distillation-options.js';
import { atTarget, klTerm, listSum } from './distillation-terms.js';
import { VERL_AGGREGATION, verlWeight } from './divisors.js';
import type { EntrySymbols } from './entries.js';
import { logitsLoss } from './logits-loss.js';
import { IN_ONE_CALL, LOSS, NATS } from './units.js';

const MASS = { unit: 'probability' };
const EXTREME = { when: IN_ONE_CALL } as const;
const POLICY_GRADIENT = { when: 'with use_policy_gradient' } as const;
const TASK_REWARDS = { when: 'with use_task_rewards' } as const;
const CLIPPED = { unit: 'fraction of tokens' } as const;

/** The distillation of verl from the teacher's top k. */
export class VerlDistillTopkLossFn extends logitsLoss({
  name: 'verl/distill_topk',
  summary: "ℓ = Σ q·(ln q − ln p) over the teacher's list, at least 0, in verl's aggregation modes",
  details: [
    'Nothing is renormalized, and no other tokens count. Logarithms are at least log_prob_min_clamp.',
    'use_policy_gradient replaces ℓ by PPO with the advantage −ℓ, and use_task_rewards adds PPO with the advantages of the batch. Both read targets and old_logprob.',
    'distillation/overlap_ratio is the share of the list that is among as many tokens with the largest logits of the student.',
  ],
  source: ['verl'],
  reads: [...LIST, 'targets', 'old_logprob', 'advantages'],
  options: {
    strategy: choice(['fsdp', 'megatron'], {
      default: 'fsdp',
      help: 'the backend: megatron gives log-probabilities at the clamp no gradient, and clamps before it sums the masses',
    }),
    lossMode: choice(['forward_kl_topk'], { default: 'forward_kl_topk', help: 'the divergence' }),
    topk: integer({
      default: 128,
      atLeast: 1,
      typical: [1, 5],
      help: 'has no effect: the list has its own length',
    }),
    logProbMinClamp: number({
      default: -10,
      nullable: true,
      typical: [-20, -2],
      help: 'the least logarithm of a probability; null for no bound',
    }),
    lossMaxClamp: number({
      default: 10,
      atLeast: 0,
      nullable: true,
      typical: [0.5, 20],
      help: 'the largest ℓ; null for no bound',
    }),
    useChunkedTopk: flag({ default: false, help: 'has no effect on the result' }),
    useTaskRewards: flag({ default: false, help: 'adds PPO with the advantages of the batch' }),
    distillationLossCoef: number({
      default: 1,
      atLeast: 0,
      typical: [0, 2],
      help: 'the factor of the distillation loss with use_task_rewards',
    }),
    usePolicyGradient: flag({ default: false, help: 'PPO with the advantage −ℓ replaces ℓ' }),
    ...CLIP_RATIO,
    ...CLIP_RATIO_C,
    ...VERL_AGGREGATION,
  },
  metrics: {
    'distillation/loss': LOSS,
    'distillation/loss_min': { ...NATS, ...EXTREME },
    'distillation/loss_max': { ...NATS, ...EXTREME },
    'distillation/student_mass': MASS,
    'distillation/student_mass_min': { ...MASS, ...EXTREME },
    'distillation/student_mass_max': { ...MASS, ...EXTREME },
    'distillation/teacher_mass': MASS,
    'distillation/teacher_mass_min': { ...MASS, ...EXTREME },
    'distillation/teacher_mass_max': { ...MASS, ...EXTREME },
    'distillation/overlap_ratio': { unit: 'fraction of the list' },
    'distillation/overlap_token_advantage': { ...NATS, ...EXTREME },
    'distillation/pg_clipfrac': { ...CLIPPED, ...POLICY_GRADIENT },
    'distillation/pg_clipfrac_lower': { ...CLIPPED, ...POLICY_GRADIENT },
    'distillation/ppo_kl': { ...NATS, ...POLICY_GRADIENT },
    'actor/pg_clipfrac': { ...CLIPPED, ...TASK_REWARDS },
    'actor/pg_clipfrac_lower': { ...CLIPPED, ...TASK_REWARDS },
    'actor/ppo_kl': { ...NATS, ...TASK_REWARDS },
    'actor/pg_loss': { ...LOSS, ...TASK_REWARDS },
  },
  numerics: { range: 'any logits', outside: 'logarithms are clamped' },
  optional: ['old_logprob', 'advantages'],
  entries: ({ useTaskRewards, usePolicyGradient }) => ({
    over: 'given',
    target: useTaskRewards || usePolicyGradient,
    top: true,
  }),
  weights: (symbols, options) => [verlWeight(symbols, options)],
  formula: (symbols, options) => {
    const { useTaskRewards, usePolicyGradient, strategy, logProbMinClamp, lossMaxClamp } = options;
    const { student, teacher, isTop, isListed, exp, max, min, batchWeights, weighted, total, mean, sg } =
      symbols;
    const { rowsMin, rowsMax, rowsSum, select, oldLogprob, advantages, constant } = symbols;
    const isMegatron = strategy === 'megatron';
    const clamped = (x: Expression) => {
      if (logProbMinClamp === undefined) return x;
      return isMegatron ? max(logProbMinClamp, x) : max(x, logProbMinClamp);
    };
    const [s, t] = [clamped(student), clamped(teacher)];
    const term = klTerm(symbols, t, s);
    const divergence = max(listSum(symbols, term), 0);
    const bounded = lossMaxClamp === undefined ? divergence : min(divergence, lossMaxClamp);
    const mass = (x: Expression) => listSum(symbols, exp(x));
    const [ofStudent, ofTeacher] = isMegatron ? [mass(s), mass(t)] : [mass(student), mass(teacher)];
    const isShared = isListed.and(isTop);
    const shared = symbols.rowSum(isShared);
    const meanOfShared = symbols
      .rowSum(select(isShared, term, 0))
      .div(max(shared, 1))
      .neg();
    // The target then has a place after those of the list.
    const needsPolicy = useTaskRewards || usePolicyGradient;
    const logRatio = needsPolicy ? atTarget(symbols, student).sub(oldLogprob) : constant(0);
    const ppo = (A: Expression) => dualClipped({ ...symbols, d: logRatio }, A, options);
    const own = usePolicyGradient ? ppo(sg(bounded).neg()) : undefined;
    const task = useTaskRewards ? ppo(advantages) : undefined;
    const of = (x: Expression) => weighted(batchWeights[0], x);
    const distillation = of(own?.perToken ?? bounded);
    const policy = task && of(task.perToken);
    return {
      loss: policy ? policy.add(distillation.mul(options.distillationLossCoef)) : distillation,
      metrics: {
        'distillation/loss': total(distillation),
        'distillation/loss_min': { batch: rowsMin(divergence) },
        'distillation/loss_max': { batch: rowsMax(divergence) },
        'distillation/student_mass': mean(ofStudent),
        'distillation/student_mass_min': { batch: rowsMin(ofStudent) },
        'distillation/student_mass_max': { batch: rowsMax(ofStudent) },
        'distillation/teacher_mass': mean(ofTeacher),
        'distillation/teacher_mass_min': { batch: rowsMin(ofTeacher) },
        'distillation/teacher_mass_max': { batch: rowsMax(ofTeacher) },
        'distillation/overlap_ratio': mean(shared.div(symbols.rowLength.sub(needsPolicy ? 1 : 0))),
        'distillation/overlap_token_advantage': {
          batch: rowsSum(meanOfShared).div(max(rowsSum(shared.gt(0)), 1)),
        },
        ...ppoMetrics(symbols, 'distillation', own?.metrics),
        ...ppoMetrics(symbols, 'actor', task?.metrics),
        'actor/pg_loss': policy && total(policy),
      },
    };
  },
}) {}

// Returns the metrics of PPO, which verl divides by the number of tokens plus 1e-8.
function ppoMetrics<P extends string>(
  { total, count, constant }: EntrySymbols,
  prefix: P,
  metrics: ReturnType<typeof dualClipped>['metrics'] | undefined,
): Record<`${P}/pg_clipfrac` | `${P}/pg_clipfrac_lower` | `${P}/ppo_kl`, MetricExpression | undefined> {
  const of = (name: keyof NonNullable<typeof metrics>) => {
    const metric = metrics?.[name] as { token: Operand } | undefined;
    return metric && total(constant(1).mul(metric.token).div(count.add(1e-8)));
  };
  return {
    [`${prefix}/pg_clipfrac`]: of('pg_clipfrac'),
    [`${prefix}/pg_clipfrac_lower`]: of('pg_clipfrac_lower'),
    [`${prefix}/ppo_kl`]: of('ppo_kl'),
  } as never;
}
