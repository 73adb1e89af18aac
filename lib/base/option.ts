// Functions that declare options: one for each type of options, and like() for an option that resembles another one.
import {
  type BooleanOption,
  type ChoiceOption,
  type ListOption,
  type LossAggMode,
  type NumberOption,
  type Option,
  readOptions,
  type TextOption,
} from './options.js';

// The properties that decide the type of an option.
type Deciding = 'type' | 'choices' | 'default' | 'defaultFrom' | 'required' | 'nullable';
type Decided<D, F, R, N> = {
  readonly default?: D;
  readonly defaultFrom?: F;
  readonly required?: R;
  readonly nullable?: N;
};
type Has<D, F = never, R = never, N = never> = [N] extends [never]
  ? [R] extends [never]
    ? [D | F] extends [never]
      ? 'maybe'
      : 'value'
    : 'needed'
  : 'maybe';

/** Declares an option whose value is a finite number. */
export const number = numbers('number');
/** Declares an option whose value is a whole number. */
export const integer = numbers('integer');

function numbers(type: 'number' | 'integer') {
  return <
    D extends number = never,
    const F extends string = never,
    R extends true = never,
    N extends true = never,
  >(
    given: Omit<NumberOption, Deciding> & Decided<D, F, R, N>,
  ): Option<number, Has<D, F, R, N>, F> => ({ type, ...given }) as never;
}

/** Declares an option that is true or false. */
export function flag(given: Omit<BooleanOption, 'type'>): Option<boolean> {
  return { type: 'boolean', ...given } as never;
}

/** Declares an option whose value is one of several words. */
export function choice<const C extends string, D extends NoInfer<C> = never>(
  choices: readonly C[],
  given: Omit<ChoiceOption, Deciding> & { readonly default?: D },
): Option<C, Has<D>> {
  return { type: 'choice', choices, ...given } as never;
}

/** Declares an option whose value is a text in a format of its own, or a number. */
export function text<D extends string = never>(
  given: Omit<TextOption, Deciding> & { readonly default?: D },
): Option<string | number, Has<D>> {
  return { type: 'text', ...given } as never;
}

/** Declares an option whose value is a list of texts or numbers. */
export function list<E extends 'text' | 'number'>(
  of: E,
  given: Omit<ListOption, Deciding | 'of'>,
): Option<readonly (E extends 'text' ? string : number)[], 'maybe'> {
  return { type: 'list', of, ...given } as never;
}

/** Declares an option whose value is one of several words, or a list of them. */
export function choices<const C extends string>(
  among: readonly C[],
  given: Omit<ListOption, Deciding | 'of' | 'choices'> & { readonly default: readonly NoInfer<C>[] },
): Option<C | readonly C[]> {
  return { type: 'list', of: 'text', choices: among, ...given } as never;
}

/** Describes the option lossAggMode. */
export const AGGREGATION_HELP = 'how the losses of the tokens are combined into one number';

/** Declares an option whose value is an aggregation mode: `lossAggMode` with a default, or one that defaults to another option. */
export function aggregation(
  given: LossAggMode | { readonly defaultFrom: string; readonly help: string },
): Option<LossAggMode> {
  const declared = typeof given === 'string' ? { default: given, help: AGGREGATION_HELP } : given;
  return { type: 'aggregation', ...declared } as never;
}

/** Declares an option that differs from another one only in properties that do not decide its type. */
export function like<T, H extends 'value' | 'maybe' | 'needed', F extends string>(
  option: Option<T, H, F>,
  given: Partial<Omit<NumberOption, Deciding> & Pick<ChoiceOption, 'needs'>> &
    (H extends 'value' ? { readonly default?: NoInfer<T> } : unknown),
): Option<T, H, F> {
  return { ...option, ...given };
}

/**
 * Checks an aggregation mode that was passed as an argument of a call. undefined means 'token-mean'.
 * @throws LossError `ERR_INVALID_OPTION` for an unknown mode.
 */
export function checkLossAggMode(owner: string, mode: unknown): LossAggMode {
  return readOptions(owner, { lossAggMode: aggregation('token-mean') }, { lossAggMode: mode }).lossAggMode;
}
