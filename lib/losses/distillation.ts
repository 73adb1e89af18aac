// The distillation losses of Liger, OpenRLHF, SkyRL and ms-swift, whose teachers give logits or probabilities.
import { choice, integer, number } from '../base/option.js';
import { find } from '../batch/batch.js';
import type { Expression } from '../program/expression.js';
import { BETA, JSD, NUMERICS, TEMPERATURE } from './distillation-options.js';
import {
  atTarget,
  expected,
  finiteEntries,
  jsdTerm,
  listSum,
  logSoftmax,
  perItem,
  renormalized,
} from './distillation-terms.js';
import { type EntrySymbols, LOWEST, orAbsent } from './entries.js';
import { logitsLoss } from './logits-loss.js';
import { LOSS } from './units.js';

const WEIGHT = { atLeast: 0, typical: [0, 2] } as const;
const SOFT_AND_HARD = {
  weightHardLoss: number({ ...WEIGHT, default: 0.5, help: 'the factor of the cross-entropy' }),
  weightSoftLoss: number({ ...WEIGHT, default: 0.5, help: 'the factor of the distillation loss' }),
  temperature: number({ ...TEMPERATURE, default: 1 }),
};
const LABELLED = ['targets', 'teacher_logits', 'action_mask'] as const;

// Returns the sum of two weighted losses of a token, and both without their factors as metrics.
function softAndHard(
  symbols: EntrySymbols,
  soft: Expression,
  hard: Expression,
  { weightSoftLoss, weightHardLoss }: { weightSoftLoss: number; weightHardLoss: number },
) {
  const { batchWeights, weighted, total } = symbols;
  const of = (x: Expression) => weighted(batchWeights[0], x);
  return {
    loss: of(soft).mul(weightSoftLoss).add(of(hard).mul(weightHardLoss)),
    metrics: { soft_loss: total(of(soft)), hard_loss: total(of(hard)) },
  };
}

/** The Jensen-Shannon distillation loss of Liger. */
export class LigerJSDLossFn extends logitsLoss({
  name: 'liger/jsd',
  summary: `ℓ = weight_hard_loss·CE + weight_soft_loss·(${JSD}), the mean over the tokens`,
  details: ['Logits that only the teacher has are 0 for the student.'],
  source: ['Liger Kernel'],
  reads: LABELLED,
  options: { beta: number({ ...BETA, default: 0.5 }), ...SOFT_AND_HARD },
  metrics: { soft_loss: LOSS, hard_loss: LOSS },
  numerics: NUMERICS,
  entries: () => ({ over: 'vocabulary', teacher: 'logits', target: true, narrower: 'student' }),
  weights: (symbols) => [perItem(symbols, undefined)],
  formula: (symbols, { beta, temperature, ...options }) => {
    const { student, teacher, rowSum } = symbols;
    const padded = orAbsent(symbols, student, 0);
    const s = logSoftmax(symbols, padded, temperature);
    const soft = rowSum(jsdTerm(symbols, beta, s, logSoftmax(symbols, teacher, temperature)));
    const own = orAbsent(symbols, student, LOWEST);
    return softAndHard(symbols, soft, atTarget(symbols, logSoftmax(symbols, own)).neg(), options);
  },
}) {}

/** The cosine distillation loss of Liger. */
export class LigerCosineLossFn extends logitsLoss({
  name: 'liger/cosine',
  summary: 'ℓ = weight_hard_loss·CE + weight_soft_loss·β·(1 − cos(x, y)), the mean over the tokens',
  details: ['x and y are the logits of the student and of the teacher.'],
  source: ['Liger Kernel'],
  reads: LABELLED,
  options: {
    beta: number({ ...WEIGHT, default: 0.5, help: 'a factor of the distillation loss' }),
    ...SOFT_AND_HARD,
  },
  metrics: { soft_loss: LOSS, hard_loss: LOSS },
  numerics: { range: 'logits whose squares are finite', outside: 'the squares overflow' },
  entries: () => ({ over: 'vocabulary', teacher: 'logits', target: true }),
  weights: (symbols) => [perItem(symbols, undefined)],
  formula: (symbols, { beta, temperature: _, ...options }) => {
    const { student, teacher, rowSum, square, sqrt, max, constant } = symbols;
    const norm = (x: Expression) => sqrt(rowSum(square(x)));
    const cosine = rowSum(student.mul(teacher)).div(max(norm(student).mul(norm(teacher)), 1e-8));
    const hard = atTarget(symbols, logSoftmax(symbols, student)).neg();
    return softAndHard(symbols, constant(1).sub(cosine).mul(beta), hard, options);
  },
}) {}

