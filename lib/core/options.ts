// Option schemas: a function's options as data, and everything that follows from them at run time and in types.
import { describeValue, guarded, LossError, unknownOption } from './errors.js';

/** A value in Trinity-RFT's configuration files. */
export type TrinityValue = number | boolean | string | null | undefined;
/** Arguments under Trinity-RFT's names (snake_case). */
export type TrinityArgs = Record<string, TrinityValue>;

/** How the losses of B rows with T tokens each become one number. Masked tokens never count. */
export type LossAggMode =
  /** The mean over all tokens. */
  | 'token-mean'
  /** The mean over rows of each row's sum. */
  | 'seq-mean-token-sum'
  /** The mean over rows of each row's mean. */
  | 'seq-mean-token-mean'
  /** The sum over all tokens, divided by T. */
  | 'seq-mean-token-sum-norm';

/** Every {@link LossAggMode}. */
export const LOSS_AGG_MODES = [
  'token-mean',
  'seq-mean-token-sum',
  'seq-mean-token-mean',
  'seq-mean-token-sum-norm',
] as const satisfies readonly LossAggMode[];

/** The properties that any option may declare. */
export interface AnyOption {
  /** One line for help texts and documentation, without a full stop. */
  readonly help: string;
  /** The value in defaultArgs(), if it is not the constructor's default. null lists the option without a value. */
  readonly trinity?: TrinityValue;
  /** false if defaultArgs() leaves the option out, as Trinity does, although it has a default. */
  readonly listed?: false;
  /** The name of another option, whose value is this option's default. */
  readonly defaultFrom?: string;
  /** The option must have a value: its own, or the value of the option `defaultFrom`. */
  readonly required?: true;
  /** A boolean option that makes this one required when it is true. */
  readonly requiredWith?: string;
  /** The option makes results depend on a random draw. */
  readonly random?: true;
}

/** A finite number; an 'integer' is whole. */
export interface NumberOption extends AnyOption {
  /** Whether fractions are allowed. */
  readonly type: 'number' | 'integer';
  /** The constructor's default. */
  readonly default?: number;
  /** Inclusive lower bound. */
  readonly atLeast?: number;
  /** Exclusive lower bound. */
  readonly above?: number;
  /** Inclusive upper bound. */
  readonly atMost?: number;
  /** The name of another option, whose value is an inclusive lower bound. */
  readonly atLeastOption?: string;
  /** The values that training uses: property tests draw from this range. */
  readonly typical?: readonly [number, number];
}

/** true or false. */
export interface BooleanOption extends AnyOption {
  /** A boolean. */
  readonly type: 'boolean';
  /** The constructor's default. */
  readonly default: boolean;
}

/** One of several words. */
export interface ChoiceOption extends AnyOption {
  /** A choice. */
  readonly type: 'choice';
  /** The valid words. */
  readonly choices: readonly string[];
  /** The constructor's default. */
  readonly default?: string;
  /** For some choices, the value that another option must have: `{ choice: { option: value } }`. */
  readonly needs?: Readonly<Record<string, Readonly<Record<string, string>>>>;
}

/** An aggregation mode. */
export interface AggregationOption extends AnyOption {
  /** An aggregation mode. */
  readonly type: 'aggregation';
  /** The constructor's default. */
  readonly default?: LossAggMode;
}

/** The declaration of one option. */
export type OptionDeclaration = NumberOption | BooleanOption | ChoiceOption | AggregationOption;

/** A function's options by their camelCase names. */
export type OptionSchema = Readonly<Record<string, OptionDeclaration>>;

type ValueOf<O> = O extends { type: 'number' | 'integer' }
  ? number
  : O extends { type: 'boolean' }
    ? boolean
    : O extends { type: 'aggregation' }
      ? LossAggMode
      : O extends { type: 'choice'; choices: readonly (infer C)[] }
        ? C
        : never;

/** Options as a caller gives them: any may be absent, undefined or null. */
export type OptionsOf<S> = { -readonly [K in keyof S]?: ValueOf<S[K]> | null | undefined };

