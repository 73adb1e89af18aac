/** Draws arguments of functions from their declarations, and batches that fit them. */
import fc from 'fast-check';
import { LOSS_AGG_MODES, needsOf, toSnakeCase } from '../../lib/base/options.js';
import {
  ADVANTAGE_FN,
  ENTROPY_LOSS_FN,
  type FunctionDeclaration,
  KL_FN,
  LOGITS_LOSS_FN,
  type NumberOption,
  type OptionDeclaration,
  type OptionSchema,
  POLICY_LOSS_FN,
  REWARD_LOSS_FN,
  VALUE_LOSS_FN,
} from '../../lib/index.js';
import type { PolicyLossDeclaration } from '../../lib/losses/policy-loss-declaration.js';
import type { Args } from '../reference/index.js';
import type { BatchSpec } from './draw.js';
import type { Family } from './subject.js';

// Draws one of 10,001 evenly spaced numbers. fc.double() would prefer extreme numbers such as 5e-324, which make
// float32 gradients underflow to 0.
const between = (min: number, max: number) =>
  fc.integer({ min: 0, max: 10_000 }).map((k) => min + ((max - min) * k) / 10_000);

function drawNumber(option: NumberOption): fc.Arbitrary<number | null> | undefined {
  if (option.typical === undefined) return undefined;
  const [min, max] = option.typical;
  const drawn = option.type === 'integer' ? fc.integer({ min, max }) : between(min, max);
  // Formulas often change at an end of the valid range. So such an end is also drawn by itself, if it is the default or
  // an end of the typical range.
  const ends = [option.atLeast, option.atMost].filter(
    (end) => end !== undefined && [min, max, option.default].includes(end),
  );
  const isOptional = option.nullable || (option.default === undefined && !option.required);
  const special = [...ends, ...(isOptional ? [null] : [])];
  return fc.oneof(
    { weight: 6, arbitrary: drawn },
    ...special.map((value) => ({ weight: 1, arbitrary: fc.constant(value as number | null) })),
  );
}

function drawOption(option: OptionDeclaration): fc.Arbitrary<unknown> | undefined {
  switch (option.type) {
    case 'boolean':
      return fc.boolean();
    case 'choice':
      return fc.constantFrom(
        ...option.choices,
        ...(option.default === undefined && !option.required ? [null] : []),
      );
    case 'text':
    case 'list':
      return fc.constantFrom(...option.typical);
    case 'aggregation':
      return fc.constantFrom(...LOSS_AGG_MODES);
    default:
      return drawNumber(option);
  }
}

/**
 * Draws valid arguments from a function's declaration. Omits arguments that make results random, and switches that make
 * other arguments required.
 */
function drawArguments({ options }: FunctionDeclaration): fc.Arbitrary<Args> {
  const all = Object.values(options);
  const drawn: Record<string, fc.Arbitrary<unknown>> = {};
  for (const [key, option] of Object.entries(options)) {
    const requiresOthers = all.some(({ requiredWith }) => requiredWith === key);
    const arbitrary = option.random || requiresOthers ? undefined : drawOption(option);
    if (arbitrary) drawn[toSnakeCase(key)] = arbitrary;
  }
  return fc.record(drawn).map((args) => withNeeds(options, args) as Args);
}

/**
 * Returns values for the options that a function requires and for which it has no default: the least of those that are
 * usual in training.
 */
export function requiredArgs(declaration: FunctionDeclaration | undefined): Args {
  const required = Object.entries(declaration?.options ?? {}).filter(
    ([, { required, defaultFrom, default: given, trinity = given }]) =>
      required && defaultFrom === undefined && trinity === undefined,
  );
  return Object.fromEntries(
    required.map(([key, option]) => [toSnakeCase(key), 'typical' in option ? option.typical![0]! : 1]),
  );
}

// Adds the arguments that the drawn values of other arguments require.
function withNeeds(options: OptionSchema, args: Record<string, unknown>): Record<string, unknown> {
  const result = { ...args };
  for (const [key, option] of Object.entries(options))
    for (const [other, values] of Object.entries(needsOf(option, args[toSnakeCase(key)]))) {
      const name = toSnakeCase(other);
      if (!values.includes((result[name] ?? undefined) as (typeof values)[number])) result[name] = values[0];
    }
  return result;
}

