/** verl's losses as the library has them, by registry name. */
import { type Args, type Formula, option } from './batch.js';
import { withCorrection } from './frameworks/verl-correction.js';
import * as losses from './frameworks/verl-losses.js';
import * as rowLosses from './frameworks/verl-row-losses.js';

/** The metrics of a statistic that rejects tokens, in the library's order. */
const OF_STATISTIC = [
  ...['masked_fraction', 'seq_masked_fraction', 'mean', 'max', 'min', 'std', 'fraction_high', 'fraction_low'],
  ...[
    'seq_mean',
    'seq_std',
    'seq_max',
    'seq_min',
    'seq_max_deviation',
    'seq_fraction_high',
    'seq_fraction_low',
  ],
];

/** Leaves out what the library has no room for: the last metrics of statistics, if there would be more than 48. */
export function reported<T>(metrics: Readonly<Record<string, T>>, args: Args): Record<string, T> {
  const statistics = new Set(
    (option(args, 'rollout_rs', null as string | null) ?? '').split(',').map((name) => name.trim()),
  );
  const ofStatistics = [...statistics]
    .flatMap((name) => OF_STATISTIC.map((metric) => `rollout_corr/rollout_rs_${name}_${metric}`))
    .filter((name) => name in metrics);
  const others =
    10 + (args.rollout_is ? 8 : 0) + ('rollout_corr/rollout_is_batch_norm_factor' in metrics ? 1 : 0);
  const left = ofStatistics.slice(48 - others);
  return Object.fromEntries(Object.entries(metrics).filter(([name]) => !left.includes(name)));
}

const asReported =
  (formula: Formula): Formula =>
  (x, args) => {
    const { loss, metrics } = formula(x, args);
    return { loss, metrics: reported(metrics, args) };
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
  'verl/clip_cov': correctable(losses.clipCov),
  'verl/kl_cov': correctable(losses.klCov),
  'verl/geo_mean': correctable(rowLosses.geoMean),
  'verl/gspo': correctable(losses.gspo),
  'verl/sapo': correctable(losses.sapo),
  'verl/cispo': correctable(losses.cispo),
  'verl/bypass_mode': asReported(losses.bypassMode),
  'verl/distillation': losses.distillation,
  'verl/flowrl': rowLosses.flowrl,
  'verl/self_play_sppo': rowLosses.selfPlaySppo,
  'verl/gvpo': rowLosses.gvpo,
  'verl/online_dpo': rowLosses.onlineDpo,
};
