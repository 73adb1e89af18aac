// Self-distillation of TRL: SDFT, and SDPO, which mixes it with a policy loss.
import { choice, flag, integer, number } from '../base/option.js';
import type { Expression } from '../program/expression.js';
import { BETA, LIST, NUMERICS, TAIL, TEMPERATURE } from './distillation-options.js';
import { atTarget, fullDivergence, listDivergence, logSoftmax, perItem } from './distillation-terms.js';
import { COMPLETION_LENGTH, trlWeight } from './divisors.js';
import type { Entries, EntrySymbols } from './entries.js';
import { logitsLoss } from './logits-loss.js';
import type { HasInput } from './logits-parts.js';
import { limitedLog } from './statistics.js';
import { surrogate } from './surrogate.js';
import { LOSS, NATS } from './units.js';

// The options of self-distillation.
const SELF = {
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
// Its metrics.
const SELF_METRICS = {
  'self_distillation/distillation_loss': LOSS,
  'self_distillation/server_logprob_abs_diff': { ...NATS, when: 'with use_teacher_server' },
};
// The inputs that it reads.
const SELF_READS = ['teacher_logits', ...LIST, 'targets', 'teacher_logprob', 'old_logprob'] as const;
const ALPHA = { ...BETA, help: BETA.help.replace('β', 'α') } as const;
const SELF_SUMMARY = 'ℓ = α·KL(q‖M) + (1−α)·KL(p‖M), M = (1−α)·p + α·q, the mean over rows of means';

const RANGE = { atLeast: 0, typical: [0.1, 0.4] } as const;
const WITH_POLICY = { when: 'with distillation_weight below 1' } as const;

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

/** The loss of TRL's SDPOTrainer. */
export class TRLSDPOLossFn extends logitsLoss({
  name: 'trl/sdpo',
  summary: 'ℓ = (1 − w)·the clipped surrogate of trl/grpo + w·the divergence of trl/sdft',
  details: ['Rows that self_distillation_mask leaves out are not distilled.'],
  source: ['TRL'],
  unlike: { 'trl/sdft': 'α is 1, at the sampled token, and a policy loss is added' },
  reads: [...SELF_READS, 'advantages', 'self_distillation_mask'],
  options: {
    distillationAlpha: number({ ...BETA, default: 1, help: BETA.help.replace('β', 'α') }),
    ...SELF,
    distillationMode: choice(['topk_logits', 'full_logits', 'sampled_token'], {
      default: 'sampled_token',
      help: SELF.distillationMode.help,
    }),
    distillationWeight: number({
      default: 1,
      atLeast: 0,
      atMost: 1,
      typical: [0, 1],
      help: 'w, the share of the distillation; the policy loss is not computed if it is 1',
    }),
    lossType: choice(['grpo', 'bnpo', 'dr_grpo', 'dapo'], {
      default: 'dapo',
      help: 'what the policy loss is divided by; dapo is bnpo here',
    }),
    epsilon: number({ ...RANGE, default: 0.2, help: 'the ratio is clipped to at least 1 − this' }),
    epsilonHigh: number({
      ...RANGE,
      defaultFrom: 'epsilon',
      help: 'the ratio is clipped to at most 1 + this',
    }),
    importanceSamplingLevel: choice(['token', 'sequence'], {
      default: 'token',
      help: 'whether the ratio is that of a token, or the geometric mean over its row',
    }),
    ...COMPLETION_LENGTH,
  },
  metrics: { ...SELF_METRICS, 'self_distillation/policy_loss': { ...LOSS, ...WITH_POLICY } },
  numerics: NUMERICS,
  optional: ['old_logprob', 'teacher_logprob', 'advantages'],
  entries: (options) => selfEntries(options),
  mask: (mask, _, { flags, layout: { rows, rowLength, offsets } }) => {
    const marks = new Float32Array(mask.length);
    const isDistilled = flags('self_distillation_mask', 'row');
    for (let row = 0; row < rows; row++) {
      const begin = offsets?.[row] ?? row * rowLength;
      const end = offsets?.[row + 1] ?? begin + rowLength;
      if (isDistilled?.[row] !== 0) marks.fill(1, begin, end);
    }
    return marks;
  },
  weights: (symbols, { lossType, distillationWeight, maxCompletionLength }) => {
    const { mark, rows, rowSum, batchSum, max } = symbols;
    const type = lossType === 'dapo' ? 'bnpo' : lossType;
    const divisor = { numItemsInBatch: undefined, numProcesses: 1, gradientAccumulationSteps: 1 };
    const ofPolicy = trlWeight(symbols, type, { ...divisor, maxCompletionLength });
    const distilled = [mark.div(rows.mul(max(rowSum(mark), 1))), mark.div(max(batchSum(mark), 1))];
    return distillationWeight < 1 ? [...distilled, ofPolicy] : distilled;
  },
  formula: (symbols, options, has) => {
    const { batchWeights, weighted, total } = symbols;
    const { loss, metrics } = selfDistillation(symbols, options, has);
    const distilled = weighted(batchWeights[0], loss);
    const w = options.distillationWeight;
    if (w === 1)
      return { loss: distilled, metrics: { ...metrics, 'self_distillation/policy_loss': undefined } };
    const policy = weighted(batchWeights[2], policyLoss(symbols, options, has));
    return {
      loss: distilled.mul(w).add(policy.mul(1 - w)),
      metrics: { ...metrics, 'self_distillation/policy_loss': total(policy) },
    };
  },
}) {}

// Returns the clipped surrogate of a token.
function policyLoss(
  symbols: EntrySymbols,
  options: {
    readonly distillationMode: string;
    readonly temperature: number;
    readonly epsilon: number;
    readonly epsilonHigh: number | undefined;
    readonly importanceSamplingLevel: 'token' | 'sequence';
  },
  has: HasInput,
): Expression {
  const { student, oldLogprob, advantages, exp, sg, groupSum, max } = symbols;
  const isFull = options.distillationMode === 'full_logits';
  const lp = atTarget(symbols, isFull ? logSoftmax(symbols, student, options.temperature) : student);
  const logRatio = lp.sub(has('old_logprob') ? oldLogprob : sg(lp));
  const isOfRow = options.importanceSamplingLevel === 'sequence';
  const ofLevel = isOfRow ? groupSum(logRatio).div(max(groupSum(1), 1)) : logRatio;
  const range = [1 - options.epsilon, 1 + (options.epsilonHigh ?? options.epsilon)] as const;
  return surrogate(symbols, exp(ofLevel), range, { A: advantages }).loss;
}

// Returns the entries from which self-distillation is computed.
function selfEntries({
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

// Returns the loss of a token without its weight, and the metrics, whose mean over the tokens the second weight gives.
function selfDistillation(symbols: EntrySymbols, options: SelfOptions, has: HasInput) {
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
