// The options `correction` and `masks`, which every policy loss accepts.
import { describeValue, guarded, LossError } from '../base/errors.js';
import { integer, number } from '../base/option.js';
import {
  type CheckedOptions,
  fromTrinityArgs,
  type PassedOptions,
  readOptions,
  toSnakeCase,
} from '../base/options.js';
import { KeyMapper } from '../batch/key-mapper.js';
import type { Expression, ProgramSymbols } from '../program/expression.js';
import { CORRECTION_FN } from './correction-fn.js';
import {
  type BuildCorrection,
  type CorrectionExpressions,
  CorrectionPrograms,
} from './correction-programs.js';
import { isFarOff } from './corrections.js';
import { isTopEntropy, TOP_ENTROPY } from './order-statistics.js';
import type { ArgsOf } from './statement.js';

/** The declarations of the masks. */
export const MASKS = {
  offPolicyMaskThreshold: number({
    above: 0,
    typical: [0.01, 0.5],
    help: 'the loss of tokens with A < 0 is 0 in rows whose mean of old_logprob − logprob exceeds this (arXiv 2512.02556)',
  }),
  delta: number({
    above: 0,
    typical: [1.3, 4],
    help: 'the ratio of logprob to old_logprob counts as at most this, without a gradient above it (arXiv 2505.07291)',
  }),
  overlongLength: integer({
    atLeast: 1,
    typical: [4, 4096],
    help: 'rows with at least this many unmasked tokens are left out, as responses that were cut off (arXiv 2503.14476)',
  }),
  ...TOP_ENTROPY,
};

/** Masks, as an option of every policy loss, under camelCase or snake_case names. */
export type MaskOptions = ArgsOf<PassedOptions<typeof MASKS>>;

/**
 * Returns masks as a correction.
 * @param isOfRows whether the loss is one of rows. The row is then computed without the tokens of a low entropy, because
 * they have no losses of their own that could be 0.
 */
export function maskCorrection(
  symbols: ProgramSymbols,
  { offPolicyMaskThreshold, delta, overlongLength, ...options }: CheckedOptions<typeof MASKS>,
  isOfRows: boolean,
): CorrectionExpressions {
  const { lp, d, n, old, min, sg } = symbols;
  const isFar =
    offPolicyMaskThreshold === undefined ? undefined : isFarOff(symbols, old, offPolicyMaskThreshold);
  const isShort = overlongLength === undefined ? undefined : n.lt(overlongLength);
  const most = delta === undefined ? undefined : Math.log(delta);
  const passing = most === undefined ? undefined : sg(d).le(most);
  const isTop = isTopEntropy(symbols, options);
  return {
    weight: both(isFar?.not(), isOfRows ? undefined : isTop),
    kept: both(isShort, isOfRows ? isTop : undefined),
    logprob: most === undefined ? undefined : sg(min(lp, old.add(most))),
    passing,
    metrics: {
      'mask/off_policy_fraction': isFar && { token: isFar },
      'mask/delta_fraction': passing && { token: passing.not() },
      'mask/overlong_fraction': isShort && { row: isShort.not() },
      'mask/low_entropy_fraction': isTop && { token: isTop.not() },
    },
  };
}

function both(a: Expression | undefined, b: Expression | undefined): Expression | undefined {
  return a && b ? a.and(b) : (a ?? b);
}

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
