// The losses of a critic's values, as the frameworks compute them.
import { aggregation, choice, flag, integer, number } from '../base/option.js';
import type { Expression, ProgramSymbols } from '../program/expression.js';
import { lossMetric } from '../program/loss-program.js';
import { valueLoss } from './column-loss.js';
import { VERL_DIVISOR, verlWeight } from './divisors.js';
import { maxOfFilled, minOfFilled } from './statistics.js';
import { FRACTION, IN_ONE_CALL, LOSS } from './units.js';
import {
  clippedError,
  explainedBySamples,
  halfSquared,
  huber,
  meanWeights,
  OPTIONAL_RANGE,
  RANGE,
  sumOfSquares,
  termsOfClipped,
  weightedSum,
} from './value-terms.js';

const VALUE = { unit: 'value' };
const SQUARES = { unit: 'squared value' };
const EXPLAINED = { unit: 'fraction of the variance', when: IN_ONE_CALL };
const ERROR_KEYS = ['old_values', 'returns', 'action_mask'] as const;
const NUMERICS = {
  range: 'any finite values and returns whose difference has a finite square',
  outside: 'squares overflow where the difference exceeds 1.8e19',
};
/** The same for losses that clip by default. */
const CLIPPED = { ...NUMERICS, cancels: termsOfClipped };
const CLIPPED_SQUARE = 'max((values − returns)², (clip(values, old_values ± c) − returns)²)';

/** The clipped value loss as in verl. */
export class VerlValueLossFn extends valueLoss({
  name: 'verl/value',
  summary: `ℓ = ½·${CLIPPED_SQUARE}, in verl's aggregation modes`,
  source: ['verl'],
  reads: ERROR_KEYS,
  options: {
    cliprangeValue: number({ ...RANGE, default: 0.5 }),
    lossAggMode: aggregation('token-mean'),
    ...VERL_DIVISOR,
  },
  metrics: {
    'critic/vf_loss': LOSS,
    'critic/vf_clipfrac': FRACTION,
    'critic/vpred_mean': VALUE,
    'critic/vf_explained_var': EXPLAINED,
  },
  numerics: CLIPPED,
  formula: (symbols, { cliprangeValue, ...options }) => {
    const { loss, clipped } = clippedError(symbols, cliprangeValue, halfSquared);
    const weighted = loss.mul(verlWeight(symbols, options));
    return {
      loss: weighted,
      metrics: {
        'critic/vf_loss': lossMetric(symbols, weighted),
        'critic/vf_clipfrac': { token: clipped },
        'critic/vpred_mean': { token: symbols.values },
        'critic/vf_explained_var': explainedBySamples(symbols),
      },
    };
  },
}) {}

/** The clipped value loss as in TRL's PPO trainer, without its coefficient vf_coef. */
export class TRLValueLossFn extends valueLoss({
  name: 'trl/value',
  summary: `ℓ = ½·${CLIPPED_SQUARE}, the mean over the tokens`,
  details: ['The trainer adds vf_coef times this to the policy loss.'],
  source: ['TRL'],
  reads: ERROR_KEYS,
  options: { cliprangeValue: number({ ...RANGE, default: 0.2 }) },
  metrics: { 'loss/value_avg': LOSS, 'val/clipfrac_avg': FRACTION },
  numerics: CLIPPED,
  formula: (symbols, { cliprangeValue }) => {
    const { loss, clipped } = clippedError(symbols, cliprangeValue, halfSquared);
    const { ofTokens } = meanWeights(symbols);
    return {
      loss: loss.mul(ofTokens),
      metrics: {
        'loss/value_avg': weightedSum(symbols, loss, ofTokens),
        'val/clipfrac_avg': weightedSum(symbols, clipped, ofTokens),
      },
    };
  },
}) {}

