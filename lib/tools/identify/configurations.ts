// The configurations of policy losses that a search tries.
import { withoutAdvice } from '../../base/advice.js';
import { LOSS_AGG_MODES, type LossAggMode, type OptionDeclaration, toSnakeCase } from '../../base/options.js';
import { LossError, POLICY_LOSS_FN, type PolicyLossFn } from '../../index.js';

/** A policy loss with its options. */
export interface LossConfiguration {
  /** The loss's name in the registry. */
  readonly name: string;
  /** The arguments for the registry, under snake_case names, without the aggregation mode and the correction. */
  readonly args: Readonly<Record<string, unknown>>;
  /** The aggregation mode; null if the loss has no choice. */
  readonly lossAggMode: LossAggMode | null;
  /** The arguments of the rollout correction; null for none. */
  readonly correction: Readonly<Record<string, unknown>> | null;
  readonly fn: PolicyLossFn<object>;
}

/** Returns the configurations of a loss with its default options, one for each aggregation mode. */
export function defaultsOf(name: string): LossConfiguration[] {
  const options = optionsOf(name);
  const required = Object.entries(options).filter(([, option]) => isUnset(option));
  const values = required.map(([key, option]) =>
    valuesOf(key, option).map((value) => [toSnakeCase(key), value] as const),
  );
  const modes = modesOf(options);
  // A loss whose option has no default is tried with each usual value of it.
  const args = values.reduce<Record<string, unknown>[]>(
    (all, each) => all.flatMap((before) => each.map(([key, value]) => ({ ...before, [key]: value }))),
    [{}],
  );
  return args.flatMap((given) => modes.flatMap((mode) => configured(name, given, mode, null)));
}

/** A lower and an upper clip bound, as distances from 1. */
export type Bounds = readonly [low: number, high: number];

/**
 * Returns configurations that differ from one in an option, or in a pair of clip bounds.
 * @param bounds pairs of bounds to try in addition to the usual ones.
 */
export function variationsOf(
  { name, args, lossAggMode }: LossConfiguration,
  bounds: readonly Bounds[],
): LossConfiguration[] {
  const declared = Object.entries(optionsOf(name));
  // The options that others have their default from vary with these.
  const options = declared.filter(([key]) => declared.every(([, { defaultFrom }]) => defaultFrom !== key));
  const single = options.flatMap(([key, option]) =>
    valuesOf(key, option).map((value) => ({ ...args, [toSnakeCase(key)]: value })),
  );
  const pairs = boundsAmong(options.map(([key]) => key)).flatMap(([low, high]) =>
    [...USUAL_BOUNDS, ...bounds].map(([below, above]) => ({
      ...args,
      [toSnakeCase(low)]: below,
      [toSnakeCase(high)]: above,
    })),
  );
  return [...single, ...pairs].flatMap((given) => configured(name, given, lossAggMode, null));
}

/** All pairs of bounds. */
export const ALL_BOUNDS = (): Bounds[] =>
  CLIP_BOUNDS.flatMap((low) => CLIP_BOUNDS.map((high): Bounds => [low, high]));

/** Returns the clip bounds of a configuration; undefined if it has no such options. */
export function boundsOf(configuration: LossConfiguration): Bounds | undefined {
  const args = argumentsOf(configuration);
  const [names] = boundsAmong(Object.keys(optionsOf(configuration.name)));
  const [low, high] = (names ?? []).map((key) => args[toSnakeCase(key)]);
  return typeof low === 'number' && typeof high === 'number' ? [low, high] : undefined;
}

/** Returns a configuration with each aggregation mode of its loss. */
export function inAllModes({ name, args, correction }: LossConfiguration): LossConfiguration[] {
  return modesOf(optionsOf(name)).flatMap((mode) => configured(name, args, mode, correction));
}

/** Returns configurations that differ from one in the correction for the rollout engine. */
export function correctionsOf({ name, args, lossAggMode }: LossConfiguration): LossConfiguration[] {
  return CORRECTIONS.flatMap((correction) => configured(name, args, lossAggMode, correction));
}

/** Returns the arguments with which a loss computes, those with a default among them, under snake_case names. */
export function argumentsOf({
  name,
  args,
}: Pick<LossConfiguration, 'name' | 'args'>): Record<string, unknown> {
  const defaults = Object.entries(POLICY_LOSS_FN.get(name).defaultArgs());
  const all: Record<string, unknown> = {
    ...Object.fromEntries(defaults.filter(([, value]) => value !== null && value !== undefined)),
    ...args,
  };
  delete all.loss_agg_mode;
  // An argument that gives others their default has no effect of its own.
  const options = Object.entries(optionsOf(name));
  for (const [key] of options) {
    const heirs = options
      .filter(([, { defaultFrom }]) => defaultFrom === key)
      .map(([heir]) => toSnakeCase(heir));
    const own = toSnakeCase(key);
    if (heirs.length === 0) continue;
    for (const heir of heirs) if (!(heir in args) && (own in args || !(heir in all))) all[heir] = all[own];
    delete all[own];
  }
  return all;
}

