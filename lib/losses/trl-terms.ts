// Terms of TRL's losses: the entropy bonus of its GRPO trainer, and the correction for the difference between the policy that
// the trainer computes and the one that vLLM sampled from.
import { choice, flag, number } from '../base/option.js';
import type { CheckedOptions } from '../base/options.js';
import type { Expression, ProgramSymbols } from '../program/expression.js';
import type { MetricExpression } from '../program/loss-program.js';
import { clamped, masked } from './corrections.js';
import type { Has } from './policy-loss.js';
import { minOfFilled } from './statistics.js';
import { IN_ONE_CALL, LOSS, NATS, RATIO } from './units.js';

/** The options of the bonus. */
export const BONUS = {
  entropyCoef: number({
    default: 0,
    typical: [0, 0.05],
    help: 'the coefficient of the mean entropy, which is subtracted from the loss',
  }),
  useAdaptiveEntropy: flag({
    default: false,
    help: 'whether the bonus only applies at a low entropy, and the metric entropy_coef is the coefficient for the next step',
  }),
  entropyCoefMin: number({
    default: 0,
    typical: [0, 0.01],
    help: 'the smallest coefficient for the next step',
  }),
  entropyCoefMax: number({
    default: 1,
    typical: [0.05, 1],
    help: 'the largest coefficient for the next step',
  }),
  entropyCoefDelta: number({
    default: 0.005,
    atLeast: 0,
    typical: [0.001, 0.01],
    help: 'how much the coefficient changes from step to step',
  }),
  entropyTarget: number({
    default: 0.2,
    typical: [0.1, 2],
    help: 'the mean entropy up to which the coefficient increases, and above which it decreases',
  }),
  lastWorldEntropy: number({
    typical: [0, 2],
    help: 'the mean entropy of the last step; the bonus applies if it is at most entropyTarget; infinite if absent',
  }),
};

/** The declarations of the bonus's metrics. */
export const BONUS_METRICS = {
  policy_loss: { ...LOSS, when: 'with an entropy bonus' },
  entropy_coef: {
    unit: 'coefficient',
    when: `with an entropy bonus, ${IN_ONE_CALL}`,
  },
};

/** The declaration of the metric of the entropies. */
export const ENTROPY_METRIC = {
  entropy: { ...NATS, when: 'if the batch has entropies' },
};

/** Returns the metric of the entropies. */
export function entropyMetric({ H }: ProgramSymbols, has: Has) {
  return { entropy: has('entropy') ? { token: H } : undefined };
}

/** Returns whether a loss has a bonus. */
export function hasBonus({ entropyCoef, useAdaptiveEntropy }: BonusOptions): boolean {
  return entropyCoef !== 0 || useAdaptiveEntropy;
}

type BonusOptions = CheckedOptions<typeof BONUS>;

/**
 * Subtracts the entropy bonus from the loss of a token.
 * @param loss the loss of a token, including its weight in the batch.
 * @param weight the weight of a token's entropy in the bonus.
 * @param scale by what the metric policy_loss differs from the loss without the bonus.
 * @param isTop the condition that a token counts in the bonus; all do if it is absent.
 */
export function withBonus(
  symbols: ProgramSymbols,
  options: BonusOptions,
  loss: Expression,
  weight: Expression,
  scale: number,
  isTop: Expression | undefined,
): { loss: Expression; metrics: Record<keyof typeof BONUS_METRICS, MetricExpression | undefined> } {
  const { H, tokens, select } = symbols;
  const { entropyCoef, useAdaptiveEntropy, lastWorldEntropy, entropyTarget } = options;
  if (!hasBonus(options)) return { loss, metrics: { policy_loss: undefined, entropy_coef: undefined } };
  const entropy = isTop ? select(isTop, H, 0) : H;
  const applies = !useAdaptiveEntropy || (lastWorldEntropy ?? Number.POSITIVE_INFINITY) <= entropyTarget;
  return {
    loss: applies ? loss.sub(entropy.mul(entropyCoef).mul(weight)) : loss,
    metrics: {
      // A metric of tokens is divided by N + 1e-8.
      policy_loss: { token: loss.mul(tokens.add(1e-8)).mul(scale) },
      entropy_coef: { batch: useAdaptiveEntropy ? nextCoefficient(symbols, options, isTop) : entropyCoef },
    },
  };
}

// Returns the coefficient for the next step.
function nextCoefficient(
  { H, max, select, batchMean, batchSum }: ProgramSymbols,
  { entropyCoef, entropyCoefMin, entropyCoefMax, entropyCoefDelta, entropyTarget }: BonusOptions,
  isTop: Expression | undefined,
): Expression {
  const mean = isTop ? batchSum(select(isTop, H, 0)).div(max(batchSum(isTop), 1)) : batchMean(H);
  return select(
    mean.le(entropyTarget),
    Math.min(entropyCoef + entropyCoefDelta, entropyCoefMax),
    Math.max(entropyCoef - entropyCoefDelta, entropyCoefMin),
  );
}

