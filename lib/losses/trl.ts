// The losses of TRL's GRPO trainer.
import { choice, like, number } from '../base/option.js';
import type { CheckedOptions } from '../base/options.js';
import type { Expression, Operand, ProgramSymbols } from '../program/expression.js';
import { COMPLETION_LENGTH, TRL_DIVISOR, trlWeight } from './divisors.js';
import { BETA, KL_METRIC } from './kl-terms.js';
import { TOP_ENTROPY, topEntropyNeeds } from './order-statistics.js';
import { policyLoss } from './policy-loss.js';
import { isOfRow } from './statistics.js';
import { reinforced, softGate } from './surrogate.js';
import {
  CLIP,
  CLIP_METRICS,
  CLIP_NUMERICS,
  CLIP_RANGE,
  CLIPPED_FAMILY,
  clipped,
  clippedFamilyLoss,
  FAMILY,
  FAMILY_METRICS,
  FAMILY_OPTIONS,
  familyLoss,
  policyTerm,
  type Ratio,
  ratioOf,
} from './trl-family.js';
import { ENTROPY_METRIC, entropyMetric, isCorrected, VLLM, VLLM_METRICS } from './trl-terms.js';
import { FRACTION } from './units.js';

/** GRPO as in TRL: the clipped surrogate without a dual clip, averaged over the tokens of each row and over the rows. */
export class TRLGRPOLossFn extends policyLoss({
  name: 'trl/grpo',
  summary: 'ℓ = −min(min(r, δ)·A, clip(r)·A), the mean over each row, then over the rows',
  source: ['arXiv 2402.03300', 'TRL'],
  ...CLIPPED_FAMILY,
  formula: (symbols, options, has) => clippedFamilyLoss(symbols, 'grpo', options, has),
}) {}

/** BNPO as in TRL: the clipped surrogate without a dual clip, averaged over the tokens of this batch. */
export class TRLBNPOLossFn extends policyLoss({
  name: 'trl/bnpo',
  summary: 'ℓ = −min(min(r, δ)·A, clip(r)·A), the mean over the tokens of this batch',
  details: ['It is not Beta Normalization Policy Optimization, which has the same abbreviation.'],
  source: ['TRL'],
  ...CLIPPED_FAMILY,
  formula: (symbols, options, has) => clippedFamilyLoss(symbols, 'bnpo', options, has),
}) {}

/** Dr. GRPO as in TRL: the clipped surrogate without a dual clip, divided by a constant number of tokens per row. */
export class TRLDrGRPOLossFn extends policyLoss({
  name: 'trl/dr_grpo',
  summary: 'ℓ = −min(min(r, δ)·A, clip(r)·A), divided by a constant number of tokens per row',
  source: ['arXiv 2503.20783', 'TRL'],
  ...CLIPPED_FAMILY,
  options: { ...CLIPPED_FAMILY.options, ...COMPLETION_LENGTH },
  formula: (symbols, options, has) => clippedFamilyLoss(symbols, 'dr_grpo', options, has),
}) {}

/** DAPO as in TRL: the clipped surrogate without a dual clip, averaged over all tokens of a global batch. */
export class TRLDAPOLossFn extends policyLoss({
  name: 'trl/dapo',
  summary: 'ℓ = −min(min(r, δ)·A, clip(r)·A), the mean over the tokens of the global batch',
  source: ['arXiv 2503.14476', 'TRL'],
  ...CLIPPED_FAMILY,
  formula: (symbols, options, has) => clippedFamilyLoss(symbols, 'dapo', options, has),
}) {}

/** CISPO as in TRL: the importance weight is bounded above by epsilonHigh itself. */
export class TRLCISPOLossFn extends policyLoss({
  name: 'trl/cispo',
  summary: 'ℓ = −A·sg(min(r, epsilonHigh))·logprob, the mean over the tokens of the global batch',
  details: [
    'With the default arguments the weight is at most 0.2, not 1.2; TRL recommends epsilonHigh = 5.',
    'The paper clips the weight on both sides.',
  ],
  source: ['arXiv 2506.13585', 'arXiv 2510.13786', 'TRL'],
  unlike: {
    cispo: 'the ratio has only an upper bound, which is given itself instead of its distance from 1',
  },
  ...FAMILY,
  options: {
    epsilon: like(CLIP_RANGE.epsilon, { help: 'the default of epsilonHigh' }),
    epsilonHigh: like(CLIP_RANGE.epsilonHigh, { typical: [0.2, 5], help: 'the upper bound on the weight' }),
    ...FAMILY_OPTIONS,
  },
  metrics: { cispo_clip_ratio: FRACTION, ...FAMILY_METRICS },
  numerics: {
    range: 'any finite logprobs and advantages',
    outside: 'the ratio overflows and is bounded: loss and gradient are finite',
  },
  formula: (symbols, options, has) => {
    const { A, min } = symbols;
    const { epsilonHigh } = options;
    return familyLoss(symbols, 'cispo', options, has, ({ value: ratio, perRow }) => {
      const isBounded = ratio.gt(epsilonHigh).and(A.gt(0));
      return {
        loss: reinforced(symbols, min(ratio, epsilonHigh)),
        // The ratio of a row without tokens is 1.
        metrics: { cispo_clip_ratio: perRow && isOfRow(A) ? { row: isBounded } : { token: isBounded } },
      };
    });
  },
}) {}

