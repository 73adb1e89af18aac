// Losses of log-probabilities for supervised fine-tuning with weighted tokens, and for self-distillation.
import { AGGREGATION_HELP, choice, integer, number } from '../base/option.js';
import type { Expression, ProgramSymbols } from '../program/expression.js';
import { lossMetric } from '../program/loss-program.js';
import { type Has, policyLoss } from './policy-loss.js';
import { FRACTION, IN_ONE_CALL, LOSS, NATS } from './units.js';
import { meanWeights } from './value-terms.js';

const WEIGHTED_KEYS = ['token_weights', 'action_mask'] as const;
const OPTIONAL_WEIGHTS = { reads: WEIGHTED_KEYS, optional: ['token_weights'] } as const;
const NUMERICS = {
  range: 'any finite logprobs and weights',
  outside: 'NaN and Infinity pass through',
};

const weightsOf = ({ weights, constant }: ProgramSymbols, has: Has): Expression =>
  has('token_weights') ? weights : constant(1);

/** The weighted negative log-likelihood as in Tinker: a sum, without a mean. */
export class TinkerCrossEntropyLossFn extends policyLoss({
  name: 'tinker/cross_entropy',
  summary: 'ℓ = −w·logprob, the sum over the tokens; w = token_weights',
  details: [
    'With the reduction mean, the weights of each row are first divided by their sum if it is positive, as in the cookbook.',
    'If the batch has no token_weights, all weights are 1.',
  ],
  source: ['Tinker'],
  ...OPTIONAL_WEIGHTS,
  options: {
    reduction: choice(['none', 'mean'], {
      default: 'none',
      help: 'mean: the weights of each row are divided by their sum',
    }),
  },
  metrics: { train_mean_nll: { ...NATS, when: IN_ONE_CALL } },
  numerics: NUMERICS,
  formula: (symbols, { reduction }, has) => {
    const { lp, rowSum, batchSum, sg } = symbols;
    const given = weightsOf(symbols, has);
    const weights = reduction === 'mean' ? given.div(orOne(symbols, rowSum(given))) : given;
    const loss = weights.mul(lp).neg();
    const mean = orZero(symbols, batchSum(sg(loss)), batchSum(weights));
    return { loss, metrics: { train_mean_nll: { batch: mean } } };
  },
}) {}

// Returns a sum of weights, or 1 where it is not positive.
function orOne({ select }: ProgramSymbols, sum: Expression): Expression {
  return select(sum.gt(0), sum, 1);
}

// Returns x / by, or 0 where `by` is 0.
function orZero({ select }: ProgramSymbols, x: Expression, by: Expression): Expression {
  const isZero = by.eq(0);
  return select(isZero, 0, x.div(select(isZero, 1, by)));
}

/** The cross-entropy of prime-rl: a weighted negative log-likelihood, divided by the number of tokens with weights. */
export class PrimeCELossFn extends policyLoss({
  name: 'prime/ce',
  summary: 'ℓ = −w·logprob, divided by the number of tokens with w ≠ 0; w = token_weights',
  details: [
    'nll is the mean over the rows with such tokens of the means of −logprob over these tokens.',
    'If the batch has no token_weights, all weights are 1.',
  ],
  source: ['prime-rl'],
  ...OPTIONAL_WEIGHTS,
  options: {
    ceScale: integer({
      atLeast: 0,
      typical: [0, 200],
      help: 'the loss is divided by this, or by 1 if it is 0; the number of tokens with weights in the batch if absent',
    }),
  },
  metrics: { nll: { ...NATS, when: IN_ONE_CALL } },
  numerics: NUMERICS,
  formula: (symbols, { ceScale }, has) => {
    const { lp, rowSum, rowsSum, batchSum, select, max, sg } = symbols;
    const weights = weightsOf(symbols, has);
    const isWeighted = weights.ne(0);
    const scale = max(ceScale ?? batchSum(isWeighted), 1);
    const counted = rowSum(isWeighted);
    const ofRow = rowSum(select(isWeighted, sg(lp), 0))
      .neg()
      .div(max(counted, 1));
    return {
      loss: select(isWeighted, weights.mul(lp).neg(), 0).div(scale),
      metrics: { nll: { batch: rowsSum(ofRow).div(max(rowsSum(counted.gt(0)), 1)) } },
    };
  },
}) {}

/** The self-distillation term of ms-swift: the distance to the teacher, with a gate that opens where the teacher is surer. */
export class SwiftSDARLossFn extends policyLoss({
  name: 'swift/sdar',
  summary:
    'ℓ = sdarLossCoef·sg(σ(sdarGateBeta·Δ))·(teacher_logprob − logprob), Δ = teacher_logprob − logprob',
  details: ['ms-swift adds this to its policy loss. The metric sdar/loss lacks the coefficient.'],
  source: ['ms-swift'],
  reads: ['teacher_logprob', 'action_mask'],
  stopsGradient: true,
  options: {
    sdarLossCoef: number({
      default: 0.1,
      atLeast: 0,
      typical: [0.01, 1],
      help: 'the coefficient of the loss',
    }),
    sdarGateBeta: number({ default: 5, typical: [1, 20], help: 'how steeply the gate opens' }),
    lossAggMode: choice(['token-mean', 'seq-mean-token-mean', 'seq-mean-token-sum'], {
      default: 'token-mean',
      help: AGGREGATION_HELP,
    }),
  },
  metrics: {
    'sdar/gate_mean': { unit: 'gate, from 0 to 1' },
    'sdar/gate_active_ratio': FRACTION,
    'sdar/teacher_gap_mean': NATS,
    'sdar/loss': LOSS,
  },
  numerics: {
    ...NUMERICS,
    /** The gate's exponential multiplies the rounding error of its exponent. */
    cancels: ({ logprob, teacherLogprob }) => {
      const gap = Math.abs(teacherLogprob - logprob);
      const gate = (1 + 5 * gap) / (1 + Math.exp(5 * (logprob - teacherLogprob)));
      return { value: 0.1 * gap * gate, gradient: 0.1 * gate };
    },
  },
  formula: (symbols, { sdarLossCoef, sdarGateBeta, lossAggMode }) => {
    const { teacher, lp, sigmoid, sg, rows, constant } = symbols;
    const gap = teacher.sub(lp);
    const gate = sg(sigmoid(gap.mul(sdarGateBeta)));
    const { ofTokens, ofRows } = meanWeights(symbols);
    const weights = {
      'token-mean': ofTokens,
      'seq-mean-token-mean': ofRows,
      'seq-mean-token-sum': constant(1).div(rows),
    };
    const loss = gate.mul(gap).mul(weights[lossAggMode]);
    const mean = (x: Expression) => lossMetric(symbols, x.mul(ofTokens));
    return {
      loss: loss.mul(sdarLossCoef),
      metrics: {
        'sdar/gate_mean': mean(gate),
        'sdar/gate_active_ratio': mean(gap.mul(sdarGateBeta).gt(0)),
        'sdar/teacher_gap_mean': mean(sg(gap)),
        'sdar/loss': lossMetric(symbols, loss),
      },
    };
  },
}) {}
