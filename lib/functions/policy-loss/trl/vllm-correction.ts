// Corrects TRL's losses for the difference between the policy that the trainer computes and the one that vLLM sampled from.
import type { CheckedOptions } from '../../../core/options.js';
import type { Expression, ProgramSymbols } from '../../../program/expression.js';
import type { MetricExpression } from '../expression-loss.js';
import { smallestOfRows } from './rows.js';

/** The options of the correction. */
export const VLLM = {
  useVllm: {
    type: 'boolean',
    default: false,
    help: 'whether vLLM sampled the tokens; the batch then has rollout_logprob',
  },
  vllmImportanceSamplingCorrection: {
    type: 'boolean',
    default: true,
    help: 'whether the loss is multiplied by the ratio of old_logprob to rollout_logprob if useVllm is true',
  },
  vllmImportanceSamplingMode: {
    type: 'choice',
    choices: ['token_truncate', 'token_mask', 'sequence_truncate', 'sequence_mask'],
    default: 'sequence_mask',
    help: 'whether this ratio is that of a token or of a row, and whether values outside the bounds are clipped or become 0',
  },
  vllmImportanceSamplingClipMin: {
    type: 'number',
    atLeast: 0,
    typical: [0.5, 0.95],
    help: 'the lower bound of this ratio; none if absent',
  },
  vllmImportanceSamplingClipMax: {
    type: 'number',
    default: 3,
    nullable: true,
    above: 0,
    atLeastOption: 'vllmImportanceSamplingClipMin',
    typical: [1.05, 3],
    help: 'the upper bound of this ratio; none if null',
  },
} as const;

const WHOLE = 'with the vLLM correction, when the whole batch is computed in one call';

/** The declarations of the correction's metrics. */
export const VLLM_METRICS = {
  'sampling/sampling_logp_difference/mean': { unit: 'nats per token', when: 'with the vLLM correction' },
  'sampling/sampling_logp_difference/max': { unit: 'nats', when: WHOLE },
  'sampling/importance_sampling_ratio/min': { unit: 'ratio', when: WHOLE },
  'sampling/importance_sampling_ratio/mean': { unit: 'ratio', when: 'with the vLLM correction' },
  'sampling/importance_sampling_ratio/max': { unit: 'ratio', when: WHOLE },
} as const;

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
      batch: perRow ? rowsMin(weight) : smallestOfRows(symbols, rowMin(weight)),
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
const NONE = { weight: undefined, perRow: false } as const;

// Clips a ratio to the bounds, or replaces it with 0 outside the bounds.
function limited(
  { constant, select, min, max }: ProgramSymbols,
  ratio: Expression,
  {
    vllmImportanceSamplingMode: mode,
    vllmImportanceSamplingClipMin: low,
    vllmImportanceSamplingClipMax: high,
  }: CheckedOptions<typeof VLLM>,
): Expression {
  if (mode.endsWith('truncate')) {
    const atLeast = low === undefined ? ratio : max(ratio, low);
    return high === undefined ? atLeast : min(atLeast, high);
  }
  const isHighEnough = low === undefined ? constant(1) : ratio.ge(low);
  const isInside = high === undefined ? isHighEnough : isHighEnough.and(ratio.le(high));
  return select(isInside, ratio, 0);
}
