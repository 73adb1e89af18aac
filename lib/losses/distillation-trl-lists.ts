// The distillation losses of TRL over lists of tokens and over the sampled token.
import { choice, flag, integer, number } from '../base/option.js';
import type { Expression } from '../program/expression.js';
import { BETA, JSD, LIST, NUMERICS, TAIL, TEMPERATURE } from './distillation-options.js';
import {
  expected,
  fullDivergence,
  ITEMS,
  listDivergence,
  listSum,
  perItem,
  renormalized,
  teachersTail,
} from './distillation-terms.js';
import { logitsLoss } from './logits-loss.js';
import { IN_ONE_CALL, NATS } from './units.js';

/** The loss of TRL's distillation from a teacher server. */
export class TRLServerDistillLossFn extends logitsLoss({
  name: 'trl/server_distill',
  summary: `ℓ = ${JSD} over a list, the mean over the tokens`,
  details: [
    "The list is the teacher's for β = 0, the sampled token for β = 1, and else both the teacher's best token and the sampled one.",
  ],
  source: ['TRL'],
  reads: [...LIST, 'targets', 'teacher_logprob'],
  options: {
    beta: number({ ...BETA, default: 1 }),
    temperature: number({ ...TEMPERATURE, default: 1 }),
    lossTopK: integer({
      default: 1,
      atLeast: 1,
      typical: [1, 5],
      help: "the number of the teacher's tokens for β = 0; otherwise only its best one counts",
    }),
    lossAddTail: flag({ default: true, help: TAIL }),
  },
  metrics: {},
  numerics: NUMERICS,
  columns: ['teacher_logprob'],
  entries: ({ beta, lossTopK, lossAddTail, temperature }) => ({
    over: 'given',
    count: beta === 0 ? lossTopK : beta < 1 ? 1 : 0,
    target: beta > 0,
    isDistinct: true,
    others: lossAddTail,
    counts: isPossible,
    temperature,
  }),
  weights: (symbols) => [perItem(symbols, undefined)],
  formula: (symbols, { beta, lossAddTail }) => {
    const { student, teacher, teacherLogprob, isTarget, select, batchWeights, weighted } = symbols;
    const t = beta > 0 ? select(isTarget, teacherLogprob, teacher) : teacher;
    return {
      loss: weighted(batchWeights[0], listDivergence(symbols, beta, student, t, lossAddTail)),
      metrics: {},
    };
  },
}) {}

function isPossible(logprob: number): boolean {
  return logprob > -Infinity;
}

/** The loss of TRL's asynchronous distillation. */
export class TRLAsyncDistillationLossFn extends logitsLoss({
  name: 'trl/async_distillation',
  summary: `ℓ = ${JSD} over a list, the mean over the tokens`,
  details: [
    "The list is the teacher's for β = 0, the sampled token for β = 1, and else both the teacher's best token and the sampled one. The sampled token counts if the teacher's ids have it.",
    'Tokens without a list leave the sum and the metrics, but not the divisor.',
  ],
  source: ['TRL'],
  unlike: { 'trl/server_distill': "the sampled token is sought among the teacher's ids" },
  reads: [...LIST, 'targets'],
  options: {
    beta: number({ ...BETA, default: 0 }),
    teacherTemperature: number({ ...TEMPERATURE, default: 1 }),
    teacherTopK: integer({
      default: 8,
      atLeast: 1,
      typical: [1, 5],
      help: 'has no effect: the list has its own length',
    }),
    addTailBucket: flag({ default: true, help: TAIL }),
    globalNTokens: integer({
      atLeast: 1,
      typical: [1, 200],
      help: 'the loss is divided by this; the number of unmasked tokens of the batch if absent',
    }),
  },
  metrics: {
    jsd: { ...NATS, when: IN_ONE_CALL },
    entropy: { ...NATS, when: IN_ONE_CALL },
    teacher_entropy: { ...NATS, when: IN_ONE_CALL },
  },
  numerics: NUMERICS,
  entries: ({ beta, addTailBucket, teacherTemperature }) => ({
    over: 'given',
    target: 'listed',
    entropy: true,
    others: addTailBucket,
    counts: (logprob, place, isTarget) =>
      isPossible(logprob) && (beta === 0 || isTarget || (beta < 1 && place === 0)),
    temperature: teacherTemperature,
  }),
  weights: (symbols, { globalNTokens }) => [perItem(symbols, globalNTokens)],
  formula: (symbols, { beta, addTailBucket }) => {
    const { student, teacher, isListed, select, batchWeights, weighted, exp, rowSum } = symbols;
    const { rowsSum, max, entropy } = symbols;
    const hasSupport = rowSum(isListed).gt(0);
    const ofSupport = (x: Expression) => select(hasSupport, x, 0);
    const divergence = ofSupport(listDivergence(symbols, beta, student, teacher, addTailBucket));
    const entropyOf = (x: Expression) => {
      const term = (log: Expression) => expected(symbols, exp(log), log);
      const normal = addTailBucket ? x : renormalized(symbols, x);
      const inside = listSum(symbols, term(normal));
      return ofSupport((addTailBucket ? inside.add(term(teachersTail(symbols, x))) : inside).neg());
    };
    const meanOf = (x: Expression) => ({ batch: rowsSum(x).div(max(rowsSum(hasSupport), 1)) });
    return {
      loss: weighted(batchWeights[0], divergence),
      metrics: {
        jsd: meanOf(divergence),
        entropy: meanOf(ofSupport(entropy)),
        teacher_entropy: meanOf(entropyOf(teacher)),
      },
    };
  },
}) {}