/** The options of the correction. */
export const VLLM = {
  useVllm: flag({
    default: false,
    help: 'whether vLLM sampled the tokens; the batch then has rollout_logprob',
  }),
  vllmImportanceSamplingCorrection: flag({
    default: true,
    help: 'whether the loss is multiplied by the ratio of old_logprob to rollout_logprob if useVllm is true',
  }),
  vllmImportanceSamplingMode: choice(['token_truncate', 'token_mask', 'sequence_truncate', 'sequence_mask'], {
    default: 'sequence_mask',
    help: 'whether this ratio is that of a token or of a row, and whether values outside the bounds are clipped or become 0',
  }),
  vllmImportanceSamplingClipMin: number({
    atLeast: 0,
    typical: [0.5, 0.95],
    help: 'the lower bound of this ratio; none if absent',
  }),
  vllmImportanceSamplingClipMax: number({
    default: 3,
    nullable: true,
    above: 0,
    atLeastOption: 'vllmImportanceSamplingClipMin',
    typical: [1.05, 3],
    help: 'the upper bound of this ratio; none if null',
  }),
};

const WHOLE = `with the vLLM correction, ${IN_ONE_CALL}`;

/** The declarations of the correction's metrics. */
export const VLLM_METRICS = {
  'sampling/sampling_logp_difference/mean': { ...NATS, when: 'with the vLLM correction' },
  'sampling/sampling_logp_difference/max': { unit: 'nats', when: WHOLE },
  'sampling/importance_sampling_ratio/min': { ...RATIO, when: WHOLE },
  'sampling/importance_sampling_ratio/mean': { ...RATIO, when: 'with the vLLM correction' },
  'sampling/importance_sampling_ratio/max': { ...RATIO, when: WHOLE },
};

/** Returns whether a loss is corrected. */
export function isCorrected(options: CheckedOptions<typeof VLLM>): boolean {
  return options.useVllm && options.vllmImportanceSamplingCorrection;
}

/** The correction of a loss. */
export interface Correction {
  /** By what the loss of a token is multiplied; undefined without the correction. */
  readonly weight: Expression | undefined;
  /** Whether all tokens of a row have the same weight. */
  readonly perRow: boolean;
  readonly metrics: Record<keyof typeof VLLM_METRICS, MetricExpression | undefined>;
}

/** Returns the correction that the options ask for. */
export function vllmCorrection(symbols: ProgramSymbols, options: CheckedOptions<typeof VLLM>): Correction {
  if (!isCorrected(options)) return { ...NONE, metrics: { ...NO_METRICS } };
  const { old, rollout, abs, exp, rowSum, rowMax, rowsMax } = symbols;
  const perRow = options.vllmImportanceSamplingMode.startsWith('sequence');
  const difference = old.sub(rollout);
  const weight = limited(symbols, exp(perRow ? rowSum(difference) : difference), options);
  return {
    weight,
    perRow,
    metrics: {
      'sampling/sampling_logp_difference/mean': { token: abs(difference) },
      'sampling/sampling_logp_difference/max': { batch: rowsMax(rowMax(abs(difference))) },
      'sampling/importance_sampling_ratio/mean': perRow ? { row: weight } : { token: weight },
      ...extremes(symbols, weight, perRow),
    },
  };
}

function extremes(symbols: ProgramSymbols, weight: Expression, perRow: boolean) {
  const { rowMin, rowMax, rowsMin, rowsMax } = symbols;
  return {
    'sampling/importance_sampling_ratio/min': {
      batch: perRow ? rowsMin(weight) : minOfFilled(symbols, rowMin(weight)),
    },
    'sampling/importance_sampling_ratio/max': { batch: rowsMax(perRow ? weight : rowMax(weight)) },
  };
}

const NO_METRICS = {
  'sampling/sampling_logp_difference/mean': undefined,
  'sampling/sampling_logp_difference/max': undefined,
  'sampling/importance_sampling_ratio/min': undefined,
  'sampling/importance_sampling_ratio/mean': undefined,
  'sampling/importance_sampling_ratio/max': undefined,
};
const NONE = { weight: undefined, perRow: false };

// Clips a ratio to the bounds, or replaces it with 0 outside the bounds.
function limited(
  symbols: ProgramSymbols,
  ratio: Expression,
  {
    vllmImportanceSamplingMode: mode,
    vllmImportanceSamplingClipMin: low,
    vllmImportanceSamplingClipMax: high,
  }: CheckedOptions<typeof VLLM>,
): Expression {
  const limit = mode.endsWith('truncate') ? clamped : masked;
  return limit(symbols, ratio, { low, high });
}