// The gate is fully open well below this log-ratio. The bound keeps the ratio finite, so that the gradient becomes 0.
const OPEN_LOG_RATIO = 80;

/** SAPO as in TRL: a sigmoid of the ratio takes the place of clipping. The gradient goes through the ratio. */
export class TRLSAPOLossFn extends policyLoss({
  name: 'trl/sapo',
  summary: 'ℓ = −A·4/τ·σ(τ(r − 1)), the mean over each row, then over the rows',
  source: ['arXiv 2511.20347', 'TRL'],
  unlike: { sapo: 'the gradient goes through the gate, and each row counts equally' },
  ...FAMILY,
  options: {
    sapoTemperaturePos: number({ default: 1, above: 0, typical: [0.5, 4], help: 'τ where A > 0' }),
    sapoTemperatureNeg: number({ default: 1.05, above: 0, typical: [0.5, 4], help: 'τ elsewhere' }),
    ...FAMILY_OPTIONS,
  },
  metrics: FAMILY_METRICS,
  numerics: {
    range: 'any finite logprobs and advantages',
    outside: 'the gate is open: the loss is finite, and the gradient is 0',
    /** Far from a ratio of 1, the gate's slope is nearly 0 and has a large relative error. At 1, the gradient is −A. */
    cancels: ({ advantage }) => ({ gradient: Math.abs(advantage) }),
  },
  formula: (symbols, options, has) => {
    const { A, exp, min, select } = symbols;
    const { sapoTemperaturePos, sapoTemperatureNeg } = options;
    return familyLoss(symbols, 'sapo', options, has, ({ log, perRow }) => {
      const distance = exp(min(log, OPEN_LOG_RATIO)).sub(1);
      const gate = (temperature: Operand) => softGate(symbols, distance, temperature);
      const chosen = (a: Operand, b: Operand) => select(A.gt(0), a, b);
      // If a row has one ratio, both gates are computed once per row, in float64.
      const value = perRow
        ? chosen(gate(sapoTemperaturePos), gate(sapoTemperatureNeg))
        : gate(chosen(sapoTemperaturePos, sapoTemperatureNeg));
      return { loss: A.neg().mul(value), metrics: {} };
    });
  },
}) {}

const GAMMA = {
  vespoKPos: number({ default: 2, atLeast: 0, typical: [0.5, 4], help: 'κ where A ≥ 0' }),
  vespoLambdaPos: number({ default: 3, atLeast: 0, typical: [0, 5], help: 'λ where A ≥ 0' }),
  vespoKNeg: number({ default: 3, atLeast: 0, typical: [0.5, 4], help: 'κ where A < 0' }),
  vespoLambdaNeg: number({ default: 2, atLeast: 0, typical: [0, 5], help: 'λ where A < 0' }),
};

const SMALLEST_LAMBDA = 1e-4;
const LOG_RATIO_OF_ROW = { low: Math.log(1e-8), high: 20 };

/** VESPO as in TRL: φ weights each token by the ratio of its whole row. */
export class TRLVESPOLossFn extends policyLoss({
  name: 'trl/vespo',
  summary: 'ℓ = −A·sg(φ)·logprob, φ = exp(λ + κW − λe^W), the mean over the tokens of the global batch',
  details: [
    'W is the sum of the log-ratios of the row. The paper averages over trajectories.',
    'TRL also adds the correction of masked tokens to W, which matters if vllmImportanceSamplingClipMin is above 1 or vllmImportanceSamplingClipMax below 1. This function does not.',
    'The vLLM correction must be that of tokens.',
  ],
  source: ['arXiv 2602.10693', 'TRL'],
  ...FAMILY,
  options: {
    ...GAMMA,
    ...FAMILY_OPTIONS,
    vllmImportanceSamplingMode: like(VLLM.vllmImportanceSamplingMode, {
      needs: { sequence_truncate: { useVllm: [false] }, sequence_mask: { useVllm: [false] } },
    }),
  },
  metrics: { 'vespo/phi_seq_mean': { unit: 'weight' }, ...FAMILY_METRICS },
  numerics: {
    range: 'any finite logprobs and advantages',
    outside: 'the log-ratio of a token is limited to 20 nats, and that of a row to ln 1e-8 and 20',
    exponentiatesRowSums: true,
    /** Far from a ratio of 1, φ is nearly 0 and has a large relative error. At 1, it is 1. */
    cancels: ({ advantage, logprob }) => ({
      value: Math.abs(advantage * logprob),
      gradient: Math.abs(advantage),
    }),
  },
  formula: (symbols, options, has) => {
    const { A, n, rowMean, select, sg } = symbols;
    return familyLoss(symbols, 'vespo', options, has, (_, correction) => {
      const weight = sg(gammaWeight(symbols, options, logRatioOfRow(symbols, correction)));
      return {
        loss: reinforced(symbols, weight),
        // W is 0 in a row without tokens, and φ is 1.
        metrics: {
          'vespo/phi_seq_mean': isOfRow(A) ? { row: select(n.gt(0), rowMean(weight), 1) } : { token: weight },
        },
        isCorrected: true,
        allRows: true,
      };
    });
  },
}) {}

