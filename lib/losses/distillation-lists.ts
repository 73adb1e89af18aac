// The distillation losses of NeMo-RL, ROLL, axolotl and Tinker, over lists of the teacher's likeliest tokens.
import { choice, flag, integer, number } from '../base/option.js';
import type { Expression } from '../program/expression.js';
import { LIST, NUMERICS, TEMPERATURE } from './distillation-options.js';
import {
  atTarget,
  expected,
  finiteEntries,
  ITEMS,
  isPossible,
  jsdTerm,
  klTerm,
  listSum,
  logSoftmax,
  perItem,
  renormalized,
  skewedTerm,
} from './distillation-terms.js';
import type { Entries, EntrySymbols } from './entries.js';
import { logitsLoss } from './logits-loss.js';
import { IN_ONE_CALL, LOSS, NATS } from './units.js';

const SHARE = { atLeast: 0, atMost: 1, typical: [0, 1] } as const;
const EXTREME = { when: IN_ONE_CALL } as const;

/** The distillation of NeMo-RL. */
export class NeMoDistillLossFn extends logitsLoss({
  name: 'nemo/distill',
  summary: "ℓ = w·KL(q‖p) + (1 − w)·KL(p‖q) over the teacher's list, the mean over the tokens",
  details: [
    'Both are renormalized over the list. With zero_outside_topk, the student is not, and a reverse divergence has all other tokens, for which ln q is −100.',
  ],
  source: ['NeMo-RL'],
  reads: [...LIST, 'sample_mask'],
  options: {
    klType: choice(['forward', 'reverse', 'mixed'], { default: 'mixed', help: 'the divergence' }),
    mixedKlWeight: number({
      ...SHARE,
      default: 0.5,
      help: 'w, the share of KL(q‖p) in the mixed divergence',
    }),
    zeroOutsideTopk: flag({ default: false, help: 'whether the student is not renormalized' }),
    globalValidToks: number({
      above: 0,
      typical: [1, 200],
      help: 'the loss is divided by this + 1e-8; the number of tokens that count if absent',
    }),
  },
  metrics: { loss: LOSS, num_valid_samples: { unit: 'rows', ...EXTREME } },
  numerics: NUMERICS,
  entries: ({ zeroOutsideTopk, klType }) => ({
    over: 'given',
    entropy: zeroOutsideTopk && klType !== 'forward',
  }),
  weights: (symbols, { globalValidToks }) => {
    const { sampleMask, batchSum, constant } = symbols;
    const of = sampleMask.ne(0);
    const total = globalValidToks === undefined ? batchSum(of) : constant(globalValidToks);
    return [of.div(total.add(1e-8))];
  },
  formula: (symbols, { klType, mixedKlWeight, zeroOutsideTopk }) => {
    const { student, teacher, batchWeights, weighted, total, entropy, exp, constant } = symbols;
    const t = renormalized(symbols, teacher);
    const s = zeroOutsideTopk ? student : renormalized(symbols, student);
    const p = exp(s);
    const forward = listSum(symbols, klTerm(symbols, t, s));
    const inside = listSum(symbols, expected(symbols, p, s));
    // Σ_all p·ln p − Σ_list p·ln p + 100·(1 − Σ_list p)
    const outside = entropy
      .neg()
      .sub(inside)
      .add(constant(1).sub(listSum(symbols, p)).mul(100));
    const listed = listSum(symbols, klTerm(symbols, s, t));
    const reverse = zeroOutsideTopk && klType !== 'forward' ? listed.add(outside) : listed;
    const w = { forward: 1, reverse: 0, mixed: mixedKlWeight }[klType];
    const loss = weighted(
      batchWeights[0],
      w === 0 ? reverse : w === 1 ? forward : forward.mul(w).add(reverse.mul(1 - w)),
    );
    return {
      loss,
      metrics: { loss: total(loss), num_valid_samples: { batch: symbols.rowsMax(symbols.sequences) } },
    };
  },
}) {}

