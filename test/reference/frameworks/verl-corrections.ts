/** verl's rollout corrections in float64. */
import { Tape, type Variable } from '../autograd.js';
import { type Args, type ReferenceBatch, Tokens } from '../batch.js';
import { metricNumbers } from '../index.js';
import { type Correction, rolloutCorrection, toColumn } from './verl-correction.js';
import { rolloutCorrectionV070, rolloutImportanceWeightsV060 } from './verl-older-correction.js';

export interface ReferenceCorrection {
  /** Shape B×T (rows × columns), with 0 for masked tokens. It is null if the correction has no weights. */
  weights: Float64Array | null;
  /** One flag per token, B×T. */
  keptMask: Float64Array;
  metrics: Record<string, number>;
  /** The sums of the absolute values of the metrics' terms, as in ReferenceResult. */
  magnitude: Record<string, number>;
}
type Correct = (x: Tokens, args: Args, policy: Variable, rollout: Variable) => Correction;

const corrections: Record<string, Correct> = {
  rollout_correction: rolloutCorrection,
  rollout_correction_v070: rolloutCorrectionV070,
  rollout_importance_weights_v060: rolloutImportanceWeightsV060,
};

const evaluateCorrection =
  (correct: Correct) =>
  (args: Args, batch: ReferenceBatch): ReferenceCorrection => {
    const x = new Tokens(new Tape(), batch);
    const policy = args.bypass_mode ? x.logprob : x.oldLogprob;
    const { weights, kept, metrics } = correct(x, args, policy, x.column('rolloutLogprob'));
    const numbers = metricNumbers(metrics);
    return {
      weights: weights && toColumn(x, weights).value,
      keptMask: toColumn(x, kept).value,
      metrics: numbers.values,
      magnitude: numbers.magnitudes,
    };
  };

/** verl's rollout corrections, by name. */
export const verlCorrections: Record<string, (args: Args, batch: ReferenceBatch) => ReferenceCorrection> =
  Object.fromEntries(
    Object.entries(corrections).map(([name, correct]) => [name, evaluateCorrection(correct)]),
  );
