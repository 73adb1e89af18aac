// The rollout corrections of verl 0.7.0 and 0.6.0.
import type { CheckedOptions } from '../../../core/options.js';
import type { Expression, ProgramSymbols } from '../../../program/expression.js';
import { CORRECTION_FN, correctionClass } from '../correction-fn.js';
import type { CorrectionExpressions } from '../correction-programs.js';
import { bounded } from './arithmetic.js';
import { normalizer } from './rollout-weights.js';

const LEVELS = ['token', 'sequence', 'geometric'] as const;
type Level = (typeof LEVELS)[number];

/** The options of the correction of verl 0.7.0. */
const ROLLOUT_CORRECTION_V070 = {
  rolloutIs: {
    type: 'choice',
    choices: LEVELS,
    help: 'the ratio that weights the tokens: their own, or the product or geometric mean over the row; none if absent',
  },
  rolloutIsThreshold: {
    type: 'number',
    default: 2,
    above: 0,
    typical: [1.1, 5],
    help: 'the largest weight',
  },
  rolloutIsBatchNormalize: {
    type: 'boolean',
    default: false,
    help: 'whether the weights are divided by their mean over the batch',
  },
  rolloutRs: {
    type: 'choice',
    choices: LEVELS,
    help: 'the ratio by which tokens or rows are rejected; none if absent',
  },
  rolloutRsThreshold: {
    type: 'number',
    default: 2,
    above: 0,
    typical: [1.1, 5],
    help: 'the largest ratio that is kept',
  },
  rolloutRsThresholdLower: {
    type: 'number',
    above: 0,
    typical: [0.2, 0.9],
    help: 'the smallest ratio that is kept; 1 / rollout_rs_threshold if absent',
  },
  rolloutTokenVetoThreshold: {
    type: 'number',
    above: 0,
    typical: [0.0001, 0.5],
    help: 'rows with a token whose ratio is below this are rejected; none if absent',
  },
} as const;

/** The options of the importance weights of verl 0.6.0. */
const ROLLOUT_WEIGHTS_V060 = {
  rolloutIsLevel: {
    type: 'choice',
    choices: LEVELS,
    default: 'token',
    help: 'the ratio that weights the tokens: their own, or the product or geometric mean over the row',
  },
  rolloutIsMode: {
    type: 'choice',
    choices: ['truncate', 'mask'],
    default: 'truncate',
    help: 'whether weights above the threshold become the threshold, or weights outside both become 0',
  },
  rolloutIsThreshold: {
    type: 'number',
    default: 2,
    above: 0,
    typical: [1.1, 5],
    help: 'the largest weight',
  },
  rolloutIsThresholdLower: {
    type: 'number',
    above: 0,
    typical: [0.2, 0.9],
    help: 'the smallest weight with the mode mask; 1 / rollout_is_threshold if absent',
  },
  rolloutIsVetoThreshold: {
    type: 'number',
    trinity: 0.0001,
    above: 0,
    typical: [0.0001, 0.5],
    help: 'the weights of rows with a token whose ratio is below this are 0; none if absent',
  },
} as const;

/**
 * Returns the correction of verl 0.7.0.
 * @param q the log-ratio of the policy to the rollout, constant for the gradient.
 */
function rolloutCorrectionV070(
  symbols: ProgramSymbols,
  options: CheckedOptions<typeof ROLLOUT_CORRECTION_V070>,
  q: Expression,
): CorrectionExpressions {
  const { rolloutIs, rolloutRs, rolloutRsThreshold: high } = options;
  const { spared, metrics } = veto(symbols, q, options.rolloutTokenVetoThreshold);
  const limited = rolloutIs && symbols.min(ratioOf(symbols, q, rolloutIs), options.rolloutIsThreshold);
  const factor =
    limited && options.rolloutIsBatchNormalize
      ? normalizer(symbols, limited, rolloutIs === 'token' ? 'token' : 'sequence')
      : undefined;
  const inside =
    rolloutRs && isWithin(ratioOf(symbols, q, rolloutRs), options.rolloutRsThresholdLower ?? 1 / high, high);
  const rejected = inside && rejectedFractions(symbols, inside);
  return {
    weight: factor ? limited!.div(factor) : limited,
    kept: inside ? inside.and(spared) : spared,
    metrics: {
      'rollout_corr/rollout_is_veto_fraction': metrics.rows,
      'rollout_corr/rollout_is_catastrophic_token_fraction': metrics.tokens,
      'rollout_corr/rollout_rs_masked_fraction': rejected?.tokens,
      'rollout_corr/rollout_rs_seq_masked_fraction': rejected?.rows,
      'rollout_corr/rollout_is_batch_norm_factor': factor && { batch: factor },
    },
  };
}

/**
 * Returns the importance weights of verl 0.6.0.
 * @param q the log-ratio of the policy to the rollout, constant for the gradient.
 */
