// The distillation losses of TRL over lists of tokens and over the sampled token.
import { choice, flag, integer, number } from '../base/option.js';
import type { Expression } from '../program/expression.js';
import { BETA, JSD, LIST, NUMERICS, TEMPERATURE } from './distillation-options.js';
import {
  atTarget,
  expected,
  ITEMS,
  jsdTerm,
  listDivergence,
  listSum,
  logSoftmax,
  perItem,
  renormalized,
  teachersTail,
} from './distillation-terms.js';
import type { Entries, EntrySymbols } from './entries.js';
import { logitsLoss } from './logits-loss.js';
import type { HasInput } from './logits-parts.js';
import { limitedLog } from './statistics.js';
import { IN_ONE_CALL, LOSS, NATS } from './units.js';

const TAIL = 'whether all other tokens are one bucket; otherwise both are renormalized over the list';

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

/** The options of self-distillation. */
export const SELF = {
  distillationMode: choice(['topk_logits', 'full_logits', 'sampled_token'], {
    default: 'topk_logits',
    help: "whether the divergence is over the student's likeliest tokens, over all, or estimated at the sampled token",
  }),
  distillationTopk: integer({
    atLeast: 1,
    typical: [1, 5],
    help: 'the number of the likeliest tokens; 100 if absent',
  }),
  distillationAddTail: flag({ default: false, help: TAIL }),
  distillationIsClip: number({
    default: 2,
    above: 0,
    nullable: true,
    typical: [1, 3],
    help: 'the largest ratio to old_logprob by which a token is multiplied; null for none',
  }),
  temperature: number({ ...TEMPERATURE, default: 1, help: 'both logits are divided by this' }),
  useTeacherServer: flag({
    default: false,
    help: 'whether the teacher gives teacher_logprob and a list instead of logits',
  }),
};
type SelfOptions = {
  readonly distillationMode: 'topk_logits' | 'full_logits' | 'sampled_token';
  readonly distillationTopk: number | undefined;
  readonly distillationAddTail: boolean;
  readonly distillationIsClip: number | undefined;
  readonly temperature: number;
  readonly useTeacherServer: boolean;
  readonly distillationAlpha: number;
};
/** Its metrics. */
export const SELF_METRICS = {
  'self_distillation/distillation_loss': LOSS,
  'self_distillation/server_logprob_abs_diff': { ...NATS, when: 'with use_teacher_server' },
};
/** The inputs that it reads. */
export const SELF_READS = ['teacher_logits', ...LIST, 'targets', 'teacher_logprob', 'old_logprob'] as const;
const ALPHA = { ...BETA, help: BETA.help.replace('β', 'α') } as const;
const SELF_SUMMARY = 'ℓ = α·KL(q‖M) + (1−α)·KL(p‖M), M = (1−α)·p + α·q, the mean over rows of means';

/** The loss of TRL's SDFTTrainer. */
export class TRLSDFTLossFn extends logitsLoss({
  name: 'trl/sdft',
  summary: SELF_SUMMARY,
  details: ['sampled_token needs α = 1, and takes the policy gradient of KL(p‖q): ℓ = sg(ln p − ln q)·ln p.'],
  source: ['TRL'],
  reads: SELF_READS,
  options: {
    distillationAlpha: number({ ...ALPHA, default: 0.5 }),
    ...SELF,
    numLossTokensToSkip: integer({
      default: 0,
      atLeast: 0,
      typical: [0, 2],
      help: 'the first columns, which do not count',
    }),
  },
  metrics: SELF_METRICS,
  numerics: NUMERICS,
  optional: ['old_logprob', 'teacher_logprob'],
  entries: (options) => selfEntries(options),
  mask: (mask, { numLossTokensToSkip }, { layout: { rows, rowLength, offsets } }) => {
    for (let row = 0; row < rows; row++) {
      const begin = offsets?.[row] ?? row * rowLength;
      mask.fill(0, begin, Math.min(begin + numLossTokensToSkip, offsets?.[row + 1] ?? begin + rowLength));
    }
    return undefined;
  },
  weights: (symbols) => [perRowToken(symbols), perItem(symbols, undefined)],
  formula: (symbols, options, has) => {
    const { loss, metrics } = selfDistillation(symbols, options, has);
    return { loss: symbols.weighted(symbols.batchWeights[0], loss), metrics };
  },
}) {}

// 1/(B·max(n, 1))
function perRowToken({ constant, rows, n, max }: Parameters<typeof perItem>[0]): Expression {
  return constant(1).div(rows.mul(max(n, 1)));
}

/** Returns the entries from which self-distillation is computed. */
export function selfEntries({
  distillationMode,
  distillationTopk,
  distillationAddTail,
  temperature,
  useTeacherServer,
}: SelfOptions): Entries {
  const teacherTemperature = temperature;
  if (distillationMode === 'full_logits') return { over: 'vocabulary', teacher: 'logits', target: true };
  const over = useTeacherServer && distillationMode === 'topk_logits' ? 'given' : 'student';
  if (distillationMode === 'topk_logits')
    return {
      over,
      count: distillationTopk ?? 100,
      teacher: 'logits',
      target: true,
      others: distillationAddTail,
      temperature,
      teacherTemperature,
    };
  return {
    over: useTeacherServer ? 'none' : 'teacher',
    count: 0,
    target: true,
    temperature,
    teacherTemperature,
  };
}

/** Returns the loss of a token without its weight, and the metrics, whose mean over the tokens the second weight gives. */
export function selfDistillation(symbols: EntrySymbols, options: SelfOptions, has: HasInput) {
  const { distillationMode, distillationAlpha, distillationAddTail, distillationIsClip, temperature } =
    options;
  const { student, teacher, teacherLogprob, oldLogprob, batchWeights, weighted, total } = symbols;
  const { sg, exp, min, abs } = symbols;
  const isFull = distillationMode === 'full_logits';
  const own = isFull ? logSoftmax(symbols, student, temperature) : student;
  const lp = atTarget(symbols, own);
  const ofSampled = () => {
    const t = options.useTeacherServer ? teacherLogprob : atTarget(symbols, teacher);
    return sg(lp.sub(t)).mul(lp);
  };
  const divergence = isFull
    ? fullDivergence(symbols, distillationAlpha, temperature)
    : distillationMode === 'sampled_token'
      ? ofSampled()
      : listDivergence(symbols, distillationAlpha, student, teacher, distillationAddTail);
  const isCorrected = distillationIsClip !== undefined && has('old_logprob');
  const ratio = () => sg(min(exp(limitedLog(symbols, lp.sub(oldLogprob))), distillationIsClip!));
  const loss = isCorrected ? divergence.mul(ratio()) : divergence;
  const meanOf = (x: Expression) => total(weighted(batchWeights[1], x));
  return {
    loss,
    metrics: {
      'self_distillation/distillation_loss': meanOf(loss),
      'self_distillation/server_logprob_abs_diff': options.useTeacherServer
        ? meanOf(abs(lp.sub(teacherLogprob)))
        : undefined,
    },
  };
}

function fullDivergence(symbols: EntrySymbols, beta: number, temperature: number): Expression {
  const { student, teacher, rowSum } = symbols;
  const s = logSoftmax(symbols, student, temperature);
  return rowSum(jsdTerm(symbols, beta, s, logSoftmax(symbols, teacher, temperature)));
}