const REDUCTION = choice(['batchmean', 'mean', 'sum'], {
  default: 'batchmean',
  help: 'what the sum over the tokens is divided by: their number, that times V, or 1',
});

function reduced(symbols: EntrySymbols, reduction: 'batchmean' | 'mean' | 'sum', loss: Expression) {
  const { batchWeights, weighted, rowLength } = symbols;
  const weight = weighted(batchWeights[0], loss);
  return { loss: reduction === 'mean' ? weight.div(rowLength) : weight, metrics: {} };
}

/** The total variation distance of Liger. */
export class LigerTVDLossFn extends logitsLoss({
  name: 'liger/tvd',
  summary: 'ℓ = ½·Σ|p − q|, the mean over the tokens',
  details: ['It reads probabilities (probs, teacher_probs), and its gradient, gradProbs, is by probs.'],
  source: ['Liger Kernel'],
  variable: 'probs',
  reads: ['teacher_probs', 'action_mask'],
  options: { reduction: REDUCTION },
  metrics: {},
  numerics: { range: 'any probabilities', outside: 'none' },
  entries: () => ({ over: 'vocabulary', teacher: 'probs' }),
  weights: (symbols, { reduction }) => [
    reduction === 'sum' ? symbols.constant(1) : perItem(symbols, undefined),
  ],
  formula: (symbols, { reduction }) => {
    const { student, teacher, rowSum, abs } = symbols;
    return reduced(symbols, reduction, rowSum(abs(student.sub(teacher))).mul(0.5));
  },
}) {}

/** The forward KL divergence of Liger, from the teacher's probabilities. */
export class LigerKLDivLossFn extends logitsLoss({
  name: 'liger/kl_div',
  summary: 'ℓ = Σ q·(ln max(q, eps) − ln p), the mean over the tokens',
  source: ['Liger Kernel'],
  reads: ['teacher_probs', 'action_mask'],
  options: {
    reduction: REDUCTION,
    temperature: number({ ...TEMPERATURE, default: 1, help: 'the logits are divided by this' }),
    eps: number({ default: 1e-10, above: 0, typical: [1e-10, 1e-3], help: 'the least q in the logarithm' }),
  },
  metrics: {},
  numerics: NUMERICS,
  entries: () => ({ over: 'vocabulary', teacher: 'probs' }),
  weights: (symbols, { reduction }) => [
    reduction === 'sum' ? symbols.constant(1) : perItem(symbols, undefined),
  ],
  formula: (symbols, { reduction, temperature, eps }) => {
    const { student, teacher, rowSum, log, max } = symbols;
    const surplus = log(max(teacher, eps)).sub(logSoftmax(symbols, student, temperature));
    return reduced(symbols, reduction, rowSum(expected(symbols, teacher, surplus)));
  },
}) {}

