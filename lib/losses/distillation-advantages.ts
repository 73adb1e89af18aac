// Advantages of on-policy distillation: a teacher's log-probabilities of the sampled tokens, in place of rewards or in
// addition to them. They are computed on the host.
import { LossError } from '../base/errors.js';
import { choice, flag, list, number } from '../base/option.js';
import { inSlices, type Steps } from '../base/steps.js';
import { advantage } from './advantage-fn.js';
import { GAMMA } from './advantage-options.js';
import {
  addToGoSums,
  clipTo,
  meanOfRowMeans,
  momentsOf,
  rewardsToGo,
  sumsByRow,
  whiten,
} from './host-sums.js';
import type { HostTokens } from './host-tokens.js';

const GIVEN_KEYS = ['advantages', 'old_logprob', 'teacher_logprob', 'action_mask'] as const;
const ON_HOST =
  'It is computed on the CPU. Batches on a device do not have it; compute a batch from host memory instead.';
const NUMERICS = { range: 'any finite logprobs and advantages', outside: 'NaN and Infinity pass through' };
const SHARED = { perRow: false, comparesTokens: true, numerics: NUMERICS } as const;

const opdKlCoef = number({
  default: 1,
  typical: [0.01, 2],
  help: 'the reverse KL divergence is multiplied by this',
});
const OPD_METRICS = { opd_reverse_kl: { unit: 'nats per token, mean over rows of means' } };

/** Returns old_logprob − teacher_logprob of the unmasked tokens, and 0 for the others. */
function* gaps(x: HostTokens): Steps<Float64Array> {
  const { mask } = x;
  const old = yield* x.floats('old_logprob');
  const teacher = yield* x.floats('teacher_logprob');
  const result = x.zeros();
  yield* inSlices(result.length, (begin, end) => {
    for (let i = begin; i < end; i++) if (mask[i] !== 0) result[i] = old[i]! - teacher[i]!;
  });
  return result;
}

/** Returns the given advantages minus `coef` times the gaps, of the unmasked tokens. */
function* penalised(x: HostTokens, gap: Float64Array, coef: number): Steps<Float64Array> {
  const given = yield* x.floats('advantages');
  const result = x.zeros();
  yield* inSlices(result.length, (begin, end) => {
    for (let i = begin; i < end; i++) if (x.mask[i] !== 0) result[i] = given[i]! - coef * gap[i]!;
  });
  return result;
}

/** On-policy distillation as in slime: the reverse KL divergence is subtracted from the advantages. */
export class SlimeOPDAdvantageFn extends advantage({
  name: 'slime/opd',
  summary: 'A − opdKlCoef·(old_logprob − teacher_logprob), whitened if normalizeAdvantages is true',
  details: ['Whitening is over the unmasked tokens of the batch.', ON_HOST],
  source: ['slime'],
  reads: GIVEN_KEYS,
  ...SHARED,
  options: {
    opdKlCoef,
    normalizeAdvantages: flag({ default: false, help: 'whiten the advantages over the batch' }),
  },
  metrics: OPD_METRICS,
  variant: ({ opdKlCoef, normalizeAdvantages }) => ({
    onHost: function* (x) {
      const gap = yield* gaps(x);
      const advantages = yield* penalised(x, gap, opdKlCoef);
      if (normalizeAdvantages) yield* whiten(x, advantages);
      return { advantages, metrics: { opd_reverse_kl: yield* meanOfRowMeans(x, gap) } };
    },
  }),
}) {}

/** On-policy distillation as in Miles: the reverse KL divergence is subtracted from the advantages. */
export class MilesOPDAdvantageFn extends advantage({
  name: 'miles/opd',
  summary: 'A − opdKlCoef·(old_logprob − teacher_logprob)',
  details: [ON_HOST],
  source: ['Miles'],
  reads: GIVEN_KEYS,
  ...SHARED,
  options: { opdKlCoef },
  metrics: OPD_METRICS,
  variant: ({ opdKlCoef }) => ({
    onHost: function* (x) {
      const gap = yield* gaps(x);
      const advantages = yield* penalised(x, gap, opdKlCoef);
      return { advantages, metrics: { opd_reverse_kl: yield* meanOfRowMeans(x, gap) } };
    },
  }),
}) {}

/** On-policy distillation as in ms-swift: the distance to the teacher is added to the advantages. */
export class SwiftOPDAdvantageFn extends advantage({
  name: 'swift/opd',
  summary: 'A + teacherKlCoef·(teacher_logprob − old_logprob)',
  details: [ON_HOST],
  source: ['ms-swift'],
  reads: GIVEN_KEYS,
  ...SHARED,
  options: {
    teacherKlCoef: number({
      default: 1,
      typical: [0.01, 2],
      help: 'the distance to the teacher is multiplied by this',
    }),
  },
  metrics: {},
  variant: ({ teacherKlCoef }) => ({
    onHost: function* (x) {
      return { advantages: yield* penalised(x, yield* gaps(x), teacherKlCoef), metrics: {} };
    },
  }),
}) {}