// Returns W: the logarithm of the ratio of a whole row, which includes the vLLM correction.
function logRatioOfRow(
  { d, clip, log, rowSum }: ProgramSymbols,
  correction: Expression | undefined,
): Expression {
  const { low, high } = LOG_RATIO_OF_ROW;
  const ofToken = clip(d, -20, 20);
  const sum = rowSum(correction ? ofToken.add(clip(log(correction), low, high)) : ofToken);
  return clip(sum, low, high);
}

// Returns φ = exp(λ + κW − λe^W).
function gammaWeight(
  { A, exp, expm1, select }: ProgramSymbols,
  { vespoKPos, vespoKNeg, vespoLambdaPos, vespoLambdaNeg }: CheckedOptions<typeof GAMMA>,
  W: Expression,
): Expression {
  const isGain = A.ge(0);
  const k = select(isGain, vespoKPos, vespoKNeg);
  const lambda = select(
    isGain,
    Math.max(vespoLambdaPos, SMALLEST_LAMBDA),
    Math.max(vespoLambdaNeg, SMALLEST_LAMBDA),
  );
  return exp(k.mul(W).sub(lambda.mul(expm1(W))));
}

/** LUSPO as in TRL: the clipped surrogate with one ratio per row, summed over each row and averaged over the rows. */
export class TRLLUSPOLossFn extends policyLoss({
  name: 'trl/luspo',
  summary: 'ℓ = −min(min(r, δ)·A, clip(r)·A), summed over each row; r is the geometric mean of the row',
  details: ['Where losses differ within a row, TRL also reads masked tokens. This function does not.'],
  source: ['arXiv 2602.05261', 'TRL'],
  ...CLIPPED_FAMILY,
  options: {
    ...CLIPPED_FAMILY.options,
    importanceSamplingLevel: like(CLIPPED_FAMILY.options.importanceSamplingLevel, { default: 'sequence' }),
  },
  numerics: {
    range: 'mean log-ratios of rows up to 88',
    outside: 'the ratio of a row is at most e^88, and has no gradient there',
  },
  formula: (symbols, options, has) => clippedFamilyLoss(symbols, 'luspo', options, has),
}) {}

/** GSPO-token as in TRL: with advantages that differ within a row, its gradient differs from that of GSPO. */
export class TRLGSPOTokenLossFn extends policyLoss({
  name: 'trl/gspo_token',
  summary: 'ℓ = −min(min(r, δ)·A, clip(r)·A), r = exp(logprob − sg(logprob) + sg(mean log-ratio of the row))',
  source: ['arXiv 2507.18071', 'TRL'],
  unlike: { gspo: 'by default, the ratio is that of a token' },
  ...FAMILY,
  options: {
    ...CLIP,
    importanceSamplingLevel: choice(['token', 'sequence', 'sequence_token'], {
      default: 'token',
      help: 'the ratio of a token, the geometric mean over the row, or this mean with the gradient of a token',
    }),
    lossType: choice(['grpo', 'bnpo', 'dr_grpo', 'dapo'], {
      default: 'grpo',
      help: 'the loss whose mean over tokens is used',
    }),
    ...TOP_ENTROPY,
    ...BETA,
    ...VLLM,
    ...TRL_DIVISOR,
    ...COMPLETION_LENGTH,
  },
  metrics: { ...CLIP_METRICS, ...KL_METRIC, ...VLLM_METRICS, ...ENTROPY_METRIC },
  numerics: CLIP_NUMERICS,
  formula: (symbols, options, has) => {
    const ratio = levelRatio(symbols, options.importanceSamplingLevel);
    const term = policyTerm(symbols, options, ratio, () => clipped(symbols, ratio, options));
    return {
      ...term,
      loss: term.loss.mul(trlWeight(symbols, options.lossType, options)),
      metrics: { ...term.metrics, ...entropyMetric(symbols, has) },
    };
  },
  needs: (options) => [
    ...(isCorrected(options) ? ['old_logprob' as const] : []),
    ...topEntropyNeeds(options),
  ],
}) {}

function levelRatio(symbols: ProgramSymbols, level: 'token' | 'sequence' | 'sequence_token'): Ratio {
  if (level !== 'sequence_token') return ratioOf(symbols, level);
  const { lp, d, exp, rowMean, sg } = symbols;
  const log = lp.sub(sg(lp)).add(sg(rowMean(d)));
  return { log, value: exp(log), perRow: false };
}
