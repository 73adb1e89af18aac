/** Advantages of on-policy distillation in float64, by name. */
import {
  type Advantage,
  everyRow,
  mean,
  type RewardedBatch,
  rowsOf,
  sampleStd,
  sum,
  tokenRewards,
  unmaskedPositions,
  zeros,
} from '../advantage.js';
import { option, rowPositions } from '../batch.js';

/** teacher_logprob − old_logprob. */
const gap = (batch: RewardedBatch, at: number): number => batch.teacherLogprob![at]! - batch.oldLogprob![at]!;

/** The advantage that the batch has for a token. */
const given = (batch: RewardedBatch, b: number, at: number): number =>
  batch.advantages!.length === batch.rows ? batch.advantages![b]! : batch.advantages![at]!;

const everyToken = (batch: RewardedBatch): number[] =>
  rowsOf(batch).flatMap((b) => unmaskedPositions(batch, b));
const orZero = (values: readonly number[]): number => (values.length > 0 ? mean(values) : 0);

/** ROLL adds `epsilon` to the counts of tokens. */
function whiten(batch: RewardedBatch, values: Float64Array, epsilon = 0): void {
  const positions = everyToken(batch);
  const n = positions.length;
  const all = positions.map((at) => values[at]!);
  const center = n > 0 ? sum(all) / (n + epsilon) : 0;
  const squares = sum(all.map((a) => (a - center) ** 2)) / (n + epsilon);
  const variance = n > 1 ? (squares * n) / (n - 1) : 0;
  for (const at of positions) values[at] = (values[at]! - center) / Math.sqrt(variance + 1e-8);
}

function towardsTeacher(batch: RewardedBatch, coef: number): Float64Array {
  const out = zeros(batch);
  for (const b of rowsOf(batch))
    for (const at of unmaskedPositions(batch, b)) out[at] = given(batch, b, at) + coef * gap(batch, at);
  return out;
}

/** The sum of absolute values, in which rounding errors of means are measured. */
const sizeOf = (batch: RewardedBatch): number => sum(everyToken(batch).map((at) => Math.abs(gap(batch, at))));

const reverseKl = (batch: RewardedBatch) => ({
  metrics: {
    opd_reverse_kl: orZero(
      rowsOf(batch).map((b) => -orZero(unmaskedPositions(batch, b).map((at) => gap(batch, at)))),
    ),
  },
  magnitude: { opd_reverse_kl: sizeOf(batch) },
});

const slime: Advantage = (args, batch) => {
  const out = towardsTeacher(batch, option(args, 'opd_kl_coef', 1));
  if (option(args, 'normalize_advantages', false)) whiten(batch, out);
  return { ...everyRow(batch, out), ...reverseKl(batch) };
};

const miles: Advantage = (args, batch) => ({
  ...everyRow(batch, towardsTeacher(batch, option(args, 'opd_kl_coef', 1))),
  ...reverseKl(batch),
});

const swift: Advantage = (args, batch) =>
  everyRow(batch, towardsTeacher(batch, option(args, 'teacher_kl_coef', 1)));

const nemo: Advantage = (_args, batch) => {
  const out = zeros(batch);
  for (const at of everyToken(batch)) out[at] = gap(batch, at);
  const all = everyToken(batch).map((at) => out[at]!);
  const metrics = {
    'on_policy_distillation/teacher_student_logprob_gap_mean': orZero(all),
    'on_policy_distillation/adv_mean': orZero(all),
    'on_policy_distillation/adv_std': all.length > 1 ? sampleStd(all) : 0,
  };
  const size = sizeOf(batch);
  const magnitude = Object.fromEntries(Object.keys(metrics).map((name) => [name, size]));
  return { ...everyRow(batch, out), metrics, magnitude };
};

const tinker: Advantage = (args, batch) => {
  const discount = option(args, 'kl_discount_factor', 0);
  const out = zeros(batch);
  const ofDatasets = new Map<string, number[]>([['teacher_kl', []]]);
  for (const b of rowsOf(batch)) {
    const positions = rowPositions(batch, b);
    let penalty = 0;
    for (const at of positions.toReversed()) {
      penalty = (batch.actionMask[at] ? -gap(batch, at) : 0) + discount * penalty;
      out[at] = given(batch, b, at) - option(args, 'kl_penalty_coef', 1) * penalty;
    }
    const unmasked = unmaskedPositions(batch, b).map((at) => -gap(batch, at));
    const names = ['teacher_kl', ...(batch.datasetIds ? [`teacher_kl/dataset_${batch.datasetIds[b]}`] : [])];
    for (const name of unmasked.length > 0 ? names : []) {
      if (!ofDatasets.has(name)) ofDatasets.set(name, []);
      for (const kl of unmasked) ofDatasets.get(name)!.push(kl);
    }
  }
  const entries = [...ofDatasets];
  return {
    ...everyRow(batch, out),
    metrics: Object.fromEntries(entries.map(([name, all]) => [name, orZero(all)])),
    magnitude: Object.fromEntries(entries.map(([name]) => [name, sizeOf(batch)])),
  };
};

const PENALTIES: Record<string, (d: number) => number> = {
  kl: (d) => -d,
  abs: (d) => Math.abs(d),
  mse: (d) => d ** 2 / 2,
  k3: (d) => Math.min(Math.exp(d) - 1 - d, 10),
};

const roll: Advantage = (args, batch) => {
  const teachers = option<readonly number[] | null>(args, 'opd_kl_coef', null) ?? [1];
  const isPure = option(args, 'is_pure_opd', false);
  const gamma = option(args, 'gamma', 1);
  const further = batch as unknown as Record<string, ArrayLike<number> | undefined>;
  const rewards = tokenRewards(batch);
  const [out, returns] = [zeros(batch), zeros(batch)];
  for (const b of rowsOf(batch)) {
    let toGo = 0;
    for (const at of rowPositions(batch, b).toReversed()) {
      toGo = (batch.actionMask[at] ? rewards[at]! : 0) + gamma * toGo;
      returns[at] = toGo;
    }
    for (const at of unmaskedPositions(batch, b)) {
      const penalties = teachers.map((coef, i) => {
        const suffix = i === 0 ? '' : i + 1;
        if (further[`teacherRows${suffix}`]?.[b] === 0) return 0;
        const d = further[`teacherLogprob${suffix}`]![at]! - batch.oldLogprob![at]!;
        return coef * PENALTIES[option<string>(args, 'kl_penalty', 'kl')]!(d);
      });
      out[at] = (isPure ? 0 : returns[at]!) - sum(penalties);
    }
  }
  const asReturned = isPure ? out.slice() : returns;
  if (option(args, 'whiten_advantages', false)) whiten(batch, out, 1e-8);
  const limit = option<number | null>(args, 'advantage_clip', null);
  if (limit === null) return everyRow(batch, out, asReturned);
  const all = rowsOf(batch).flatMap((b) => rowPositions(batch, b));
  const clipped = all.filter((at) => Math.abs(out[at]!) > limit);
  for (const at of clipped) out[at] = Math.sign(out[at]!) * limit;
  return {
    ...everyRow(batch, out, asReturned),
    metrics: { 'critic/advantage_clip_frac': clipped.length / (all.length || 1) },
  };
};

/** The functions by registry name. */
export const opdAdvantages: Record<string, Advantage> = {
  'slime/opd': slime,
  'miles/opd': miles,
  'swift/opd': swift,
  'nemo/opd': nemo,
  'tinker/opd': tinker,
  'roll/opd': roll,
};
