// The corrections of verl: its rollout correction, and those of its versions 0.7.0 and 0.6.0.
import { choice, flag, number } from '../base/option.js';
import type { Expression, ProgramSymbols } from '../program/expression.js';
import { correction } from './correction-fn.js';
import { clamped, masked, within } from './corrections.js';
import { CORRECTION_METRICS, rolloutCorrection } from './rollout-correction.js';
import { normalizer, ROLLOUT_CORRECTION } from './rollout-weights.js';
import { limitedLog, meanOfRow, ofLevel } from './statistics.js';
import { FRACTION, RATIO } from './units.js';

const READS = ['old_logprob', 'rollout_logprob', 'action_mask'] as const;

/** The rollout correction of verl: importance weights of tokens or rows, and rejection by statistics. */
export class VerlRolloutCorrectionFn extends correction({
  name: 'verl/rollout_correction',
  summary: 'weights exp(old_logprob − rollout_logprob), of tokens or rows, and rejection by statistics',
  details: [
    'rollout_is chooses the weights: one bound truncates them, and two bounds set weights outside to 0.',
    'rollout_rs lists the statistics by which tokens or rows are rejected. Tokens that pass all of them are kept.',
  ],
  source: ['arXiv 2110.00641', 'arXiv 2512.23075', 'verl'],
  reads: READS,
  options: {
    ...ROLLOUT_CORRECTION,
    bypassMode: flag({ default: false, help: 'whether logprob takes the place of old_logprob' }),
  },
  metrics: CORRECTION_METRICS,
  numerics: {
    range: 'old_logprob − rollout_logprob from −20 to 20',
    outside: 'the weights clip the log-ratio to this range',
  },
  formula: (symbols, { bypassMode, ...options }) => {
    const { lp, old, rollout, sg } = symbols;
    return rolloutCorrection(symbols, options, bypassMode ? sg(lp) : old, rollout);
  },
}) {}

// What the corrections of verl's older versions share.
const OLDER = {
  reads: READS,
  numerics: {
    range: 'old_logprob − rollout_logprob from −20 to 20',
    outside: 'the ratios clip the log-ratio to this range',
  },
};
const LEVELS = ['token', 'sequence', 'geometric'] as const;
const ROWS = { unit: 'fraction of rows' };
const UPPER = { default: 2, above: 0, typical: [1.1, 5] } as const;
const LOWER = { above: 0, typical: [0.2, 0.9] } as const;
const VETO = { above: 0, typical: [0.0001, 0.5] } as const;

// Returns the log-ratio of the policy to the rollout.
function logRatio({ old, rollout }: ProgramSymbols): Expression {
  return old.sub(rollout);
}

// Returns a token's ratio, or the product or geometric mean of the ratios of a row.
function ratioOf(symbols: ProgramSymbols, level: (typeof LEVELS)[number]): Expression {
  const log = ofLevel(symbols, level, logRatio(symbols), (x) => meanOfRow(symbols, x));
  return symbols.exp(limitedLog(symbols, log));
}

// Returns whether the row has no token whose ratio is below the threshold, and metrics of the tokens that do.
function veto(symbols: ProgramSymbols, threshold: number | undefined) {
  const isTiny = threshold === undefined ? symbols.constant(0) : logRatio(symbols).lt(Math.log(threshold));
  const isVetoed = symbols.rowMax(isTiny);
  return { spared: isVetoed.not(), metrics: { rows: { row: isVetoed }, tokens: { token: isTiny } } };
}

function rejectedFractions({ n, rowSum }: ProgramSymbols, inside: Expression) {
  return { tokens: { token: inside.not() }, rows: { row: rowSum(inside).lt(n) } };
}

