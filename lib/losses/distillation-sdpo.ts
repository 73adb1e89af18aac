// TRL's SDPO: a policy loss, mixed with self-distillation.
import { choice, number } from '../base/option.js';
import type { Expression } from '../program/expression.js';
import { BETA, NUMERICS } from './distillation-options.js';
import { atTarget, logSoftmax } from './distillation-terms.js';
import { SELF, SELF_METRICS, SELF_READS, selfDistillation, selfEntries } from './distillation-trl-lists.js';
import { COMPLETION_LENGTH, trlWeight } from './divisors.js';
import type { EntrySymbols } from './entries.js';
import { logitsLoss } from './logits-loss.js';
import type { HasInput } from './logits-parts.js';
import { surrogate } from './surrogate.js';
import { LOSS } from './units.js';

const RANGE = { atLeast: 0, typical: [0.1, 0.4] } as const;
const WITH_POLICY = { when: 'with distillation_weight below 1' } as const;

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
