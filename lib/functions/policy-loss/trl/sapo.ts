// TRL's SAPO: a soft gate instead of clipping.
import type { MetricsOf, TokenValues } from '../../../core/declaration.js';
import type { Operand } from '../../../program/expression.js';
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

// The gate is fully open well below this log-ratio. The bound keeps the ratio finite, so that the gradient becomes 0.
const LARGEST_LOG_RATIO = 80;

/** SAPO as in TRL: a sigmoid of the ratio takes the place of clipping. The gradient goes through the ratio. */
export class TRLSAPOLossFn extends expressionLossClass(
  {
    name: 'trl/sapo',
    summary: 'ℓ = −A·4/τ·σ(τ(r − 1)), the mean over each row, then over the rows',
    source: ['arXiv 2511.20347', 'TRL'],
    unlike: { sapo: 'the gradient goes through the gate, and each row counts equally' },
    reads: FAMILY_KEYS,
    ...FAMILY_BATCHES,
    options: {
      sapoTemperaturePos: {
        type: 'number',
        default: 1,
        above: 0,
        typical: [0.5, 4],
        help: 'τ where A > 0',
      },
      sapoTemperatureNeg: {
        type: 'number',
        default: 1.05,
        above: 0,
        typical: [0.5, 4],
        help: 'τ elsewhere',
      },
      ...FAMILY,
    },
    metrics: FAMILY_METRICS,
    numerics: {
      range: 'any finite logprobs and advantages',
      outside: 'the gate is open: the loss is finite, and the gradient is 0',
      /** Far from a ratio of 1, the gate's slope is nearly 0 and has a large relative error. At 1, the gradient is −A. */
      cancels: ({ advantage }: TokenValues) => ({ gradient: Math.abs(advantage) }),
    },
  },
  (symbols, options, has) => {
    const { A, constant, exp, min, select, sigmoid } = symbols;
    const { sapoTemperaturePos, sapoTemperatureNeg } = options;
    return familyLoss(symbols, 'sapo', options, has, ({ log, perRow }) => {
      const distance = exp(min(log, LARGEST_LOG_RATIO)).sub(1);
      const gate = (temperature: Operand) =>
        sigmoid(distance.mul(temperature)).mul(constant(4).div(temperature));
      const chosen = (a: Operand, b: Operand) => select(A.gt(0), a, b);
      // If a row has one ratio, both gates are computed once per row, in float64.
      const value = perRow
        ? chosen(gate(sapoTemperaturePos), gate(sapoTemperatureNeg))
        : gate(chosen(sapoTemperaturePos, sapoTemperatureNeg));
      return { loss: A.neg().mul(value), metrics: {} };
    });
  },
  familyNeeds,
) {
  static {
    POLICY_LOSS_FN.register('trl/sapo', TRLSAPOLossFn);
  }
}

/** Options of {@link TRLSAPOLossFn}. */
export type TRLSAPOLossOptions = NonNullable<ConstructorParameters<typeof TRLSAPOLossFn>[0]>;
/** Metrics of {@link TRLSAPOLossFn}. */
export type TRLSAPOMetrics = MetricsOf<(typeof TRLSAPOLossFn)['declaration']['metrics']>;