/** The clipped value loss as in OpenRLHF. */
export class OpenRLHFValueLossFn extends valueLoss({
  name: 'openrlhf/value',
  summary: `ℓ = ½·${CLIPPED_SQUARE}, the mean over the tokens, or over rows of means`,
  source: ['OpenRLHF'],
  reads: ERROR_KEYS,
  options: {
    valueClip: number({ ...OPTIONAL_RANGE, default: 0.5, nullable: true }),
    tokenLevelLoss: flag({ default: true, help: 'false: the mean over the rows with tokens of their means' }),
    dpSize: VERL_DIVISOR.dpSize,
    batchNumTokens: VERL_DIVISOR.batchNumTokens,
    globalBatchSize: VERL_DIVISOR.globalBatchSize,
  },
  metrics: { critic_loss: LOSS, values: VALUE },
  numerics: CLIPPED,
  formula: (symbols, { valueClip, tokenLevelLoss, dpSize, batchNumTokens, globalBatchSize }) => {
    const { constant, n, rowsSum, max } = symbols;
    const { ofTokens } = meanWeights(symbols);
    const { loss } = clippedError(symbols, valueClip, halfSquared);
    const total = tokenLevelLoss ? batchNumTokens : globalBatchSize;
    const ofRow = tokenLevelLoss ? constant(1) : constant(1).div(n.add(1e-8));
    const share =
      total !== undefined
        ? constant(dpSize / total)
        : tokenLevelLoss
          ? ofTokens
          : constant(1).div(max(rowsSum(n.gt(0)), 1));
    const weighted = loss.mul(ofRow.mul(share));
    return {
      loss: weighted,
      metrics: {
        critic_loss: lossMetric(symbols, weighted),
        values: weightedSum(symbols, symbols.values, ofTokens),
      },
    };
  },
}) {}

/** The clipped value loss as in NeMo-RL, whose divisor comes from outside. */
export class NeMoValueLossFn extends valueLoss({
  name: 'nemo/value',
  summary: `ℓ = scale·½·${CLIPPED_SQUARE}, divided by global_valid_toks`,
  details: [
    'Rows whose sample_mask is 0 do not count. All means are divided by global_valid_toks + 1e-8; without the option, by the number of tokens that count.',
    'critic/explained_var is that of the current values.',
  ],
  source: ['NeMo-RL'],
  reads: [...ERROR_KEYS, 'sample_mask'],
  options: {
    scale: number({ default: 1, typical: [0.1, 2], help: 'the loss is multiplied by this' }),
    cliprange: number({
      ...RANGE,
      typical: [0, 2],
      help: 'how far a value may be from old_values before it is clipped; null or 0 for no clipping',
    }),
    globalValidToks: number({
      atLeast: 0,
      typical: [1, 200],
      help: 'the number of tokens that count in all micro-batches',
    }),
  },
  metrics: {
    loss: LOSS,
    vf_clipfrac: FRACTION,
    returns_mean: VALUE,
    values_mean: VALUE,
    values_min: { ...VALUE, when: IN_ONE_CALL },
    values_max: { ...VALUE, when: IN_ONE_CALL },
    returns_sq_mean: SQUARES,
    residual_sq_mean: SQUARES,
    num_valid_samples: { unit: 'rows' },
    'critic/explained_var': EXPLAINED,
  },
  numerics: NUMERICS,
  formula: (symbols, { scale, cliprange, globalValidToks }) => {
    const { values, returns, sampleMask, rows, n, constant, rowsSum, rowMin, rowMax, square, select } =
      symbols;
    const counted = rowsSum(n.mul(sampleMask));
    const total = (globalValidToks === undefined ? counted : constant(globalValidToks)).add(1e-8);
    const weight = constant(1).div(total);
    const ofRows = (x: Expression) => select(sampleMask.gt(0), x, 0);
    const { loss, clipped } = clippedError(symbols, cliprange || undefined, halfSquared);
    const weighted = ofRows(loss).mul(weight.mul(scale));
    const mean = (x: Expression) => weightedSum(symbols, ofRows(x), weight);
    const residual = returns.sub(values);
    // Tokens of rows that do not count are not among the extremes.
    const ofCounted: ProgramSymbols = { ...symbols, n: n.mul(sampleMask), tokens: counted };
    return {
      loss: weighted,
      metrics: {
        loss: lossMetric(symbols, weighted),
        vf_clipfrac: mean(clipped),
        returns_mean: mean(returns),
        values_mean: mean(values),
        values_min: { batch: minOfFilled(ofCounted, rowMin(values)) },
        values_max: { batch: maxOfFilled(ofCounted, rowMax(values)) },
        returns_sq_mean: mean(square(returns)),
        residual_sq_mean: mean(square(residual)),
        num_valid_samples: { row: rows },
        'critic/explained_var': { batch: explainedOfCounted(symbols, residual, counted, total) },
      },
      allRows: true,
    };
  },
}) {}