/** The cross-entropy and the total variation distance of Liger. */
export class LigerCETVDLossFn extends logitsLoss({
  name: 'liger/ce_tvd',
  summary: 'ℓ = ce_weight·CE + tvd_weight·½·Σ|p − q|, the mean over the tokens',
  source: ['Liger Kernel'],
  reads: LABELLED,
  options: {
    ceWeight: number({ ...WEIGHT, default: 1, help: 'the factor of the cross-entropy' }),
    tvdWeight: number({ ...WEIGHT, default: 1, help: 'the factor of the distance' }),
  },
  metrics: { ce: LOSS, tvd: LOSS },
  numerics: NUMERICS,
  entries: () => ({ over: 'vocabulary', teacher: 'logits', target: true }),
  weights: (symbols) => [perItem(symbols, undefined)],
  formula: (symbols, { ceWeight, tvdWeight }) => {
    const { student, teacher, rowSum, abs, exp, batchWeights, weighted, total } = symbols;
    const s = logSoftmax(symbols, student);
    const of = (x: Expression) => weighted(batchWeights[0], x);
    const ce = of(atTarget(symbols, s).neg());
    const tvd = of(rowSum(abs(exp(s).sub(exp(logSoftmax(symbols, teacher))))).mul(0.5));
    return {
      loss: ce.mul(ceWeight).add(tvd.mul(tvdWeight)),
      metrics: { ce: total(ce), tvd: total(tvd) },
    };
  },
}) {}

/** The knowledge distillation loss of OpenRLHF. */
export class OpenRLHFKDLossFn extends logitsLoss({
  name: 'openrlhf/kd',
  summary: 'ℓ = (1 − kd_coef)·CE − kd_coef·Σ q·ln p, the mean over the tokens',
  source: ['OpenRLHF'],
  reads: LABELLED,
  options: {
    kdCoef: number({
      default: 0.4,
      atLeast: 0,
      atMost: 1,
      typical: [0, 1],
      help: 'the share of the distillation loss',
    }),
  },
  metrics: { gpt_loss: LOSS, distil_loss: LOSS },
  numerics: { ...NUMERICS, outside: 'a token with a logit of −Infinity adds nothing to the distillation' },
  entries: () => ({ over: 'vocabulary', teacher: 'logits', target: true }),
  weights: (symbols) => [perItem(symbols, undefined)],
  formula: (symbols, { kdCoef }) => {
    const { student, teacher, rowSum, exp, select, batchWeights, weighted, total } = symbols;
    const s = logSoftmax(symbols, student);
    const q = exp(logSoftmax(symbols, teacher));
    const of = (x: Expression) => weighted(batchWeights[0], x);
    const gpt = of(atTarget(symbols, s).neg());
    const distil = of(rowSum(select(s.gt(LOWEST), expected(symbols, q, s), 0)).neg());
    return {
      loss: gpt.mul(1 - kdCoef).add(distil.mul(kdCoef)),
      metrics: { gpt_loss: total(gpt), distil_loss: total(distil) },
    };
  },
}) {}

/** The loss of the draft head for multi-token prediction in SkyRL. */
export class SkyRLDraftSoftCELossFn extends logitsLoss({
  name: 'skyrl/draft_soft_ce',
  summary: 'ℓ = −Σ q·ln p, the mean over the tokens',
  details: [
    'With mtp_loss_topk, both are renormalized over the tokens with the largest logits of the teacher.',
  ],
  source: ['SkyRL'],
  reads: ['teacher_logits', 'action_mask'],
  options: {
    mtpLossTopk: integer({
      atLeast: 1,
      typical: [1, 20],
      help: 'how many tokens with the largest logits of the teacher count; all if absent',
    }),
    globalNormalizationFactor: number({
      above: 0,
      typical: [1, 200],
      help: 'the loss is divided by this, at least 1; the number of unmasked tokens of the batch if absent',
    }),
  },
  metrics: {},
  numerics: NUMERICS,
  entries: ({ mtpLossTopk }) =>
    mtpLossTopk === undefined
      ? { over: 'vocabulary', teacher: 'logits' }
      : { over: 'teacher', count: mtpLossTopk },
  weights: (symbols, { globalNormalizationFactor }) => [
    perItem(
      symbols,
      globalNormalizationFactor === undefined ? undefined : Math.max(globalNormalizationFactor, 1),
    ),
  ],
  formula: (symbols, { mtpLossTopk }) => {
    const { student, teacher, rowSum, exp, batchWeights, weighted } = symbols;
    const isList = mtpLossTopk !== undefined;
    const [s, t] = [student, teacher].map((x) =>
      isList ? renormalized(symbols, x) : logSoftmax(symbols, x),
    ) as [Expression, Expression];
    const entropy = expected(symbols, exp(t), s);
    return { loss: weighted(batchWeights[0], rowSum(entropy)).neg(), metrics: {} };
  },
}) {}

