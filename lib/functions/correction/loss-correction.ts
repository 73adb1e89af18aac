// The options `correction` and `masks`, which every policy loss accepts.
import { describeValue, guarded, LossError } from '../../core/errors.js';
import { KeyMapper } from '../../core/key-mapper.js';
import { fromTrinityArgs, readOptions, toSnakeCase } from '../../core/options.js';
import { type BuildCorrection, CorrectionPrograms } from './correction-programs.js';
import { CORRECTION_FN } from './index.js';
import { MASKS, type MaskOptions, maskCorrection } from './masks.js';

/** A correction, as an option of a policy loss. */
export interface CorrectionOption {
  /** The name of the correction in CORRECTION_FN; 'verl/rollout_correction' by default. */
  readonly name?: string | undefined;
  /** The arguments of the correction, in snake_case or camelCase. */
  readonly [argument: string]: unknown;
}

/** The options that change which tokens of a batch a policy loss is computed from. */
export interface LossCorrectionOptions {
  /**
   * Weights the tokens and leaves out some of them, because the inference engine that sampled them differs from the
   * policy. The loss is that of the tokens that are kept, and each token's loss is multiplied by its weight. The result
   * also has the metrics of the correction.
   */
  correction?: CorrectionOption | null | undefined;
  /** Leaves out tokens or rows, or limits their ratios. */
  masks?: MaskOptions | null | undefined;
}

/** The names of these options. */
export const LOSS_CORRECTION_OPTIONS = ['correction', 'masks'] as const;

const DEFAULT = 'verl/rollout_correction';

/**
 * Returns the correction that the options of a loss ask for, or undefined if they ask for none.
 * @param owner the class of the loss, for error messages.
 * @param isOfRows whether the loss is one of rows.
 * @throws LossError `ERR_INVALID_OPTION`, `ERR_UNKNOWN_NAME`
 */
export function lossCorrection(
  owner: string,
  backend: string,
  given: LossCorrectionOptions | undefined,
  isOfRows: boolean,
): CorrectionPrograms | undefined {
  return guarded(() => {
    const correction = checkedObject(owner, 'correction', given?.correction);
    const masks = checkedObject(owner, 'masks', given?.masks);
    const builds: BuildCorrection[] = [];
    if (correction) {
      const { name = DEFAULT, ...args } = correction as CorrectionOption;
      builds.push(inSnakeCase(() => CORRECTION_FN.create(name, args, { backend })).build);
    }
    if (masks) {
      const at = `${owner}: masks`;
      const options = inSnakeCase(() => readOptions(at, MASKS, fromTrinityArgs(masks)));
      builds.push((symbols) => maskCorrection(symbols, options, isOfRows));
    }
    if (builds.length === 0) return undefined;
    return new CorrectionPrograms(`correction of ${owner}`, builds, KeyMapper.get(backend));
  }, 'ERR_INVALID_OPTION');
}

// The command line spells the options of a loss as flags. These arguments are no flags, so their names are final.
function inSnakeCase<T>(make: () => T): T {
  try {
    return make();
  } catch (error) {
    if (!(error instanceof LossError)) throw error;
    throw new LossError(error.code, error.withOptionNames(toSnakeCase).message, { cause: error });
  }
}

function checkedObject(owner: string, option: string, value: unknown): Record<string, unknown> | undefined {
  if (value === undefined || value === null) return undefined;
  if (typeof value === 'object') return value as Record<string, unknown>;
  throw new LossError('ERR_INVALID_OPTION', {
    at: owner,
    option,
    expected: 'an object of arguments',
    received: describeValue(value),
  });
}