// 1 − (E e² − (E e)²) / max(E R² − (E R)², 1e-8), where E divides by `total`. The sums are those of differences from the
// mean, because the others would cancel.
function explainedOfCounted(
  { returns, sampleMask, batchSum, square, max, constant, select }: ProgramSymbols,
  residual: Expression,
  counted: Expression,
  total: Expression,
): Expression {
  const spread = (x: Expression) => {
    const ofRows = (y: Expression) => select(sampleMask.gt(0), y, 0);
    const mean = batchSum(ofRows(x)).div(max(counted, 1));
    const around = batchSum(ofRows(square(x.sub(mean)))).div(total);
    return around.add(square(mean).mul(counted).mul(total.sub(counted)).div(square(total)));
  };
  return constant(1).sub(spread(residual).div(max(spread(returns), 1e-8)));
}

/** The clipped value loss as in SkyRL. */
export class SkyRLValueLossFn extends valueLoss({
  name: 'skyrl/value',
  summary: `ℓ = ½·${CLIPPED_SQUARE}, the mean over all rows of means`,
  source: ['SkyRL'],
  reads: ERROR_KEYS,
  options: { valueClip: number({ ...OPTIONAL_RANGE, default: 0.2, nullable: true }) },
  metrics: {
    critic_loss: LOSS,
    values_mean: VALUE,
    values_clipfrac: { ...FRACTION, when: 'with value_clip' },
  },
  numerics: CLIPPED,
  formula: (symbols, { valueClip }) => {
    const { ofTokens, ofRows } = meanWeights(symbols);
    const { loss, clipped } = clippedError(symbols, valueClip, halfSquared);
    return {
      loss: loss.mul(ofRows),
      metrics: {
        critic_loss: weightedSum(symbols, loss, ofRows),
        values_mean: weightedSum(symbols, symbols.values, ofTokens),
        values_clipfrac: valueClip === undefined ? undefined : weightedSum(symbols, clipped, ofTokens),
      },
    };
  },
}) {}

const MEGATRON = {
  details: [
    'K is the number of tokens of all rows of a rollout, which have the same rollout_ids.',
    'value_clipfrac counts tokens farther than value_clip from old_values.',
  ],
  reads: [...ERROR_KEYS, 'rollout_ids'],
  groups: 'rollout_ids',
  options: {
    valueClip: number({ ...RANGE, default: 0.2 }),
    calculatePerTokenLoss: flag({
      default: false,
      help: 'true: the sum over the tokens divided by Σ max(n, 1)',
    }),
    globalBatchSize: integer({
      atLeast: 1,
      typical: [1, 32],
      help: 'the loss is divided by this, unless it is one per token; the number of rows if absent',
    }),
  },
  metrics: { value_loss: LOSS, value_clipfrac: FRACTION },
  numerics: CLIPPED,
} as const;

function megatron(
  symbols: ProgramSymbols,
  options: {
    valueClip: number;
    calculatePerTokenLoss: boolean;
    globalBatchSize: number | undefined;
  },
) {
  const { values, oldValues, n, rows, constant, abs, max, groupSum, rowsSum } = symbols;
  const { valueClip, calculatePerTokenLoss, globalBatchSize } = options;
  const { loss } = clippedError(symbols, valueClip);
  const divisor = calculatePerTokenLoss
    ? max(rowsSum(max(n, 1)), 1)
    : max(groupSum(n), 1).mul(globalBatchSize ?? rows);
  const weight = constant(1).div(divisor);
  return {
    loss: loss.mul(weight),
    metrics: {
      value_loss: weightedSum(symbols, loss, weight),
      value_clipfrac: weightedSum(symbols, abs(values.sub(oldValues)).gt(valueClip), weight),
    },
    allRows: true,
  };
}