/** The generalized knowledge distillation of ms-swift. */
export class SwiftGKDLossFn extends logitsLoss({
  name: 'swift/gkd',
  summary: `ℓ = ${JSD}, plus sft_alpha·CE unless the student wrote the rows, the mean over the tokens`,
  details: [
    'The teacher gives logits, or a list (teacher_topk_ids, teacher_topk_logprobs). Over a list, both are renormalized.',
    'The narrower of two vocabularies takes the logits of the other one.',
    'Tokens whose list has no finite log-probability leave the divergence and its mean.',
  ],
  source: ['ms-swift'],
  reads: ['targets', 'teacher_logits', 'teacher_topk_ids', 'teacher_topk_logprobs', 'action_mask'],
  options: {
    beta: number({ ...BETA, default: 0.5 }),
    temperature: number({ ...TEMPERATURE, default: 0.9 }),
    gkdLogitsTopk: integer({
      atLeast: 1,
      typical: [1, 20],
      help: 'how many tokens with the largest logits of the teacher count; all if absent',
    }),
    sftAlpha: number({ ...WEIGHT, default: 0, help: 'the factor of the cross-entropy' }),
    dataSource: choice(['dataset', 'student'], {
      default: 'dataset',
      help: 'who wrote the rows; those of the student have no cross-entropy',
    }),
  },
  metrics: {},
  numerics: NUMERICS,
  entries: ({ gkdLogitsTopk, sftAlpha, dataSource }, has) => {
    const target = sftAlpha > 0 && dataSource === 'dataset';
    if (has('teacher_topk_ids')) return { over: 'given', target };
    if (gkdLogitsTopk !== undefined)
      return { over: 'teacher', count: gkdLogitsTopk, target, narrower: 'either' };
    return { over: 'vocabulary', teacher: 'logits', target, narrower: 'either' };
  },
  mask: (mask, _, inputs) =>
    find(inputs.batch, inputs.mapper.keys('teacher_topk_ids'))
      ? finiteEntries(mask, inputs).map((count) => (count > 0 ? 1 : 0))
      : new Float32Array(mask.length).fill(1),
  weights: (symbols) => {
    const { constant, mark, batchSum, max } = symbols;
    return [mark.div(max(batchSum(mark), 1)), perItem(symbols, undefined)].map((x) => constant(1).mul(x));
  },
  formula: (symbols, { beta, temperature, gkdLogitsTopk, sftAlpha, dataSource }, has) => {
    const { student, teacher, batchWeights, weighted, constant, select } = symbols;
    const isList = has('teacher_topk_ids') || gkdLogitsTopk !== undefined;
    const compared = isList
      ? // A list without a finite log-probability has no gradient, so its tokens need finite numbers.
        [student, select(batchWeights[0].ne(0), teacher, 0)]
      : [orAbsent(symbols, student, teacher), orAbsent(symbols, teacher, student)];
    const [s, t] = compared.map((x) =>
      isList ? renormalized(symbols, x, temperature) : logSoftmax(symbols, x, temperature),
    ) as [Expression, Expression];
    const term = jsdTerm(symbols, beta, s, t);
    const divergence = weighted(batchWeights[0], isList ? listSum(symbols, term) : symbols.rowSum(term));
    const own = isList ? student : logSoftmax(symbols, orAbsent(symbols, student, LOWEST));
    const isTrained = sftAlpha > 0 && dataSource === 'dataset';
    const hard = isTrained ? weighted(batchWeights[1], atTarget(symbols, own)).mul(-sftAlpha) : constant(0);
    return { loss: divergence.add(hard), metrics: {} };
  },
}) {}