/** The rollout correction of verl 0.7.0. */
export class VerlRolloutCorrectionV070Fn extends correction({
  name: 'verl/rollout_correction_v070',
  summary: 'weights and rejection by the ratio of tokens, rows or their geometric means, as in verl 0.7.0',
  details: ['A row with a token whose ratio is below rollout_token_veto_threshold is rejected as a whole.'],
  source: ['verl 0.7.0'],
  ...OLDER,
  options: {
    rolloutIs: choice(LEVELS, {
      help: 'the ratio that weights the tokens: their own, or the product or geometric mean over the row; none if absent',
    }),
    rolloutIsThreshold: number({ ...UPPER, help: 'the largest weight' }),
    rolloutIsBatchNormalize: flag({
      default: false,
      help: 'whether the weights are divided by their mean over the batch',
    }),
    rolloutRs: choice(LEVELS, { help: 'the ratio by which tokens or rows are rejected; none if absent' }),
    rolloutRsThreshold: number({ ...UPPER, help: 'the largest ratio that is kept' }),
    rolloutRsThresholdLower: number({
      ...LOWER,
      help: 'the smallest ratio that is kept; 1 / rollout_rs_threshold if absent',
    }),
    rolloutTokenVetoThreshold: number({
      ...VETO,
      help: 'rows with a token whose ratio is below this are rejected; none if absent',
    }),
  },
  metrics: {
    'rollout_corr/rollout_is_veto_fraction': ROWS,
    'rollout_corr/rollout_is_catastrophic_token_fraction': FRACTION,
    'rollout_corr/rollout_rs_masked_fraction': { ...FRACTION, when: 'with rollout_rs' },
    'rollout_corr/rollout_rs_seq_masked_fraction': { ...ROWS, when: 'with rollout_rs' },
    'rollout_corr/rollout_is_batch_norm_factor': { ...RATIO, when: 'with rollout_is_batch_normalize' },
  },
  formula: (symbols, options) => {
    const { rolloutIs, rolloutRs, rolloutRsThreshold: high } = options;
    const { spared, metrics } = veto(symbols, options.rolloutTokenVetoThreshold);
    const weight =
      rolloutIs && clamped(symbols, ratioOf(symbols, rolloutIs), { high: options.rolloutIsThreshold });
    const factor =
      weight && options.rolloutIsBatchNormalize
        ? normalizer(symbols, weight, rolloutIs === 'token' ? 'token' : 'sequence')
        : undefined;
    const low = options.rolloutRsThresholdLower ?? 1 / high;
    const inside = rolloutRs && within(symbols, ratioOf(symbols, rolloutRs), { low, high });
    const rejected = inside && rejectedFractions(symbols, inside);
    return {
      weight: factor ? weight!.div(factor) : weight,
      kept: inside ? inside.and(spared) : spared,
      metrics: {
        'rollout_corr/rollout_is_veto_fraction': metrics.rows,
        'rollout_corr/rollout_is_catastrophic_token_fraction': metrics.tokens,
        'rollout_corr/rollout_rs_masked_fraction': rejected?.tokens,
        'rollout_corr/rollout_rs_seq_masked_fraction': rejected?.rows,
        'rollout_corr/rollout_is_batch_norm_factor': factor && { batch: factor },
      },
    };
  },
}) {}

/** The importance weights of verl 0.6.0. */
export class VerlRolloutImportanceWeightsV060Fn extends correction({
  name: 'verl/rollout_importance_weights_v060',
  summary: 'weights by the ratio of tokens, rows or their geometric means, as in verl 0.6.0',
  details: [
    'With the mode mask, weights outside the thresholds are 0. All tokens are kept.',
    'The weights of a row with a token whose ratio is below rollout_is_veto_threshold are 0.',
  ],
  source: ['verl 0.6.0'],
  ...OLDER,
  options: {
    rolloutIsLevel: choice(LEVELS, {
      default: 'token',
      help: 'the ratio that weights the tokens: their own, or the product or geometric mean over the row',
    }),
    rolloutIsMode: choice(['truncate', 'mask'], {
      default: 'truncate',
      help: 'whether weights above the threshold become the threshold, or weights outside both become 0',
    }),
    rolloutIsThreshold: number({ ...UPPER, help: 'the largest weight' }),
    rolloutIsThresholdLower: number({
      ...LOWER,
      help: 'the smallest weight with the mode mask; 1 / rollout_is_threshold if absent',
    }),
    rolloutIsVetoThreshold: number({
      ...VETO,
      default: 0.0001,
      nullable: true,
      help: 'the weights of rows with a token whose ratio is below this are 0; null for none',
    }),
  },
  metrics: {
    'mismatch/rollout_is_veto_fraction': ROWS,
    'mismatch/rollout_is_catastrophic_token_fraction': FRACTION,
    'mismatch/rollout_is_masked_fraction': { ...FRACTION, when: 'with the mode mask' },
    'mismatch/rollout_is_seq_masked_fraction': { ...ROWS, when: 'with the mode mask' },
  },
  formula: (symbols, options) => {
    const { rolloutIsThreshold: high, rolloutIsThresholdLower: low = 1 / high } = options;
    const { spared, metrics } = veto(symbols, options.rolloutIsVetoThreshold);
    const ratio = ratioOf(symbols, options.rolloutIsLevel);
    const isMask = options.rolloutIsMode === 'mask';
    const weight = isMask ? masked(symbols, ratio, { low, high }) : clamped(symbols, ratio, { high });
    const rejected = isMask ? rejectedFractions(symbols, within(symbols, ratio, { low, high })) : undefined;
    return {
      weight: weight.mul(spared),
      metrics: {
        'mismatch/rollout_is_veto_fraction': metrics.rows,
        'mismatch/rollout_is_catastrophic_token_fraction': metrics.tokens,
        'mismatch/rollout_is_masked_fraction': rejected?.tokens,
        'mismatch/rollout_is_seq_masked_fraction': rejected?.rows,
      },
    };
  },
}) {}