/** Options after {@link readOptions}: only those without a default may be undefined. */
export type CheckedOptions<S> = {
  readonly [K in keyof S]: S[K] extends { default: unknown } | { defaultFrom: string } | { required: true }
    ? ValueOf<S[K]>
    : ValueOf<S[K]> | undefined;
};

/** Returns the declaration of the option `lossAggMode`, for a loss that aggregates its tokens. */
export function aggregationOption<const M extends LossAggMode>(mode: M) {
  return {
    type: 'aggregation',
    default: mode,
    help: 'how the losses of the tokens are combined into one number',
  } as const;
}

/** Converts a name such as `clip_range_low` to `clipRangeLow`. */
export function toCamelCase(key: string): string {
  return key.replace(/_+([a-z0-9])/g, (_, letter: string) => letter.toUpperCase());
}

/** Converts a name such as `clipRangeLow` to `clip_range_low`. */
export function toSnakeCase(key: string): string {
  return key.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}

/** Returns the arguments with camelCase keys. Accepts snake_case and camelCase. */
export function fromTrinityArgs(args: Readonly<Record<string, unknown>>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(args).map(([key, value]) => [toCamelCase(key), value]));
}

/** Returns the arguments that Trinity-RFT's default_args() has for a schema, in snake_case. */
export function defaultArgsOf(schema: OptionSchema): TrinityArgs {
  const args: TrinityArgs = {};
  for (const [key, option] of Object.entries(schema)) {
    const value = 'trinity' in option ? option.trinity : option.default;
    if (value !== undefined && option.listed !== false) args[toSnakeCase(key)] = value;
  }
  return args;
}

/**
 * Checks a caller's options against a schema and completes them with defaults. null means absent, as Python's None
 * does.
 * @param owner the class that messages name.
 * @param given the caller's object; `backend` is accepted in addition to the schema's options.
 * @throws LossError `ERR_INVALID_OPTION` naming the option, the valid values and the given one.
 */
export function readOptions<S extends OptionSchema>(
  owner: string,
  schema: S,
  given: unknown,
): CheckedOptions<S> {
  if (given !== undefined && (given === null || typeof given !== 'object'))
    throw new LossError('ERR_INVALID_OPTION', {
      at: owner,
      expected: 'an object of options',
      received: describeValue(given),
    });
  return guarded(() => {
    const source = (given ?? {}) as Record<string, unknown>;
    const checked: Record<string, unknown> = {};
    for (const [key, option] of Object.entries(schema)) {
      const value = source[key] ?? undefined;
      if (value !== undefined && !isValid(option, value)) throw invalidOption(owner, key, option, value);
      checked[key] = value ?? option.default ?? (option.defaultFrom && checked[option.defaultFrom]);
    }
    for (const [key, option] of Object.entries(schema))
      checkRelations(owner, key, option, checked, (source[key] ?? undefined) !== undefined);
    for (const key of Object.keys(source))
      if (key !== 'backend' && !Object.hasOwn(schema, key))
        throw unknownOption(owner, key, Object.keys(schema));
    return checked as CheckedOptions<S>;
  }, 'ERR_INVALID_OPTION');
}

/** Returns the backend that options name; 'verl' by default. */
export function backendOf(given: unknown): string {
  return guarded(() => (given as { backend?: string } | undefined)?.backend ?? 'verl', 'ERR_INVALID_OPTION');
}

function isValid(option: OptionDeclaration, value: unknown): boolean {
  switch (option.type) {
    case 'boolean':
      return typeof value === 'boolean';
    case 'choice':
      return option.choices.includes(value as string);
    case 'aggregation':
      return LOSS_AGG_MODES.includes(value as LossAggMode);
    default:
      return (
        (option.type === 'integer' ? Number.isInteger(value) : Number.isFinite(value)) &&
        !((value as number) < (option.atLeast ?? -Infinity)) &&
        !((value as number) <= (option.above ?? -Infinity)) &&
        !((value as number) > (option.atMost ?? Infinity))
      );
  }
}

