// Option schemas: they declare the options of a function as data. The checks, defaults and TypeScript types of the
// options are derived from them.
import { describeValue, guarded, LossError, unknownOption } from './errors.js';

/** A value that an option can have in Trinity-RFT's configuration files. */
export type TrinityValue = number | boolean | string | readonly (number | string)[] | null | undefined;
/** Arguments of a function, under Trinity-RFT's names (snake_case). */
export type TrinityArgs = Record<string, TrinityValue>;

/**
 * How the losses of all tokens are combined into one number. The batch has B rows of T tokens; masked tokens never
 * count.
 */
export type LossAggMode =
  /** The mean over all tokens of the batch. */
  | 'token-mean'
  /** The sum over all tokens of the batch. */
  | 'token-sum'
  /** The sum over the tokens of each row, averaged over the rows. */
  | 'seq-mean-token-sum'
  /** The mean over the tokens of each row, averaged over the rows. */
  | 'seq-mean-token-mean'
  /** The sum over all tokens of the batch, divided by T. */
  | 'seq-mean-token-sum-norm';

/** All values of {@link LossAggMode}. */
export const LOSS_AGG_MODES = [
  'token-mean',
  'token-sum',
  'seq-mean-token-sum',
  'seq-mean-token-mean',
  'seq-mean-token-sum-norm',
] as const satisfies readonly LossAggMode[];

/** The properties that an option of any type may declare. */
export interface AnyOption {
  /** One line for help texts and the documentation, without a full stop. */
  readonly help: string;
  /**
   * The option's value in defaultArgs(), where it differs from `default`. null means that defaultArgs() contains the
   * option with the value null.
   */
  readonly trinity?: TrinityValue;
  /** false if defaultArgs() omits the option although it has a default, because Trinity-RFT omits it too. */
  readonly listed?: false;
  /** The name of another option. Its value is used if this option has neither a value nor a default. */
  readonly defaultFrom?: string;
  /** The option must have a value: its own, or the value of the option that `defaultFrom` names. */
  readonly required?: true;
  /** The name of a boolean option. If that option is true, this option must have a value. */
  readonly requiredWith?: string;
  /** Whether setting the option can make results depend on random draws. */
  readonly random?: true;
}

/** An option whose value is a finite number. */
export interface NumberOption extends AnyOption {
  /** 'integer' allows only whole numbers. */
  readonly type: 'number' | 'integer';
  /** The value that the constructor uses if the option is absent. */
  readonly default?: number;
  /** The smallest valid value. */
  readonly atLeast?: number;
  /** Every valid value is greater than this. */
  readonly above?: number;
  /** The largest valid value. */
  readonly atMost?: number;
  /** Whether null is a valid value. The constructor then takes null as undefined, and not as the default. */
  readonly nullable?: true;
  /** The name of another option. Its value is the smallest valid value of this option. */
  readonly atLeastOption?: string;
  /** The smallest and the largest value that are usual in training. Property tests draw values from this range. */
  readonly typical?: readonly [number, number];
}

/** An option whose value is true or false. */
export interface BooleanOption extends AnyOption {
  /** Marks the option as a boolean. */
  readonly type: 'boolean';
  /** The value that the constructor uses if the option is absent. */
  readonly default: boolean;
  /** The valid values that other options have if this one is true. undefined stands for an absent option. */
  readonly needs?: Needs;
}

/** The valid values of options: `{ option: values }`. */
export type Needs = Readonly<Record<string, readonly (string | boolean | undefined)[]>>;

/** An option whose value is one of several words. */
export interface ChoiceOption extends AnyOption {
  /** Marks the option as a choice between words. */
  readonly type: 'choice';
  /** The words that are valid values. */
  readonly choices: readonly string[];
  /** The value that the constructor uses if the option is absent. */
  readonly default?: string;
  /** The choices that are valid only with certain values of other options: `{ choice: { option: values } }`. */
  readonly needs?: Readonly<Record<string, Needs>>;
}

/** An option whose value is a text in a format of its own. A number is valid too, and stands for its digits. */
export interface TextOption extends AnyOption {
  /** Marks the option as a text. */
  readonly type: 'text';
  /** The value that the constructor uses if the option is absent. */
  readonly default?: string;
  /** Values that are usual in training, from which property tests draw. null means that the option is absent. */
  readonly typical: readonly (string | null)[];
}

/** An option whose value is a list of at most 65,536 texts or finite numbers. */
export interface ListOption extends AnyOption {
  /** Marks the option as a list. */
  readonly type: 'list';
  /** What the list holds. */
  readonly of: 'text' | 'number';
  /** The texts that are valid. One of them alone is valid too. */
  readonly choices?: readonly string[];
  /** The value that the constructor uses if the option is absent. */
  readonly default?: readonly (string | number)[];
  /** Values that are usual in training, from which property tests draw. null means that the option is absent. */
  readonly typical: readonly (readonly (string | number)[] | null)[];
}