function drawEvery(
  registry: { names(): string[]; get(name: string): { readonly declaration?: FunctionDeclaration } },
  more: Record<string, fc.Arbitrary<unknown>> = {},
): Record<string, fc.Arbitrary<Args>> {
  return Object.fromEntries(
    registry.names().flatMap((name) => {
      const { declaration } = registry.get(name);
      if (!declaration) return [];
      const arbitrary = fc
        .tuple(drawArguments(declaration), fc.record(more))
        .map(([own, shared]) => ({ ...own, ...shared }) as Args);
      return [[name, arbitrary]];
    }),
  );
}

const loss_agg_mode = fc.constantFrom(...LOSS_AGG_MODES);

/** Generators of valid arguments for each function, by family and registry name. */
export const ARGUMENTS: Record<Family, Record<string, fc.Arbitrary<Args>>> = {
  policy: drawEvery(POLICY_LOSS_FN),
  kl: drawEvery(KL_FN, { loss_agg_mode }),
  entropy: drawEvery(ENTROPY_LOSS_FN, { loss_agg_mode }),
  value: drawEvery(VALUE_LOSS_FN),
  reward: drawEvery(REWARD_LOSS_FN),
};

/** Generators of valid arguments for each loss from logits, by registry name. */
export const LOGITS_ARGUMENTS: Record<string, fc.Arbitrary<Args>> = drawEvery(LOGITS_LOSS_FN);

/**
 * Generators of valid arguments for each advantage function, by registry name. Results with these arguments are not
 * random.
 */
export const ADVANTAGE_ARGUMENTS: Record<string, fc.Arbitrary<Args>> = drawEvery(ADVANTAGE_FN);

/** Returns whether a function is a loss over pairs of rows. */
export function readsPairs(name: string): boolean {
  if (REWARD_LOSS_FN.names().includes(name)) return true;
  if (!POLICY_LOSS_FN.names().includes(name)) return false;
  return (POLICY_LOSS_FN.get(name).declaration as PolicyLossDeclaration | undefined)?.pairs === true;
}

/** The policy losses whose loss of a row, a pair or a group is not a sum of losses of its tokens. */
export const OF_ROWS: readonly string[] = POLICY_LOSS_FN.names().filter((name) => {
  const declaration = POLICY_LOSS_FN.get(name).declaration as PolicyLossDeclaration;
  return declaration.ofRows || declaration.pairs;
});

/**
 * Returns whether a loss reads the exponential of a sum of a row's log-ratios. Where log-ratios are wide, it overflows, or
 * multiplies the rounding errors of the sum.
 */
function readsRowSums(name: string, args: Args): boolean {
  const isUnbounded = args.vllm_importance_sampling_clip_max === null;
  const declaration = POLICY_LOSS_FN.names().includes(name)
    ? POLICY_LOSS_FN.get(name).declaration
    : undefined;
  return declaration?.numerics.exponentiatesRowSums === true || (args.use_vllm === true && isUnbounded);
}

/** The losses that read weights of tokens themselves. */
export const OF_WEIGHTS: readonly string[] = ['tinker/cross_entropy', 'prime/ce', 'tinker/dpo'];

/**
 * Adapts a batch description to a function: a loss over pairs of rows needs an even number of rows, and one that reads
 * sums over rows needs log-ratios that are not wide. Losses that read weights of tokens get them.
 */
export function fitting(name: string, args: Args, spec: BatchSpec): BatchSpec {
  if (OF_WEIGHTS.includes(name) && !spec.weights) return fitting(name, args, { ...spec, weights: true });
  if (spec.values === 'wide' && readsRowSums(name, args))
    return fitting(name, args, { ...spec, values: 'moderate' });
  if (!readsPairs(name) || args.pairwise === false) return spec;
  const size = name === 'trl/tpo' && args.tpo_alpha !== 0 ? 3 : 2;
  const rest = spec.rows % size;
  const rowLengths = spec.rowLengths?.slice(0, spec.rows - rest);
  return {
    ...spec,
    rows: spec.rows + (rowLengths ? -rest : (size - rest) % size),
    ...(rowLengths ? { rowLengths } : {}),
  };
}