const MEGATRON_SUMMARY = `ℓ = ${CLIPPED_SQUARE}/K, divided by global_batch_size`;

/** The clipped value loss as in slime. */
export class SlimeValueLossFn extends valueLoss({
  name: 'slime/value',
  summary: MEGATRON_SUMMARY,
  source: ['slime'],
  ...MEGATRON,
  formula: megatron,
}) {}

/** The clipped value loss as in Miles, which is that of slime. */
export class MilesValueLossFn extends valueLoss({
  name: 'miles/value',
  summary: MEGATRON_SUMMARY,
  source: ['Miles'],
  ...MEGATRON,
  formula: megatron,
}) {}

/** The clipped value loss as in AReaL. */
export class AReaLValueLossFn extends valueLoss({
  name: 'areal/value',
  summary:
    'ℓ = max(φ(values − returns), φ(clip(values, old_values ± c) − returns)), the mean over the tokens',
  details: ['φ(x) = ½x², or Huber’s loss with δ = 10.'],
  source: ['AReaL'],
  reads: ERROR_KEYS,
  options: {
    epsClip: number({ ...RANGE, default: 0.5 }),
    lossFnType: choice(['mse', 'huber'], { default: 'mse', help: 'the loss of an error' }),
  },
  metrics: {
    new_value: VALUE,
    old_value: VALUE,
    target_value: VALUE,
    critic_loss: LOSS,
    clip_ratio: FRACTION,
  },
  numerics: CLIPPED,
  formula: (symbols, { epsClip, lossFnType }) => {
    const { ofTokens } = meanWeights(symbols);
    const { loss, clipped } = clippedError(
      symbols,
      epsClip,
      lossFnType === 'huber' ? huber(10) : halfSquared,
    );
    const mean = (x: Expression) => weightedSum(symbols, x, ofTokens);
    return {
      loss: loss.mul(ofTokens),
      metrics: {
        new_value: mean(symbols.values),
        old_value: mean(symbols.oldValues),
        target_value: mean(symbols.returns),
        critic_loss: mean(loss),
        clip_ratio: mean(clipped),
      },
    };
  },
}) {}

/** The clipped value loss as in ROLL. */
export class ROLLValueLossFn extends valueLoss({
  name: 'roll/value',
  summary: `ℓ = ½·${CLIPPED_SQUARE}, the mean over all rows of means`,
  details: ['As in ROLL, critic/clipfrac is twice the loss if nothing is clipped.'],
  source: ['ROLL'],
  reads: ERROR_KEYS,
  options: { valueClip: number(OPTIONAL_RANGE) },
  metrics: {
    'critic/loss': LOSS,
    'critic/value': VALUE,
    'critic/vpred': VALUE,
    'critic/clipfrac': FRACTION,
    'critic/error': SQUARES,
  },
  numerics: NUMERICS,
  formula: (symbols, { valueClip }) => {
    const { values, oldValues, returns, square } = symbols;
    const { ofRowsNear } = meanWeights(symbols);
    const { loss, clipped } = clippedError(symbols, valueClip);
    const mean = (x: Expression) => weightedSum(symbols, x, ofRowsNear);
    const halved = loss.mul(0.5);
    return {
      loss: halved.mul(ofRowsNear),
      metrics: {
        'critic/loss': mean(halved),
        'critic/value': mean(oldValues),
        'critic/vpred': mean(values),
        'critic/clipfrac': mean(valueClip === undefined ? loss : clipped),
        'critic/error': mean(square(values.sub(returns))),
      },
    };
  },
}) {}

