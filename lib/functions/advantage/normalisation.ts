// Options of GRPO's normalisation, which step-wise GRPO shares.
import { type CheckedOptions, type OptionsOf, toSnakeCase } from '../../core/options.js';
import { EPSILON } from './options.js';

/** The options, with Trinity's defaults. */
export const NORMALISATION = {
  epsilon: EPSILON,
  stdThreshold: {
    type: 'number',
    trinity: null,
    atLeast: 0,
    typical: [0, 1.2],
    help: "drop groups whose rewards' standard deviation is not above this, and groups of one",
  },
  stdCalLevel: {
    type: 'choice',
    choices: ['group', 'batch'],
    default: 'group',
    help: "whose rewards the standard deviation is taken over: the group's or the batch's",
  },
} as const;

/** Options of GRPO's normalisation. */
export type NormalisationOptions = OptionsOf<typeof NORMALISATION>;

/** The rewards over which the standard deviation is taken. */
export type StdCalLevel = NonNullable<NormalisationOptions['stdCalLevel']>;

/** Returns the native options; NaN means no threshold. */
export function nativeNormalisation(options: CheckedOptions<typeof NORMALISATION>) {
  const { epsilon, stdThreshold = Number.NaN, stdCalLevel } = options;
  return Object.fromEntries(
    Object.entries({ epsilon, stdThreshold, stdCalLevel }).map(([key, value]) => [toSnakeCase(key), value]),
  );
}