/** An option whose value is an aggregation mode. */
export interface AggregationOption extends AnyOption {
  /** Marks the option as an aggregation mode. */
  readonly type: 'aggregation';
  /** The value that the constructor uses if the option is absent. */
  readonly default?: LossAggMode;
}

/** The declaration of one option of any type. */
export type OptionDeclaration =
  | NumberOption
  | BooleanOption
  | ChoiceOption
  | TextOption
  | ListOption
  | AggregationOption;

/** The declarations of a function's options, under the options' camelCase names. */
export type OptionSchema = Readonly<Record<string, OptionDeclaration>>;

/**
 * The declaration of an option whose type carries only what other types need. Its values have the type T. H says whether a
 * checked option has a value, may lack one, or must be given one; F is the option from which it otherwise takes its value.
 */
export interface Option<T, H extends 'value' | 'maybe' | 'needed' = 'value', F extends string = never>
  extends AnyOption {
  // biome-ignore lint/suspicious/noExplicitAny: an option of any type
  readonly type: any;
  /** Exists only in types. */
  readonly '~type': readonly [T, H, F];
}

/** The type of an option's values. */
export type ValueOf<O> = O extends { readonly '~type': readonly [infer T, ...unknown[]] }
  ? T
  : O extends { type: 'number' | 'integer' }
    ? number
    : O extends { type: 'boolean' }
      ? boolean
      : O extends { type: 'text' }
        ? string | number
        : O extends { type: 'list'; of: infer E }
          ? readonly (E extends 'text' ? string : number)[]
          : O extends { type: 'aggregation' }
            ? LossAggMode
            : O extends { type: 'choice'; choices: readonly (infer C)[] }
              ? C
              : never;

/** The options that a caller passes. Each may be absent, undefined or null. */
export type PassedOptions<S> = { -readonly [K in keyof S]?: ValueOf<S[K]> | null | undefined };

/**
 * Options as {@link readOptions} returns them: checked and completed with defaults. Only an option that is not required
 * and has no default, or that is nullable, may be undefined.
 */
export type CheckedOptions<S> = {
  readonly [K in keyof S]: S[K] extends
    | { nullable: true }
    | { readonly '~type': readonly [unknown, 'maybe', unknown] }
    ? ValueOf<S[K]> | undefined
    : S[K] extends
          | { default: unknown }
          | { defaultFrom: string }
          | { required: true }
          | { readonly '~type': unknown }
      ? ValueOf<S[K]>
      : ValueOf<S[K]> | undefined;
};

/** A camelCase name in snake_case: `clip_range_low` for `clipRangeLow`. */
export type SnakeCase<S extends string> = S extends `${infer First}${infer Rest}`
  ? `${First extends Lowercase<First> ? First : `_${Lowercase<First>}`}${SnakeCase<Rest>}`
  : '';

/** A snake_case name in camelCase: `clipRangeLow` for `clip_range_low`. */
export type CamelCase<S extends string> = S extends `${infer First}_${infer Rest}`
  ? `${First}${Capitalize<CamelCase<Rest>>}`
  : S;

/** Converts a snake_case name, such as `clip_range_low`, to camelCase: `clipRangeLow`. */
export function toCamelCase(key: string): string {
  return key.replace(/(?<!_)_+([a-z0-9])/g, (_, letter: string) => letter.toUpperCase());
}

/** Converts a camelCase name, such as `clipRangeLow`, to snake_case: `clip_range_low`. */
export function toSnakeCase(key: string): string {
  return key.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}

/** Converts the names of arguments to camelCase. The given names may be in snake_case or camelCase. */
export function fromTrinityArgs(args: Readonly<Record<string, unknown>>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(args).map(([key, value]) => [toCamelCase(key), value]));
}

/**
 * Returns the default arguments of a function with these options, in snake_case. They are the same as from
 * default_args() in Trinity-RFT.
 */
export function defaultArgsOf(schema: OptionSchema): TrinityArgs {
  const args: TrinityArgs = {};
  for (const [key, option] of Object.entries(schema)) {
    const value = 'trinity' in option ? option.trinity : option.default;
    if (value !== undefined && option.listed !== false) args[toSnakeCase(key)] = value;
  }
  return args;
}

/** Returns the value that create() of a registry gives a required option: its own, or that of another option. */
export function createDefault(schema: OptionSchema, key: string): TrinityValue {
  const { trinity, defaultFrom } = schema[key]!;
  return trinity ?? (defaultFrom === undefined ? undefined : schema[defaultFrom]?.trinity) ?? undefined;
}

/**
 * Checks the options that a caller passed and completes them with defaults. null counts as absent, as None does in
 * Python, except for a nullable option.
 * @param owner the class whose name begins the error messages.
 * @param given the caller's options.
 * @param further options that are accepted in addition to those of the schema, and read elsewhere.
 * @throws LossError `ERR_INVALID_OPTION` that names the option, its valid values and the given value.
 */
