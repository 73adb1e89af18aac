// The options of reward normalisation, which GRPO and step-wise GRPO share.
import { type CheckedOptions, nativeOptions, type OptionsOf } from '../../core/options.js';
import { EPSILON } from './options.js';

/** The options, with Trinity's defaults. */
export const NORMALISATION = {
  epsilon: EPSILON,
  stdThreshold: {
    type: 'number',
    trinity: null,
    atLeast: 0,
    typical: [0, 1.2],
    help: 'drop groups with one reward, and groups whose rewards have a standard deviation of at most this',
  },
  stdCalLevel: {
    type: 'choice',
    choices: ['group', 'batch'],
    default: 'group',
    help: "compute the standard deviation over the group's rewards, or over the batch's",
  },
} as const;

/** Options of GRPO's normalisation. */
export type NormalisationOptions = OptionsOf<typeof NORMALISATION>;

/** The rewards over which the standard deviation is taken. */
export type StdCalLevel = NonNullable<NormalisationOptions['stdCalLevel']>;

/** Returns the native options; NaN means no threshold. */
export function nativeNormalisation(options: CheckedOptions<typeof NORMALISATION>) {
  return nativeOptions(NORMALISATION, { ...options, stdThreshold: options.stdThreshold ?? Number.NaN });
}