// Usual bounds of ratios, as distances from 1.
const CLIP_BOUNDS = [0.01, 0.02, 0.03, 0.05, 0.1, 0.15, 0.2, 0.22, 0.25, 0.28, 0.3, 0.35, 0.4, 0.5];
const USUAL_BOUNDS: readonly Bounds[] = [
  ...CLIP_BOUNDS.map((bound): Bounds => [bound, bound]),
  ...[0.1, 0.2, 0.3].flatMap((low) => [0.1, 0.2, 0.25, 0.28, 0.3, 0.4].map((high): Bounds => [low, high])),
];
const SMALL_BOUNDS = [1e-4, 2e-4, 3e-4, 4e-4, 5e-4, 1e-3, 3e-3];
const LARGE_BOUNDS = [0.6, 0.7, 0.8, 0.9, 1, 2, 3, 5];
const ALL_CLIPS = [...SMALL_BOUNDS, ...CLIP_BOUNDS, ...LARGE_BOUNDS];
const DUAL_CLIPS = [2, 3, 4, 5, 10, 20];
const GROUP_SIZES = [2, 4, 8, 16];

const CORRECTIONS: readonly Readonly<Record<string, unknown>>[] = [
  ...['token', 'sequence'].flatMap((rolloutIs) =>
    ['2', '1.2', '1.5', '3', '5', '10', '0.5_5.0', '0.5_2'].map((threshold) => ({
      rollout_is: rolloutIs,
      rollout_is_threshold: threshold,
    })),
  ),
  { rollout_rs: 'token_k1', rollout_rs_threshold: '2' },
  { rollout_rs: 'seq_mean_k1', rollout_rs_threshold: '2' },
  { rollout_rs: 'seq_mean_k3', rollout_rs_threshold: '0.01' },
];

function optionsOf(name: string): Readonly<Record<string, OptionDeclaration>> {
  return (POLICY_LOSS_FN.get(name).declaration?.options ?? {}) as Record<string, OptionDeclaration>;
}

function modesOf(options: Readonly<Record<string, OptionDeclaration>>): readonly (LossAggMode | null)[] {
  const { lossAggMode } = options;
  if (!lossAggMode) return [null];
  return lossAggMode.type === 'choice' ? (lossAggMode.choices as LossAggMode[]) : LOSS_AGG_MODES;
}

// Returns whether an option must be given because it has no default.
function isUnset(option: OptionDeclaration): boolean {
  return (
    option.required === true &&
    option.default === undefined &&
    option.trinity === undefined &&
    option.defaultFrom === undefined
  );
}

// Returns the values of an option to try.
function valuesOf(key: string, option: OptionDeclaration): readonly unknown[] {
  switch (option.type) {
    case 'boolean':
      return [true, false];
    case 'choice':
      return option.choices;
    case 'number': {
      if (/RatioC$|^delta$/.test(key)) return DUAL_CLIPS;
      const [low, high] = option.typical ?? [];
      if (low === undefined || high === undefined) return [];
      if (isClipBound(key)) return ALL_CLIPS.filter((bound) => bound >= low / 10 && bound <= 2 * high);
      return usualNumbers(low, high);
    }
    // Only the size of a group has no default.
    case 'integer':
      return isUnset(option) ? GROUP_SIZES : [];
    // The flat arguments of corrections are tried as corrections.
    default:
      return [];
  }
}

function isClipBound(key: string): boolean {
  return /clip|epsilon|mask(Low|High)/i.test(key) && !/quantile|coef|mode/i.test(key);
}

// Returns the pairs of options for the lower and the upper bound.
function boundsAmong(keys: readonly string[]): [low: string, high: string][] {
  const low = keys.filter((key) => isClipBound(key) && /Low$|Min$/.test(key));
  const pairs = low.map((key): [string, string] => [key, key.replace(/Low$/, 'High').replace(/Min$/, 'Max')]);
  if (keys.includes('epsilonHigh') && keys.includes('epsilon')) pairs.push(['epsilon', 'epsilonHigh']);
  return pairs.filter(([, high]) => keys.includes(high));
}

// Returns the numbers with one digit between two that have not too many zeros, and the ends.
function usualNumbers(low: number, high: number): number[] {
  const between = [];
  for (let power = -8; power <= 2; power++)
    for (const digit of [1, 2, 4, 5]) between.push(Number(`${digit}e${power}`));
  const least = Math.max(low, high / 1000);
  return [...new Set([low, ...between.filter((x) => x > least && x < high), high])];
}

function configured(
  name: string,
  args: Readonly<Record<string, unknown>>,
  lossAggMode: LossAggMode | null,
  correction: Readonly<Record<string, unknown>> | null,
): LossConfiguration[] {
  try {
    const all = {
      ...args,
      ...(lossAggMode && { loss_agg_mode: lossAggMode }),
      ...(correction && { correction }),
    };
    const fn = withoutAdvice(() => POLICY_LOSS_FN.create(name, all));
    return [{ name, args, lossAggMode, correction, fn }];
  } catch (error) {
    // Not all values go together.
    if (error instanceof LossError) return [];
    throw error;
  }
}

/**
 * Returns the names of the losses to try: the given ones, or all.
 * @throws LossError `ERR_UNKNOWN_NAME`
 */
export function namesOf(wanted: readonly string[] | undefined): readonly string[] {
  for (const name of wanted ?? []) POLICY_LOSS_FN.get(name);
  return wanted ?? POLICY_LOSS_FN.names();
}