const PER_TOKEN = 'per token';
/** On-policy distillation as in NeMo-RL: the distance to the teacher is the advantage. */
export class NemoOPDAdvantageFn extends advantage({
  name: 'nemo/opd',
  summary: 'teacher_logprob − old_logprob',
  details: ['For fewer than two tokens, adv_std is 0.', ON_HOST],
  source: ['NeMo-RL'],
  reads: ['old_logprob', 'teacher_logprob', 'action_mask'],
  ...SHARED,
  options: {},
  metrics: {
    'on_policy_distillation/teacher_student_logprob_gap_mean': { unit: `nats ${PER_TOKEN}` },
    'on_policy_distillation/adv_mean': { unit: `nats ${PER_TOKEN}` },
    'on_policy_distillation/adv_std': { unit: `nats ${PER_TOKEN}, standard deviation` },
  },
  variant: () => ({
    onHost: function* (x) {
      const advantages = yield* gaps(x);
      yield* inSlices(advantages.length, (begin, end) => {
        for (let i = begin; i < end; i++) advantages[i] = 0 - advantages[i]!;
      });
      const { mean, variance } = yield* momentsOf(x, advantages);
      return {
        advantages,
        metrics: {
          'on_policy_distillation/teacher_student_logprob_gap_mean': mean,
          'on_policy_distillation/adv_mean': mean,
          'on_policy_distillation/adv_std': Math.sqrt(variance),
        },
      };
    },
  }),
}) {}

/** On-policy distillation as in the cookbook of Tinker: a KL penalty, or its discounted sum over the rest of the row. */
export class TinkerOPDAdvantageFn extends advantage({
  name: 'tinker/opd',
  summary:
    'A − klPenaltyCoef·(old_logprob − teacher_logprob), summed over the rest of the row with klDiscountFactor > 0',
  details: [
    'As in the source, masked tokens keep the given advantages, and get discounted sums too.',
    'If the batch has dataset_ids, the metric teacher_kl/dataset_<id> is the mean over the tokens of each data set.',
    ON_HOST,
  ],
  source: ['Tinker'],
  reads: GIVEN_KEYS,
  ...SHARED,
  readsMasked: true,
  options: {
    klPenaltyCoef: number({
      default: 1,
      typical: [0.01, 2],
      help: 'the reverse KL divergence is multiplied by this',
    }),
    klDiscountFactor: number({
      default: 0,
      atLeast: 0,
      atMost: 1,
      typical: [0, 1],
      help: 'the discount of the divergences of later tokens; with 0, they do not count',
    }),
  },
  metrics: {
    teacher_kl: { unit: `nats ${PER_TOKEN}` },
    'teacher_kl/dataset_<id>': { unit: `nats ${PER_TOKEN}`, when: 'with dataset_ids, for each id' },
  },
  variant: ({ klPenaltyCoef, klDiscountFactor }) => ({
    onHost: function* (x) {
      const gap = yield* gaps(x);
      const given = yield* x.floats('advantages');
      const metrics = yield* klByDataset(x, gap);
      if (klDiscountFactor > 0) yield* addToGoSums(x, gap, klDiscountFactor);
      yield* inSlices(gap.length, (begin, end) => {
        for (let i = begin; i < end; i++) gap[i] = given[i]! - klPenaltyCoef * gap[i]!;
      });
      return { advantages: gap, metrics };
    },
  }),
}) {}

/** Returns the means of gaps over the tokens of the batch, and over those of each data set. */
function* klByDataset(x: HostTokens, gap: Float64Array): Steps<Record<string, number>> {
  const { sums, counts } = yield* sumsByRow(x, gap);
  const ids = yield* x.rowIds('dataset_ids');
  const totals = new Map<string, { sum: number; count: number }>([['teacher_kl', { sum: 0, count: 0 }]]);
  for (const [row, sum] of sums.entries())
    for (const name of ['teacher_kl', ...(ids ? [`teacher_kl/dataset_${ids[row]}`] : [])]) {
      const total = totals.get(name) ?? { sum: 0, count: 0 };
      totals.set(name, { sum: total.sum + sum, count: total.count + counts[row]! });
    }
  // A data set without tokens has no mean.
  const means = [...totals].filter(([name, { count }]) => count > 0 || name === 'teacher_kl');
  return Object.fromEntries(means.map(([name, { sum, count }]) => [name, sum / (count || 1)]));
}