/** The distillation of ROLL. */
export class ROLLDistillLossFn extends logitsLoss({
  name: 'roll/distill',
  summary: "ℓ = (1 − w)·CE + w·a divergence over the teacher's largest logits, the mean over the tokens",
  details: [
    'Both are renormalized over these tokens. An infinite entry adds nothing to the divergence.',
    'distill_mask says which tokens are distilled; action_mask does if it is absent. In ROLL it is one token late.',
    'adaptive_kl is 0 where the two distributions are equal.',
  ],
  source: ['arXiv 2404.02657', 'ROLL'],
  reads: ['targets', 'teacher_logits', 'action_mask', 'distill_mask'],
  options: {
    kdTemperature: number({ ...TEMPERATURE, default: 1, help: 'both logits are divided by this' }),
    teacherTemperature: number({
      ...TEMPERATURE,
      default: 1,
      help: "the teacher's logits are divided by this too",
    }),
    logitsTopk: integer({
      default: 64,
      atLeast: 0,
      typical: [0, 20],
      help: 'how many tokens with the largest logits of the teacher count; 0 for all',
    }),
    kdObjective: choice(
      ['forward_kl', 'reverse_kl', 'adaptive_kl', 'skewed_forward_kl', 'skewed_reverse_kl', 'js_divergence'],
      { default: 'forward_kl', help: 'the divergence' },
    ),
    adaptiveKlAlpha: number({
      ...SHARE,
      default: 0.5,
      help: 'adaptive_kl: the unlikeliest tokens with at most this probability together are the tail',
    }),
    skewLambda: number({ ...SHARE, default: 0.1, help: 'λ of the skewed divergences' }),
    distillLossWeight: number({ ...SHARE, default: 0.5, help: 'w, the share of the divergence' }),
    targetVocabSize: integer({
      atLeast: 1,
      typical: [1, 200],
      help: "at most this number of the teacher's logits count",
    }),
    batchNumTokens: number({
      above: 0,
      typical: [1, 200],
      help: 'the loss is divided by this; the number of unmasked tokens if absent',
    }),
  },
  metrics: { 'train/loss': LOSS, 'train/train_distill_loss': LOSS, 'train/train_student_loss': LOSS },
  numerics: NUMERICS,
  entries: ({ logitsTopk, targetVocabSize, kdObjective, ...options }) => {
    const entries: Entries =
      logitsTopk === 0
        ? { over: 'vocabulary', teacher: 'logits', target: true, teacherWidth: targetVocabSize }
        : {
            over: 'teacher',
            count: logitsTopk,
            target: true,
            teacherWidth: targetVocabSize,
            narrower: 'teacher',
          };
    if (kdObjective !== 'adaptive_kl') return entries;
    const temperature = options.kdTemperature * options.teacherTemperature;
    return {
      ...entries,
      helper: (_, teacher, isTail) => markTail(teacher, temperature, options.adaptiveKlAlpha, isTail),
    };
  },
  mask: (mask, _, { flags }) => {
    // 1 for tokens that are distilled, plus 2 for those that have a cross-entropy.
    const distilled = flags('distill_mask', 'token') ?? Uint8Array.from(mask);
    const marks = Float32Array.from(mask, (x, i) => (distilled[i] ? 1 : 0) + (x ? 2 : 0));
    for (const [i, mark] of marks.entries()) mask[i] = mark > 0 ? 1 : 0;
    return marks;
  },
  weights: ({ mark, batchSum, max, constant }, { batchNumTokens }) => {
    const isTrained = mark.ge(2);
    const total = batchNumTokens === undefined ? max(batchSum(isTrained), 1) : constant(batchNumTokens);
    return [mark.eq(1).or(mark.eq(3)).div(total), isTrained.div(total)];
  },
  formula: (symbols, options) => {
    const { kdTemperature, teacherTemperature, logitsTopk, distillLossWeight: w } = options;
    const { student, teacher, batchWeights, weighted, total } = symbols;
    const isList = logitsTopk > 0;
    const normalized = (x: Expression, temperature: number) =>
      (isList ? renormalized : logSoftmax)(symbols, x, temperature);
    const s = normalized(student, kdTemperature);
    const t = normalized(teacher, kdTemperature * teacherTemperature);
    const distilled = weighted(batchWeights[0], rollDivergence(symbols, s, t, options));
    const own = isList ? student : logSoftmax(symbols, student);
    const trained = weighted(batchWeights[1], atTarget(symbols, own).neg());
    const loss = distilled.mul(w).add(trained.mul(1 - w));
    return {
      loss,
      metrics: {
        'train/loss': total(loss),
        'train/train_distill_loss': total(distilled),
        'train/train_student_loss': total(trained),
      },
    };
  },
}) {}

// Marks the unlikeliest tokens of the teacher that have at most the probability `alpha` together.
function markTail(teacher: Float64Array, temperature: number, alpha: number, isTail: Float32Array): void {
  const largest = teacher.reduce((a, b) => Math.max(a, b), -Infinity);
  const q = teacher.map((x) => Math.exp((x - largest) / temperature));
  const total = q.reduce((a, b) => a + b, 0);
  let sum = 0;
  for (const i of Array.from(q.keys()).sort((a, b) => q[a]! - q[b]!)) {
    sum += q[i]! / total;
    isTail[i] = sum <= alpha ? 1 : 0;
  }
}

