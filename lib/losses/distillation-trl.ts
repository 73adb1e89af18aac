// The distillation losses of TRL over the whole vocabulary.
import { number } from '../base/option.js';
import type { Expression } from '../program/expression.js';
import { BETA, JSD, NUMERICS, TEMPERATURE } from './distillation-options.js';
import { expected, ITEMS, jsdTerm, logSoftmax, perItem } from './distillation-terms.js';
import type { EntrySymbols } from './entries.js';
import { logitsLoss } from './logits-loss.js';
import { NATS } from './units.js';

const TEACHER = ['teacher_logits', 'action_mask'] as const;

/** The loss of TRL's GKDTrainer. */
export class TRLGKDLossFn extends logitsLoss({
  name: 'trl/gkd',
  summary: `ℓ = ${JSD}, the mean over the tokens`,
  source: ['arXiv 2306.13649', 'TRL'],
  reads: TEACHER,
  options: { beta: number({ ...BETA, default: 0.5 }), ...ITEMS },
  metrics: {},
  numerics: NUMERICS,
  entries: () => ({ over: 'vocabulary', teacher: 'logits' }),
  weights: (symbols, { numItemsInBatch }) => [perItem(symbols, numItemsInBatch)],
  formula: (symbols, { beta }) => ({ loss: jsd(symbols, beta, 1), metrics: {} }),
}) {}

/** The loss of TRL's GOLDTrainer for teachers with the same tokenizer. */
export class TRLGoldLossFn extends logitsLoss({
  name: 'trl/gold',
  summary: `ℓ = ${JSD}, the mean over the tokens`,
  source: ['TRL'],
  unlike: { 'trl/gkd': 'both logits are divided by a temperature' },
  reads: TEACHER,
  options: {
    beta: number({ ...BETA, default: 0.5 }),
    temperature: number({ ...TEMPERATURE, default: 0.9 }),
    ...ITEMS,
  },
  metrics: {},
  numerics: NUMERICS,
  entries: () => ({ over: 'vocabulary', teacher: 'logits' }),
  weights: (symbols, { numItemsInBatch }) => [perItem(symbols, numItemsInBatch)],
  formula: (symbols, { beta, temperature }) => ({ loss: jsd(symbols, beta, temperature), metrics: {} }),
}) {}

const SCALE = { above: 0, typical: [0.5, 2] } as const;
const CAP = { above: 0, typical: [5, 50] } as const;

/** The loss of TRL's DistillationTrainer. */
export class TRLDistillationLossFn extends logitsLoss({
  name: 'trl/distillation',
  summary: `ℓ = ${JSD}, the mean over the tokens`,
  details: ['Logits are multiplied by their scale, then capped, and then divided by the temperature.'],
  source: ['TRL'],
  unlike: { 'trl/gkd': 'beta is 1, and logits may be scaled and capped' },
  reads: TEACHER,
  options: {
    beta: number({ ...BETA, default: 1 }),
    temperature: number({ ...TEMPERATURE, default: 1 }),
    studentLogitScale: number({ ...SCALE, help: 'multiplies the logits' }),
    teacherLogitScale: number({ ...SCALE, help: "multiplies the teacher's logits" }),
    studentFinalLogitSoftcapping: number({ ...CAP, help: 'c: c·tanh(x/c) replaces the scaled logit x' }),
    teacherFinalLogitSoftcapping: number({ ...CAP, help: "the same for the teacher's logits" }),
    ...ITEMS,
  },
  metrics: { entropy: NATS },
  numerics: NUMERICS,
  entries: () => ({ over: 'vocabulary', teacher: 'logits' }),
  weights: (symbols, { numItemsInBatch }) => [perItem(symbols, numItemsInBatch)],
  formula: (symbols, options) => {
    const { student, teacher, tanh, rowSum, exp, batchWeights, weighted, mean } = symbols;
    const changed = (x: Expression, scale: number | undefined, cap: number | undefined) => {
      const scaled = scale === undefined ? x : x.mul(scale);
      return cap === undefined ? scaled : tanh(scaled.mul(1 / cap)).mul(cap);
    };
    const { beta, temperature, studentLogitScale, studentFinalLogitSoftcapping } = options;
    const own = changed(student, studentLogitScale, studentFinalLogitSoftcapping);
    const other = changed(teacher, options.teacherLogitScale, options.teacherFinalLogitSoftcapping);
    const s = logSoftmax(symbols, own, temperature);
    const divergence = rowSum(jsdTerm(symbols, beta, s, logSoftmax(symbols, other, temperature)));
    return {
      loss: weighted(batchWeights[0], divergence),
      metrics: { entropy: mean(rowSum(expected(symbols, exp(s), s)).neg()) },
    };
  },
}) {}

/** The distillation term of TRL's MiniLLMTrainer for single steps. */
export class TRLMiniLLMLossFn extends logitsLoss({
  name: 'trl/minillm',
  summary: 'ℓ = KL(p‖q), the mean over all B·T tokens',
  details: ['As in TRL, masked tokens count too.'],
  source: ['arXiv 2306.08543', 'TRL'],
  reads: ['teacher_logits'],
  options: { kdTemperature: number({ ...TEMPERATURE, default: 1 }) },
  metrics: {},
  numerics: NUMERICS,
  mask: (mask) => {
    mask.fill(1);
    return undefined;
  },
  entries: () => ({ over: 'vocabulary', teacher: 'logits' }),
  weights: (symbols) => [perItem(symbols, undefined)],
  formula: (symbols, { kdTemperature }) => ({ loss: jsd(symbols, 1, kdTemperature), metrics: {} }),
}) {}

// Returns the weighted divergence of a token.
function jsd(symbols: EntrySymbols, beta: number, temperature: number): Expression {
  const { student, teacher, rowSum, batchWeights, weighted } = symbols;
  const s = logSoftmax(symbols, student, temperature);
  return weighted(
    batchWeights[0],
    rowSum(jsdTerm(symbols, beta, s, logSoftmax(symbols, teacher, temperature))),
  );
}