const SAMPLED = {
  reverseKlTop1Mode: choice(['sampled', 'argmax'], {
    default: 'sampled',
    help: "with loss_top_k 1 and β > 0: whether the list has the sampled token, or the student's best one",
  }),
};

/** The Jensen-Shannon objective of TRL's importance-weighted on-policy distillation. */
export class TRLIWOPDJSDLossFn extends logitsLoss({
  name: 'trl/iw_opd_jsd',
  summary: `ℓ = ${JSD} over a list, the mean over the tokens`,
  details: [
    "The list has the loss_top_k likeliest tokens of the teacher for β = 0, of the student for β = 1, and else of both. With loss_top_k 0 it has all tokens, and with 1 and β > 0 the sampled token takes the place of the student's best.",
  ],
  source: ['TRL'],
  reads: ['teacher_logits', 'targets', 'action_mask'],
  options: {
    beta: number({ ...BETA, default: 1 }),
    temperature: number({ ...TEMPERATURE, default: 1, help: 'both logits are divided by this' }),
    lossTopK: integer({ default: 1, atLeast: 0, typical: [0, 5], help: 'the number of tokens; 0 for all' }),
    lossAddTail: flag({ default: true, help: TAIL }),
    ...SAMPLED,
    ...ITEMS,
  },
  metrics: {},
  numerics: NUMERICS,
  entries: ({ beta, temperature, lossTopK, lossAddTail: others, reverseKlTop1Mode }) => {
    if (lossTopK === 0) return { over: 'vocabulary', teacher: 'logits' };
    const temperatures = { temperature, teacherTemperature: temperature };
    if (lossTopK === 1 && beta > 0 && reverseKlTop1Mode === 'sampled')
      return {
        over: 'teacher',
        count: beta < 1 ? 1 : 0,
        target: true,
        isDistinct: true,
        others,
        ...temperatures,
      };
    return {
      over: beta === 0 ? 'teacher' : beta === 1 ? 'student' : 'both',
      count: lossTopK,
      teacher: 'logits',
      others,
      ...temperatures,
    };
  },
  weights: (symbols, { numItemsInBatch }) => [perItem(symbols, numItemsInBatch)],
  formula: (symbols, { beta, temperature, lossTopK, lossAddTail }) => {
    const { student, teacher, batchWeights, weighted } = symbols;
    const of =
      lossTopK === 0
        ? fullDivergence(symbols, beta, temperature)
        : listDivergence(symbols, beta, student, teacher, lossAddTail);
    return { loss: weighted(batchWeights[0], of), metrics: {} };
  },
}) {}
