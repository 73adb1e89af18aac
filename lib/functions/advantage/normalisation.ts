// The options that control how rewards are normalised. GRPO and step-wise GRPO share them.
import { type CheckedOptions, nativeOptions, type OptionsOf } from '../../core/options.js';
import { EPSILON } from './options.js';

/** The declarations of these options. The defaults are Trinity-RFT's. */
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

/** The options that control how rewards are normalised, as a caller passes them. */
export type NormalisationOptions = OptionsOf<typeof NORMALISATION>;

/** The rewards from which the standard deviation is computed: those of the group, or those of the whole batch. */
export type StdCalLevel = NonNullable<NormalisationOptions['stdCalLevel']>;

/** Converts the options for native code, where NaN stands for an absent threshold. */
export function nativeNormalisation(options: CheckedOptions<typeof NORMALISATION>) {
  return nativeOptions(NORMALISATION, { ...options, stdThreshold: options.stdThreshold ?? Number.NaN });
}