type Objective =
  | 'forward_kl'
  | 'reverse_kl'
  | 'adaptive_kl'
  | 'skewed_forward_kl'
  | 'skewed_reverse_kl'
  | 'js_divergence';

function rollDivergence(
  symbols: EntrySymbols,
  s: Expression,
  t: Expression,
  { kdObjective, skewLambda }: { kdObjective: Objective; skewLambda: number },
): Expression {
  const { exp, log, abs, sg, select, helper } = symbols;
  const [p, q] = [exp(s), exp(t)];
  const isCounted = isPossible(s).and(isPossible(t));
  const sum = (x: Expression) => listSum(symbols, select(isCounted, x, 0));
  const forward = () => sum(klTerm(symbols, t, s));
  const reverse = () => sum(klTerm(symbols, s, t));
  switch (kdObjective) {
    case 'forward_kl':
      return forward();
    case 'reverse_kl':
      return reverse();
    case 'skewed_forward_kl':
      return sum(skewedTerm(symbols, skewLambda, t, s));
    case 'skewed_reverse_kl':
      return sum(skewedTerm(symbols, skewLambda, s, t));
    case 'js_divergence': {
      const logOf = (x: Expression) => log(x.add(1e-9));
      const middle = logOf(p.add(q).mul(0.5));
      return sum(
        q
          .mul(logOf(q).sub(middle))
          .add(p.mul(logOf(p).sub(middle)))
          .mul(0.5),
      );
    }
    case 'adaptive_kl': {
      const gap = (isIn: Expression) => sg(listSum(symbols, select(isIn, abs(q.sub(p)), 0)));
      const [tail, head] = [gap(helper.gt(0)), gap(helper.le(0))];
      const whole = head.add(tail);
      return select(whole.gt(0), head.mul(forward()).add(tail.mul(reverse())).div(whole), 0);
    }
  }
}

/** The knowledge distillation of axolotl. */
export class AxolotlKDLossFn extends logitsLoss({
  name: 'axolotl/kd',
  summary: "ℓ = kd_alpha·a divergence over the teacher's list + kd_ce_alpha·CE, the mean over the tokens",
  details: [
    'The divergence is that of trl/gkd, whose value, but not its gradient, is multiplied by kd_temperature². Without fused it is KL(q‖p) alone, and without num_items_in_batch it is divided by the number of listed tokens.',
  ],
  source: ['axolotl'],
  reads: [...LIST, 'targets'],
  options: {
    fused: flag({ default: true, help: 'whether the fused loss is computed, or the older one' }),
    kdAlpha: number({ ...SHARE, typical: [0.2, 1], required: true, help: 'the factor of the divergence' }),
    kdCeAlpha: number({ ...SHARE, required: true, help: 'the factor of the cross-entropy' }),
    kdTemperature: number({
      ...TEMPERATURE,
      required: true,
      help: 'the logits are divided by this in the divergence',
    }),
    kdBeta: number({ ...SHARE, default: 0, help: 'β: 0 is KL(q‖p), and 1 is KL(p‖q)' }),
    kdNormalizeTopk: flag({ default: false, help: 'whether the student is renormalized over the list' }),
    ...ITEMS,
  },
  metrics: {},
  numerics: NUMERICS,
  entries: (options) => {
    const target = hasCrossEntropy(options);
    const { kdTemperature: temperature } = options;
    // The divergence and the cross-entropy have different temperatures.
    if (target && temperature !== 1) return { over: 'vocabulary', teacher: 'list', target };
    return { over: 'given', target, temperature };
  },
  mask: (mask, _, inputs) => finiteEntries(mask, inputs),
  weights: (symbols, { fused, numItemsInBatch }) => {
    const { mark, batchSum, max, constant } = symbols;
    if (fused || numItemsInBatch !== undefined) return [perItem(symbols, numItemsInBatch)];
    return [constant(1).div(max(batchSum(mark), 1))];
  },
  formula: (symbols, options) => {
    const { fused, kdAlpha, kdCeAlpha, kdTemperature, kdBeta, kdNormalizeTopk } = options;
    const { student, teacher, batchWeights, weighted, sg } = symbols;
    const isDense = hasCrossEntropy(options) && kdTemperature !== 1;
    const own = isDense ? logSoftmax(symbols, student, kdTemperature) : student;
    const s = kdNormalizeTopk && fused ? renormalized(symbols, own) : own;
    const divergence = listSum(symbols, jsdTerm(symbols, fused ? kdBeta : 0, s, teacher));
    const surplus = fused ? kdTemperature ** 2 - 1 : 0;
    const scaled = surplus === 0 ? divergence : divergence.add(sg(divergence).mul(surplus));
    const soft = weighted(batchWeights[0], scaled).mul(fused ? kdAlpha : 1);
    if (!hasCrossEntropy(options)) return { loss: soft, metrics: {} };
    const plain = isDense ? logSoftmax(symbols, student) : student;
    return {
      loss: soft.sub(weighted(batchWeights[0], atTarget(symbols, plain)).mul(kdCeAlpha)),
      metrics: {},
    };
  },
}) {}

