// TRL's VESPO: REINFORCE with a weight that is a smooth function of the ratio of a whole row.
import type { MetricsOf, TokenValues } from '../../../core/declaration.js';
import type { CheckedOptions } from '../../../core/options.js';
import type { Expression, ProgramSymbols } from '../../../program/expression.js';
import { expressionLossClass } from '../expression-loss.js';
import { POLICY_LOSS_FN } from '../policy-loss-fn.js';
import {
  FAMILY,
  FAMILY_BATCHES,
  FAMILY_KEYS,
  FAMILY_METRICS,
  familyLoss,
  familyNeeds,
} from './grpo-family.js';
import { isOfRow } from './rows.js';
import { VLLM } from './vllm-correction.js';

const GAMMA = {
  vespoKPos: { type: 'number', default: 2, atLeast: 0, typical: [0.5, 4], help: 'κ where A ≥ 0' },
  vespoLambdaPos: { type: 'number', default: 3, atLeast: 0, typical: [0, 5], help: 'λ where A ≥ 0' },
  vespoKNeg: { type: 'number', default: 3, atLeast: 0, typical: [0.5, 4], help: 'κ where A < 0' },
  vespoLambdaNeg: { type: 'number', default: 2, atLeast: 0, typical: [0, 5], help: 'λ where A < 0' },
} as const;

const SMALLEST_LAMBDA = 1e-4;
const LOG_RATIO_OF_ROW = { low: Math.log(1e-8), high: 20 };

/** VESPO as in TRL: φ weights each token by the ratio of its whole row. */
export class TRLVESPOLossFn extends expressionLossClass(
  {
    name: 'trl/vespo',
    summary: 'ℓ = −A·sg(φ)·logprob, φ = exp(λ + κW − λe^W), the mean over the tokens of the global batch',
    details: [
      'W is the sum of the log-ratios of the row. The paper averages over trajectories.',
      'TRL also adds the correction of masked tokens to W, which matters if vllmImportanceSamplingClipMin is above 1 or vllmImportanceSamplingClipMax below 1. This function does not.',
      'The vLLM correction must be that of tokens.',
    ],
    source: ['arXiv 2602.10693', 'TRL'],
    reads: FAMILY_KEYS,
    ...FAMILY_BATCHES,
    options: {
      ...GAMMA,
      ...FAMILY,
      vllmImportanceSamplingMode: {
        ...VLLM.vllmImportanceSamplingMode,
        needs: { sequence_truncate: { useVllm: [false] }, sequence_mask: { useVllm: [false] } },
      },
    },
    metrics: { 'vespo/phi_seq_mean': { unit: 'weight' }, ...FAMILY_METRICS },
    numerics: {
      range: 'any finite logprobs and advantages',
      outside: 'the log-ratio of a token is limited to 20 nats, and that of a row to ln 1e-8 and 20',
      exponentiatesRowSums: true,
      /** Far from a ratio of 1, φ is nearly 0 and has a large relative error. At 1, it is 1. */
      cancels: ({ advantage, logprob }: TokenValues) => ({
        value: Math.abs(advantage * logprob),
        gradient: Math.abs(advantage),
      }),
    },
  },
  (symbols, options, has) => {
    const { A, lp, n, rowMean, select, sg } = symbols;
    return familyLoss(symbols, 'vespo', options, has, (_, correction) => {
      const weight = sg(gammaWeight(symbols, options, logRatioOfRow(symbols, correction)));
      return {
        loss: A.neg().mul(weight).mul(lp),
        // W is 0 in a row without tokens, and φ is 1.
        metrics: {
          'vespo/phi_seq_mean': isOfRow(A) ? { row: select(n.gt(0), rowMean(weight), 1) } : { token: weight },
        },
        isCorrected: true,
        allRows: true,
      };
    });
  },
  familyNeeds,
) {
  static {
    POLICY_LOSS_FN.register('trl/vespo', TRLVESPOLossFn);
  }
}

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

/** Options of {@link TRLVESPOLossFn}. */
export type TRLVESPOLossOptions = NonNullable<ConstructorParameters<typeof TRLVESPOLossFn>[0]>;
/** Metrics of {@link TRLVESPOLossFn}. */
export type TRLVESPOMetrics = MetricsOf<(typeof TRLVESPOLossFn)['declaration']['metrics']>;
