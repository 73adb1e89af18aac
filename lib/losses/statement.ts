// What the statements of all kinds of functions share: the type of the classes that they make, the order in which the
// classes are registered, and the types of the registries.
import type { FunctionDeclaration } from '../base/declaration.js';
import { LossError } from '../base/errors.js';
import {
  defaultArgsOf,
  type Option,
  type PassedOptions,
  type SnakeCase,
  type TrinityArgs,
} from '../base/options.js';
import type { ClassRegistry, RegisteredClass, Registry } from '../base/registry.js';

/**
 * The class that a statement makes: of functions F, with the declaration D, the name N, and the options O in addition to
 * those of all functions of its kind.
 */
export interface FunctionClass<F, D, N extends string, O, Common> {
  /** @throws LossError `ERR_INVALID_OPTION` for an invalid option, `ERR_UNKNOWN_NAME` for an unknown backend. */
  new (...options: Arguments<O, Common>): F;
  /** The statement from which the class was made. */
  readonly declaration: D & { readonly name: N };
  /** Returns Trinity-RFT's default arguments, with their names in snake_case. */
  defaultArgs(): TrinityArgs;
}

// The arguments of a constructor. They may be left out if no option is required.
type Arguments<O, Common> = [NeededBy<O>] extends [never]
  ? [options?: PassedOptions<O> & Common]
  : [options: Either<PassedOptions<O> & Common, SourceOf<O>, NeededBy<O>>];

type NeededBy<O> = {
  [K in keyof O]: O[K] extends { '~type': readonly [unknown, 'needed', unknown] } ? K : never;
}[keyof O];

// The options from which the required ones take their values.
type SourceOf<O> = {
  // biome-ignore lint/suspicious/noExplicitAny: an option of any type
  [K in NeededBy<O>]: O[K] extends Option<any, any, infer F>
    ? [F] extends [never]
      ? K
      : Extract<F, keyof O>
    : K;
}[NeededBy<O>];

/** The options O with a value of A, or else with values of all of B. The two differ in A, so an editor can tell them apart. */
export type Either<O, A extends keyof O, B extends keyof O> =
  | With<O, A>
  | (With<O, B> & { [K in Exclude<A, B>]?: null | undefined });
type With<O, A extends keyof O> = O & { [K in A]-?: NonNullable<O[K]> };

/** The options of a function: `OptionsOf<typeof PPOPolicyLossFn>`. */
export type OptionsOf<C> = C extends new (...args: infer A) => unknown ? NonNullable<A[0]> : never;

/** The metrics of a function: `MetricsOf<typeof PPOPolicyLossFn>`. */
export type MetricsOf<C> = C extends new (
  ...args: never
) => infer F
  ? F extends Computing<'calculateKlLossSync', infer M> | Computing<'computeSync', infer M>
    ? M
    : never
  : never;
type Computing<Method extends string, M> = Readonly<Record<Method, (...args: never) => { metrics: M }>>;

const ORDER = new Map<FunctionDeclaration, number>();

/**
 * Makes the class of a statement.
 * @param args returns what the constructor of the base class takes, from the name of the class that is constructed and
 * the options that a caller passed.
 */
export function classOf<A extends unknown[]>(
  Base: abstract new (...args: A) => object,
  declaration: FunctionDeclaration,
  args: (owner: string, options: object) => [...A],
) {
  ORDER.set(declaration, ORDER.size);
  return class extends (Base as unknown as new (...args: A) => object) {
    static readonly declaration = declaration;

    constructor(options: object = {}) {
      super(...args(new.target.name, options));
    }

    static defaultArgs(): TrinityArgs {
      return defaultArgsOf(declaration.options);
    }
  };
}

/** Registers the classes of a table, which is a module of statements, in their order. */
export function register<F>(registry: Registry<F>, ...tables: readonly object[]): void {
  for (const table of tables) {
    const classes = Object.values(table).filter((value) => ORDER.has(value?.declaration));
    classes.sort((a, b) => ORDER.get(a.declaration)! - ORDER.get(b.declaration)!);
    for (const cls of classes) registry.register(cls.declaration.name, cls);
  }
}

/** Calls a formula. An error that does not say where it occurred gets the place `at`. */
export function located<T>(at: string, formula: () => T): T {
  try {
    return formula();
  } catch (error) {
    if (error instanceof LossError && error.at === undefined) throw error.with({ at });
    throw error;
  }
}

/** The classes of a table, and what create() takes for each, by their names in the registry and their aliases. */
export type ByName<Table> = Named<Table> & {
  [N in keyof Named<Table> as Alias<N, keyof Named<Table>>]: Named<Table>[N];
};
type Named<Table> = {
  [K in keyof Table as Table[K] extends { readonly declaration: { readonly name: infer N extends string } }
    ? N
    : never]: { class: Table[K]; args: ArgsOf<OptionsOf<Table[K]>> };
};
type Alias<N, Names> = N extends `${string}/${infer Short}` ? Exclude<Short, Names> : never;

/** Arguments of create(), under camelCase or snake_case names. Those without a default in defaultArgs() are required. */
export type ArgsOf<O> = (Record<never, never> extends O ? O : { [K in keyof O]?: O[K] | null }) & {
  [K in keyof O as SnakeCase<K & string>]?: O[K] | null;
} & Needed<O, NeededIn<O>>;

// The options that must be given in every alternative of O. One that has a default in create() may be absent in some.
type NeededIn<O> = { [K in keyof O]-?: Record<never, never> extends Pick<O, K> ? never : K }[keyof O];
type Needed<O, K extends keyof O> = [K] extends [never]
  ? unknown
  : { [N in K]: O[N] } | { [N in K as SnakeCase<N & string>]: O[N] };

/** A name that is known, or any other one. Editors offer the known ones. */
export type NameIn<Names> = (keyof Names & string) | (string & {});

/** A registry that knows this package's functions by name. Functions of one's own have other names. */
export interface NamedRegistry<F, Names> extends ClassRegistry<RegisteredClass<F>> {
  /**
   * Returns the class that is registered under a name, or for which this is an alias.
   * @throws LossError `ERR_UNKNOWN_NAME`. The message lists the known names and suggests the most similar one.
   */
  get<N extends keyof Names>(name: N): In<Names[N], 'class'>;
  /** Returns the class that is registered under another name. */
  get(name: string): RegisteredClass<F>;
  /**
   * Creates an object of the class with this name. The class's defaultArgs() supply the arguments that are not given.
   * Names of arguments may be in snake_case, as in Trinity-RFT, or in camelCase.
   * @param args the arguments; see the options of the class.
   * @param options.backend the training framework whose key names batches may use; 'verl' by default.
   * @throws LossError `ERR_UNKNOWN_NAME`, `ERR_INVALID_OPTION`
   */
  create<N extends NameIn<Names>>(
    name: N,
    ...further: N extends keyof Names
      ? Further<In<Names[N], 'args'>>
      : Further<Readonly<Record<string, unknown>>>
  ): N extends keyof Names ? InstanceOf<In<Names[N], 'class'>> : F;
}
type Further<A> =
  Record<never, never> extends A
    ? [args?: A, options?: { backend?: string }]
    : [args: A, options?: { backend?: string }];
type InstanceOf<C> = C extends new (...args: never) => infer F ? F : never;
type In<E, K extends string> = K extends keyof E ? E[K] : never;