function rolloutWeightsV060(
  symbols: ProgramSymbols,
  options: CheckedOptions<typeof ROLLOUT_WEIGHTS_V060>,
  q: Expression,
): CorrectionExpressions {
  const { rolloutIsLevel, rolloutIsMode, rolloutIsThreshold: high } = options;
  const { spared, metrics } = veto(symbols, q, options.rolloutIsVetoThreshold);
  const ratio = ratioOf(symbols, q, rolloutIsLevel);
  const inside = isWithin(ratio, options.rolloutIsThresholdLower ?? 1 / high, high);
  const isMask = rolloutIsMode === 'mask';
  const limited = isMask ? symbols.select(inside, ratio, 0) : symbols.min(ratio, high);
  const rejected = isMask ? rejectedFractions(symbols, inside) : undefined;
  return {
    weight: limited.mul(spared),
    kept: undefined,
    metrics: {
      'mismatch/rollout_is_veto_fraction': metrics.rows,
      'mismatch/rollout_is_catastrophic_token_fraction': metrics.tokens,
      'mismatch/rollout_is_masked_fraction': rejected?.tokens,
      'mismatch/rollout_is_seq_masked_fraction': rejected?.rows,
    },
  };
}

// Returns a token's ratio, or the product or geometric mean of the ratios of a row.
function ratioOf(symbols: ProgramSymbols, q: Expression, level: Level): Expression {
  const { exp, rowSum, n } = symbols;
  const logs = { token: () => q, sequence: () => rowSum(q), geometric: () => rowSum(q).div(n.add(1e-8)) };
  return exp(bounded(symbols, logs[level]()));
}

function isWithin(ratio: Expression, low: number, high: number): Expression {
  return ratio.ge(low).and(ratio.le(high));
}

// Returns whether the row has no token whose ratio is below the threshold, and metrics of the tokens that do.
function veto({ constant, rowMax }: ProgramSymbols, q: Expression, threshold: number | undefined) {
  const isTiny = threshold === undefined ? constant(0) : q.lt(Math.log(threshold));
  const isVetoed = rowMax(isTiny);
  return { spared: isVetoed.not(), metrics: { rows: { row: isVetoed }, tokens: { token: isTiny } } };
}

function rejectedFractions({ n, rowSum }: ProgramSymbols, inside: Expression) {
  return { tokens: { token: inside.not() }, rows: { row: rowSum(inside).lt(n) } };
}

const READS = ['old_logprob', 'rollout_logprob', 'action_mask'] as const;
const NUMERICS = {
  range: 'old_logprob − rollout_logprob from −20 to 20',
  outside: 'the ratios clip the log-ratio to this range',
} as const;
const FRACTIONS = { rows: 'fraction of rows', tokens: 'fraction of tokens' } as const;

/** The rollout correction of verl 0.7.0. */
export class VerlRolloutCorrectionV070Fn extends correctionClass(
  {
    name: 'verl/rollout_correction_v070',
    summary: 'weights and rejection by the ratio of tokens, rows or their geometric means, as in verl 0.7.0',
    details: ['A row with a token whose ratio is below rollout_token_veto_threshold is rejected as a whole.'],
    source: ['verl 0.7.0'],
    reads: READS,
    options: ROLLOUT_CORRECTION_V070,
    metrics: {
      'rollout_corr/rollout_is_veto_fraction': { unit: FRACTIONS.rows },
      'rollout_corr/rollout_is_catastrophic_token_fraction': { unit: FRACTIONS.tokens },
      'rollout_corr/rollout_rs_masked_fraction': { unit: FRACTIONS.tokens, when: 'with rollout_rs' },
      'rollout_corr/rollout_rs_seq_masked_fraction': { unit: FRACTIONS.rows, when: 'with rollout_rs' },
      'rollout_corr/rollout_is_batch_norm_factor': {
        unit: 'ratio',
        when: 'with rollout_is_batch_normalize',
      },
    },
    numerics: NUMERICS,
  },
  (symbols, options) => rolloutCorrectionV070(symbols, options, symbols.old.sub(symbols.rollout)),
) {
  static {
    CORRECTION_FN.register('verl/rollout_correction_v070', VerlRolloutCorrectionV070Fn);
  }
}

/** The importance weights of verl 0.6.0. */
export class VerlRolloutImportanceWeightsV060Fn extends correctionClass(
  {
    name: 'verl/rollout_importance_weights_v060',
    summary: 'weights by the ratio of tokens, rows or their geometric means, as in verl 0.6.0',
    details: [
      'With the mode mask, weights outside the thresholds are 0. All tokens are kept.',
      'The weights of a row with a token whose ratio is below rollout_is_veto_threshold are 0.',
    ],
    source: ['verl 0.6.0'],
    reads: READS,
    options: ROLLOUT_WEIGHTS_V060,
    metrics: {
      'mismatch/rollout_is_veto_fraction': { unit: FRACTIONS.rows },
      'mismatch/rollout_is_catastrophic_token_fraction': { unit: FRACTIONS.tokens },
      'mismatch/rollout_is_masked_fraction': { unit: FRACTIONS.tokens, when: 'with the mode mask' },
      'mismatch/rollout_is_seq_masked_fraction': { unit: FRACTIONS.rows, when: 'with the mode mask' },
    },
    numerics: NUMERICS,
  },
  (symbols, options) => rolloutWeightsV060(symbols, options, symbols.old.sub(symbols.rollout)),
) {
  static {
    CORRECTION_FN.register('verl/rollout_importance_weights_v060', VerlRolloutImportanceWeightsV060Fn);
  }
}