/** The estimates of the KL divergence to the teacher, of old_logprob − teacher_logprob. */
const PENALTIES = {
  kl: (gap: number) => gap,
  abs: Math.abs,
  mse: (gap: number) => 0.5 * gap * gap,
  k3: (gap: number) => Math.min(Math.expm1(-gap) + gap, 10),
} as const;

/** On-policy distillation as in ROLL: the returns minus KL penalties of one or more teachers. */
export class RollOPDAdvantageFn extends advantage({
  name: 'roll/opd',
  summary: 'discounted reward to go − Σ coef·k(old_logprob, teacher_logprob) over the teachers',
  details: [
    'A second teacher has the keys teacher_logprob_2 and teacher_rows_2, and so on: one for each number of opd_kl_coef.',
    'Rewards of masked tokens do not count. Returns are the rewards to go, or with is_pure_opd the advantages before they are whitened and clipped.',
    'critic/advantage_clip_frac is a fraction of all positions of the batch, masked ones and padding too.',
    ON_HOST,
  ],
  source: ['ROLL'],
  reads: ['token_level_rewards', 'old_logprob', 'teacher_logprob', 'action_mask'],
  ...SHARED,
  returns: true,
  options: {
    opdKlCoef: list('number', {
      trinity: null,
      typical: [[1], [0.3]],
      help: 'the coefficient of each teacher; 1 for a single teacher if absent',
    }),
    klPenalty: choice(['kl', 'abs', 'mse', 'k3'], {
      default: 'kl',
      help: 'the estimate k of the KL divergence',
    }),
    isPureOpd: flag({ default: false, help: 'whether rewards do not count' }),
    gamma: GAMMA,
    whitenAdvantages: flag({ default: false, help: 'whiten the advantages over the batch' }),
    advantageClip: number({
      trinity: null,
      above: 0,
      typical: [0.2, 2],
      help: 'clip advantages to ± this; no limit if absent',
    }),
  },
  metrics: {
    'critic/advantage_clip_frac': { unit: 'fraction of all positions', when: 'with advantage_clip' },
  },
  numerics: {
    range: 'finite rewards and logprobs',
    outside: 'rewards that are not finite: ERR_INVALID_INPUT; NaN and Infinity of logprobs pass through',
  },
  variant: ({ opdKlCoef = [1], klPenalty, isPureOpd, gamma, whitenAdvantages, advantageClip }) => ({
    onHost: function* (x) {
      const penalty = x.zeros();
      for (const [i, coef] of opdKlCoef.entries())
        yield* addPenalty(x, penalty, { suffix: i === 0 ? '' : `_${i + 1}`, coef, of: PENALTIES[klPenalty] });
      const toGo = isPureOpd ? x.zeros() : yield* rewardsToGo(x, gamma);
      const advantages = x.zeros();
      yield* inSlices(advantages.length, (begin, end) => {
        for (let i = begin; i < end; i++) if (x.mask[i] !== 0) advantages[i] = toGo[i]! - penalty[i]!;
      });
      const returns = isPureOpd ? advantages.slice() : toGo;
      // ROLL adds this to counts of tokens.
      if (whitenAdvantages) yield* whiten(x, advantages, 1e-8);
      if (advantageClip === undefined) return { advantages, returns, metrics: {} };
      const clipped = yield* clipTo(advantages, advantageClip);
      return {
        advantages,
        returns,
        metrics: { 'critic/advantage_clip_frac': clipped / (advantages.length || 1) },
      };
    },
  }),
}) {}

/** Adds to `penalty` what the tokens of the rows that a teacher scores get from it. */
function* addPenalty(
  x: HostTokens,
  penalty: Float64Array,
  { suffix, coef, of }: { suffix: string; coef: number; of: (gap: number) => number },
): Steps<void> {
  if (!Number.isFinite(coef))
    throw new LossError('ERR_INVALID_OPTION', {
      option: 'opdKlCoef',
      expected: 'finite numbers',
      received: String(coef),
    });
  const old = yield* x.floats('old_logprob');
  const expected = 'a log-probability per token, of a teacher of opdKlCoef';
  const teacher = yield* x.furtherFloats(`teacher_logprob${suffix}`, expected);
  const rows = yield* x.rowFlags(`teacher_rows${suffix}`);
  yield* x.pieces((row, from, to) => {
    if (rows?.[row] === 0) return;
    for (let i = from; i < to; i++) if (x.mask[i] !== 0) penalty[i]! += coef * of(old[i]! - teacher[i]!);
  });
}
