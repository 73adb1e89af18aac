/** verl's functions in float64, by the family and the name of each. */
import { Tape, type Variable } from '../autograd.js';
import { type Args, type Formula, type ReferenceBatch, Tokens } from '../batch.js';
import { type Evaluate, evaluator, klReference, metricNumbers, type ReferenceKl } from '../index.js';
import { advantages } from './verl-advantages.js';
import { type Correction, rolloutCorrection, toColumn, withCorrection } from './verl-correction.js';
import { klFunctions } from './verl-kl.js';
import * as losses from './verl-losses.js';
import { rolloutCorrectionV070, rolloutImportanceWeightsV060 } from './verl-older-correction.js';
import * as rowLosses from './verl-row-losses.js';

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

/** The formulas of the policy losses. All but bypass_mode take the arguments of a rollout correction too. */
const policyFormulas: Record<string, Formula> = {
  vanilla: withCorrection(losses.vanilla),
  dppo_tv: withCorrection(losses.dppoTv),
  dppo_kl: withCorrection(losses.dppoKl),
  gpg: withCorrection(losses.gpg),
  dro: withCorrection(losses.dro),
  clip_cov: withCorrection(losses.clipCov),
  kl_cov: withCorrection(losses.klCov),
  geo_mean: withCorrection(rowLosses.geoMean),
  verl_gspo: withCorrection(losses.gspo),
  verl_sapo: withCorrection(losses.sapo),
  verl_cispo: withCorrection(losses.cispo),
  bypass_mode: losses.bypassMode,
  distillation: losses.distillation,
  gvpo: rowLosses.gvpo,
  flowrl: rowLosses.flowrl,
  self_play_sppo: rowLosses.selfPlaySppo,
  online_dpo: rowLosses.onlineDpo,
};

const mapped = <T, U>(record: Record<string, T>, f: (value: T) => U): Record<string, U> =>
  Object.fromEntries(Object.entries(record).map(([name, value]) => [name, f(value)]));

/** The formulas of all losses, by family and name. */
export const verlFormulas = {
  policy: policyFormulas,
  kl: mapped(klFunctions, ({ loss }) => loss),
};

export const verlReference = {
  policy: mapped(policyFormulas, (formula): Evaluate => evaluator(formula, 'logprob')),
  kl: mapped(klFunctions, ({ values, loss }): ReferenceKl => klReference(values, loss)),
  correction: mapped(corrections, evaluateCorrection),
  advantage: advantages,
};
