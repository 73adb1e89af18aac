/** verl's losses as the library has them, by registry name. */
import type { Formula } from './batch.js';
import { withCorrection } from './beyond/verl-correction.js';
import * as losses from './beyond/verl-losses.js';
import * as rowLosses from './beyond/verl-row-losses.js';

/**
 * The metrics of a correction for which a result of the library has no room. Each statistic that rejects tokens has
 * several.
 */
const LEFT_METRICS =
  /^rollout_corr\/(rollout_rs_(token|seq_sum|seq_mean|seq_max)_k[123]_.*|rollout_is_seq_max_deviation|log_ppl_diff|log_ppl_abs_diff)$/;

/** Returns the metrics that a result of the library has, out of all that verl computes. */
export const reported = <T>(metrics: Readonly<Record<string, T>>): Record<string, T> =>
  Object.fromEntries(Object.entries(metrics).filter(([name]) => !LEFT_METRICS.test(name)));

const asReported =
  (formula: Formula): Formula =>
  (x, args) => {
    const { loss, metrics } = formula(x, args);
    return { loss, metrics: reported(metrics) };
  };

/** Lets a loss take the arguments of a correction, which applies only if it weights or rejects tokens. */
const correctable = (formula: Formula): Formula => {
  const corrected = asReported(withCorrection(formula));
  return (x, args) =>
    (args.rollout_is ?? args.rollout_rs ?? null) === null ? formula(x, args) : corrected(x, args);
};

export const verlFormulas: Record<string, Formula> = {
  'verl/vanilla': correctable(losses.vanilla),
  'verl/dppo_tv': correctable(losses.dppoTv),
  'verl/dppo_kl': correctable(losses.dppoKl),
  'verl/gpg': correctable(losses.gpg),
  'verl/dro': correctable(losses.dro),
  'verl/geo_mean': correctable(rowLosses.geoMean),
  'verl/gspo': correctable(losses.gspo),
  'verl/sapo': correctable(losses.sapo),
  'verl/cispo': correctable(losses.cispo),
  'verl/bypass_mode': asReported(losses.bypassMode),
  'verl/distillation': losses.distillation,
  'verl/flowrl': rowLosses.flowrl,
  'verl/self_play_sppo': rowLosses.selfPlaySppo,
};