export function readOptions<S extends OptionSchema>(
  owner: string,
  schema: S,
  given: unknown,
  further: readonly string[] = ['backend'],
): CheckedOptions<S> {
  if (given !== undefined && (given === null || typeof given !== 'object'))
    throw new LossError('ERR_INVALID_OPTION', {
      at: owner,
      expected: 'an object of options',
      received: describeValue(given),
    });
  return guarded(() => {
    const source = (given ?? {}) as Record<string, unknown>;
    for (const key of Object.keys(source))
      if (!further.includes(key) && !Object.hasOwn(schema, key))
        throw unknownOption(owner, key, Object.keys(schema));
    const checked: Record<string, unknown> = {};
    for (const [key, option] of Object.entries(schema)) {
      const given = source[key];
      const value = given ?? undefined;
      if (value !== undefined && !isValid(option, value)) throw invalidOption(owner, key, option, value);
      const isNull = given === null && 'nullable' in option && option.nullable;
      checked[key] = isNull
        ? undefined
        : (value ?? option.default ?? (option.defaultFrom && checked[option.defaultFrom]));
    }
    for (const key of Object.keys(schema))
      checkRelations(owner, key, schema, checked, (source[key] ?? undefined) !== undefined);
    return checked as CheckedOptions<S>;
  }, 'ERR_INVALID_OPTION');
}

/** Returns the backend from the options that a caller passed, or 'verl' if they name none. */
export function backendOf(given: unknown): string {
  return guarded(() => (given as { backend?: string } | undefined)?.backend ?? 'verl', 'ERR_INVALID_OPTION');
}

// The largest number of elements of a list. An array can claim to have 2^32 - 1.
const MAX_LIST = 65_536;

function isValid(option: OptionDeclaration, value: unknown): boolean {
  switch (option.type) {
    case 'boolean':
      return typeof value === 'boolean';
    case 'choice':
      return option.choices.includes(value as string);
    case 'text':
      return typeof value === 'string' || Number.isFinite(value);
    case 'list': {
      const { choices } = option;
      const isElement = (each: unknown) =>
        choices
          ? choices.includes(each as string)
          : option.of === 'text'
            ? typeof each === 'string'
            : Number.isFinite(each);
      if (choices && typeof value === 'string') return isElement(value);
      // findIndex() visits the holes of an array, unlike every().
      return (
        Array.isArray(value) && value.length <= MAX_LIST && value.findIndex((each) => !isElement(each)) < 0
      );
    }
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
  schema: OptionSchema,
  checked: Readonly<Record<string, unknown>>,
  isGiven: boolean,
): void {
  const option = schema[key]!;
  const value = checked[key];
  if (value === undefined) {
    if (option.required) {
      const says = (spell: (option: string) => string) =>
        option.defaultFrom === undefined ? '' : `, directly or from ${spell(option.defaultFrom)}`;
      const hasDefault = createDefault(schema, key) !== undefined;
      const hint = hasDefault ? 'Only create() of a registry has a default for it' : undefined;
      throw invalidOption(owner, key, option, undefined, says, hint);
    }
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
  // Checks only a value that the caller gave. A default is valid whatever the other option's value.
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
  for (const [other, needed] of Object.entries(needsOf(option, value)))
    if (!needed.includes(checked[other] as string | boolean | undefined))
      throw new LossError('ERR_INVALID_OPTION', {
        at: owner,
        option: key,
        expected: (spell) =>
          `${spell(other)} to be ${needed.map((each) => each ?? 'absent').join(' or ')} for ${value}`,
        received: checked[other] === undefined ? 'nothing' : describeValue(checked[other]),
      });
}

/** Returns the values that other options must have if an option has a certain value. */
export function needsOf(option: OptionDeclaration, value: unknown): Needs {
  if (option.type === 'boolean' && value === true) return option.needs ?? {};
  return (option.type === 'choice' && option.needs?.[value as string]) || {};
}

function invalidOption(
  owner: string,
  key: string,
  option: OptionDeclaration,
  value: unknown,
  addition: (spell: (option: string) => string) => string = () => '',
  hint?: string,
): LossError {
  return new LossError('ERR_INVALID_OPTION', {
    at: owner,
    option: key,
    expected: (spell) => validValues(option) + addition(spell),
    received: value === undefined ? 'nothing' : describeValue(value),
    hint,
  });
}

/** Returns a description of an option's valid values, such as 'a number from 0 to 1'. */
export function validValues(option: OptionDeclaration): string {
  switch (option.type) {
    case 'boolean':
      return 'true or false';
    case 'choice':
      return option.choices.length === 1 ? `'${option.choices[0]}'` : `one of ${option.choices.join(', ')}`;
    case 'text':
      return 'a text or a number';
    case 'list':
      if (option.choices) return `one of ${option.choices.join(', ')}, or a list of them`;
      return option.of === 'text' ? 'a list of texts' : 'a list of numbers';
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
 * Converts checked options to the form that native code takes: under snake_case names, and without aggregation modes,
 * which native code takes separately.
 */
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