function checkRelations(
  owner: string,
  key: string,
  option: OptionDeclaration,
  checked: Readonly<Record<string, unknown>>,
  isGiven: boolean,
): void {
  const value = checked[key];
  if (value === undefined) {
    if (option.required)
      throw invalidOption(owner, key, option, undefined, (spell) =>
        option.defaultFrom === undefined ? '' : `, directly or from ${spell(option.defaultFrom)}`,
      );
    if (option.requiredWith !== undefined && checked[option.requiredWith] === true)
      throw invalidOption(
        owner,
        key,
        option,
        undefined,
        (spell) => `, because ${spell(option.requiredWith!)} is true`,
      );
    return;
  }
  // A default is valid next to any other option.
  if (isGiven && 'atLeastOption' in option && option.atLeastOption !== undefined) {
    const other = option.atLeastOption;
    const bound = checked[other] as number;
    if ((value as number) < bound)
      throw new LossError('ERR_INVALID_OPTION', {
        at: owner,
        option: key,
        expected: (spell) => `at least ${spell(other)} (${bound})`,
        received: String(value),
      });
  }
  const needs = option.type === 'choice' ? option.needs?.[value as string] : undefined;
  for (const [other, needed] of Object.entries(needs ?? {}))
    if (checked[other] !== needed)
      throw new LossError('ERR_INVALID_OPTION', {
        at: owner,
        option: key,
        expected: (spell) => `${spell(other)} to be ${needed} for ${value}`,
        received: describeValue(checked[other]),
      });
}

function invalidOption(
  owner: string,
  key: string,
  option: OptionDeclaration,
  value: unknown,
  addition: (spell: (option: string) => string) => string = () => '',
): LossError {
  return new LossError('ERR_INVALID_OPTION', {
    at: owner,
    option: key,
    expected: (spell) => validValues(option) + addition(spell),
    received: value === undefined ? 'nothing' : describeValue(value),
  });
}

/** Returns an option's valid values in words, such as 'a number from 0 to 1'. */
export function validValues(option: OptionDeclaration): string {
  switch (option.type) {
    case 'boolean':
      return 'true or false';
    case 'choice':
      return option.choices.length === 1 ? `'${option.choices[0]}'` : `one of ${option.choices.join(', ')}`;
    case 'aggregation':
      return `one of ${LOSS_AGG_MODES.join(', ')}`;
    default:
      return [option.type === 'integer' ? 'a whole number' : 'a number', rangeOf(option)]
        .filter(Boolean)
        .join(' ');
  }
}

function rangeOf({ atLeast, above, atMost }: NumberOption): string {
  if (atLeast !== undefined)
    return atMost === undefined ? `of at least ${atLeast}` : `from ${atLeast} to ${atMost}`;
  if (above !== undefined)
    return atMost === undefined ? `above ${above}` : `above ${above} and up to ${atMost}`;
  return atMost === undefined ? '' : `of at most ${atMost}`;
}

/**
 * Checks an aggregation mode that is an argument of a call; undefined means 'token-mean'.
 * @throws LossError `ERR_INVALID_OPTION`
 */
export function checkLossAggMode(owner: string, mode: unknown): LossAggMode {
  return readOptions(owner, { lossAggMode: aggregationOption('token-mean') }, { lossAggMode: mode })
    .lossAggMode;
}

/** Returns checked options as native code takes them: by their snake_case names, without aggregation modes. */
export function nativeOptions(
  schema: OptionSchema,
  options: Readonly<Record<string, unknown>>,
): Record<string, number | boolean | string> {
  return Object.fromEntries(
    Object.entries(schema).flatMap(([key, { type }]) => {
      const value = options[key] as number | boolean | string | undefined;
      return type === 'aggregation' || value === undefined ? [] : [[toSnakeCase(key), value]];
    }),
  );
}