/** The clipped value loss as in RLinf. */
export class RLinfValueLossFn extends valueLoss({
  name: 'rlinf/value',
  summary: 'ℓ = max(h(values − returns), h(clip(values, old_values ± c) − returns)), h = Huber’s loss',
  details: [
    'The loss is the mean over the tokens. With max_episode_steps E, the loss of a token is multiplied by E/loss_mask_sum, and the mean is over all B·T tokens.',
    'RLinf compares the clipped value with the bound, so critic/value_clip_ratio is 0, apart from its rounding errors.',
    'critic/explained_variance is 0 if all returns are equal.',
  ],
  source: ['RLinf'],
  reads: [...ERROR_KEYS, 'loss_mask_sum'],
  options: {
    valueClip: number({ ...RANGE, default: 0.2 }),
    huberDelta: number({
      default: 10,
      above: 0,
      typical: [0.5, 10],
      help: 'where Huber’s loss becomes linear',
    }),
    maxEpisodeSteps: integer({
      atLeast: 1,
      typical: [1, 64],
      help: 'the largest number of steps of an episode; null for the mean over the unmasked tokens',
    }),
  },
  metrics: {
    'critic/value_loss': LOSS,
    'critic/value_clip_ratio': FRACTION,
    'critic/explained_variance': EXPLAINED,
  },
  numerics: {
    ...CLIPPED,
    range: 'any finite values and returns',
    outside: 'the loss grows linearly beyond huber_delta',
  },
  formula: (symbols, { valueClip, huberDelta, maxEpisodeSteps }) => {
    const { values, returns, lossMaskSum, rows, rowLength, constant, batchSum, select } = symbols;
    const { loss } = clippedError(symbols, valueClip, huber(huberDelta));
    const weight =
      maxEpisodeSteps === undefined
        ? meanWeights(symbols).ofTokens
        : constant(maxEpisodeSteps).div(lossMaskSum.mul(rows.mul(rowLength)));
    const ofErrors = sumOfSquares(symbols, returns.sub(values));
    const ofReturns = sumOfSquares(symbols, returns);
    const isDefined = batchSum(1).ge(2).and(ofReturns.gt(0));
    return {
      loss: loss.mul(weight),
      metrics: {
        'critic/value_loss': weightedSum(symbols, loss, weight),
        'critic/value_clip_ratio': { token: 0 },
        'critic/explained_variance': {
          batch: select(isDefined, constant(1).sub(ofErrors.div(ofReturns)), 0),
        },
      },
    };
  },
}) {}

/** The clipped value loss as in EasyR1. */
export class EasyR1ValueLossFn extends valueLoss({
  name: 'easyr1/value',
  summary: `ℓ = ½·${CLIPPED_SQUARE}, the mean over the tokens, or over all rows of means`,
  details: [
    'The explained variance is over the tokens of attention_mask, which may include tokens that the policy did not write. Without attention_mask, it is over those of action_mask.',
  ],
  source: ['EasyR1'],
  reads: [...ERROR_KEYS, 'attention_mask'],
  options: {
    cliprangeValue: number({ ...RANGE, default: 0.5 }),
    lossAvgMode: choice(['token', 'seq'], { default: 'token', help: 'whether rows count equally (seq)' }),
  },
  metrics: {
    'critic/vf_loss': LOSS,
    'critic/vf_clipfrac': FRACTION,
    'critic/vpred_mean': VALUE,
    'critic/vf_explained_var': {
      ...EXPLAINED,
      when: 'when the whole batch, in host memory, is computed in one call',
    },
  },
  numerics: CLIPPED,
  formula: (symbols, { cliprangeValue, lossAvgMode }) => {
    const { values, tokens, constant } = symbols;
    const { loss, clipped } = clippedError(symbols, cliprangeValue, halfSquared);
    const weight =
      lossAvgMode === 'token' ? constant(1).div(tokens.add(1e-8)) : meanWeights(symbols).ofRowsNear;
    const weighted = loss.mul(weight);
    return {
      loss: weighted,
      metrics: {
        'critic/vf_loss': lossMetric(symbols, weighted),
        'critic/vf_clipfrac': { token: clipped },
        'critic/vpred_mean': { token: values },
        'critic/vf_explained_var': undefined,
      },
    };
  },
  attended: (symbols) => ({ 'critic/vf_explained_var': explainedBySamples(symbols) }),
}) {}