function hasCrossEntropy({ fused, kdCeAlpha }: { fused: boolean; kdCeAlpha: number }): boolean {
  return fused && kdCeAlpha > 0;
}

/** The self-distillation of the Tinker cookbook. */
export class TinkerSDFTLossFn extends logitsLoss({
  name: 'tinker/sdft',
  summary: "ℓ = −Σ q·ln p over the teacher's list, the sum over the tokens",
  details: [
    'q is renormalized over the list. With reverse, p is too, and ℓ = Σ p·sg(ln p − ln q).',
    'sdft/mean_teacher_entropy divides by all unmasked tokens, or by those that count if reverse is true.',
  ],
  source: ['Tinker cookbook'],
  reads: LIST,
  options: {
    topk: integer({
      default: 20,
      atLeast: 1,
      typical: [1, 5],
      help: 'the number of tokens of the list that count',
    }),
    reverse: flag({ default: false, help: 'whether the divergence is KL(p‖q)' }),
    skipFirstNTokens: integer({
      default: 3,
      atLeast: 0,
      typical: [0, 3],
      help: 'the first unmasked tokens of each row that do not count',
    }),
    vocabSize: integer({ atLeast: 1, typical: [8, 200], help: 'ids from this on leave the list' }),
  },
  metrics: {
    'sdft/mean_teacher_entropy': { ...NATS, when: `forward; with reverse ${IN_ONE_CALL}` },
    'sdft/total_completion_tokens': { unit: 'tokens', when: 'without reverse' },
    'sdft/reverse_kl_loss': { ...LOSS, when: 'with reverse' },
    'sdft/reverse_kl_mean': { ...NATS, when: `with reverse, ${IN_ONE_CALL}` },
    'sdft/student_entropy_mean': { ...NATS, when: `with reverse, ${IN_ONE_CALL}` },
    'sdft/reverse_kl_positions': { unit: 'tokens', when: 'with reverse' },
  },
  numerics: NUMERICS,
  entries: ({ topk, vocabSize }) => ({ over: 'given', count: topk, vocabulary: vocabSize }),
  weights: ({ prefixSum, constant }, { skipFirstNTokens }) => [
    prefixSum(1, 1).gt(skipFirstNTokens),
    constant(1),
  ],
  formula: (symbols, { reverse }) => {
    const { student, teacher, batchWeights, weighted, total, count, exp, sg, rowsSum, max, constant } =
      symbols;
    const t = renormalized(symbols, teacher);
    const entropyOf = (x: Expression) => listSum(symbols, expected(symbols, exp(x), x)).neg();
    const of = (x: Expression) => weighted(batchWeights[0], x);
    const ofTeacher = of(entropyOf(t));
    if (!reverse) {
      return {
        loss: of(listSum(symbols, expected(symbols, exp(t), student)).neg()),
        metrics: {
          ...NO_REVERSE,
          'sdft/mean_teacher_entropy': total(ofTeacher.div(count)),
          'sdft/total_completion_tokens': total(constant(1)),
        },
      };
    }
    const s = renormalized(symbols, student);
    const loss = of(listSum(symbols, expected(symbols, exp(s), sg(s.sub(t)))));
    // A token whose list is empty is not one of the positions.
    const position = symbols.select(symbols.rowSum(symbols.isListed).gt(0), batchWeights[0], 0);
    const meanOf = (x: Expression) => ({ batch: rowsSum(x).div(max(rowsSum(position), 1)) });
    return {
      loss,
      metrics: {
        'sdft/mean_teacher_entropy': meanOf(ofTeacher),
        'sdft/total_completion_tokens': undefined,
        'sdft/reverse_kl_loss': total(loss),
        'sdft/reverse_kl_mean': meanOf(loss),
        'sdft/student_entropy_mean': meanOf(of(entropyOf(s))),
        'sdft/reverse_kl_positions': total(position),
      },
    };
  },
}) {}

const NO_REVERSE = {
  'sdft/reverse_kl_loss': undefined,
  'sdft/reverse_kl_mean': undefined,
  'sdft/student_entropy_mean': undefined,
  'sdft/reverse_kl_positions': undefined,
};
