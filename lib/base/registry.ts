// Registries, in which functions and algorithms are found by name. Those of Trinity-RFT have its names; those of another
// framework are named <framework>/<name>, and also <name> where that is free.
import type { FunctionDeclaration } from './declaration.js';
import { describeValue, guarded, LossError, unknownName } from './errors.js';
import { fromTrinityArgs, type TrinityArgs } from './options.js';

/** A class in a registry, from which the registry can create objects. */
export interface RegisteredClass<T> {
  // biome-ignore lint/suspicious/noExplicitAny: each class has its own options
  new (options: any): T;
  /** Returns the default arguments, which for this package's classes are Trinity-RFT's, under snake_case names. */
  defaultArgs(): TrinityArgs;
  /**
   * The declaration from which the class was made. All classes of this package have one; a class that a user registers
   * need not.
   */
  readonly declaration?: FunctionDeclaration;
}

/** A registry that finds classes of one kind by name. */
export class ClassRegistry<C> {
  readonly #kind: string;
  readonly #classes: Map<string, C>;
  // The names of classes by their names without the framework. The first class that takes a short name keeps it.
  readonly #shortNames = new Map<string, string>();

  /**
   * @param kind what the classes are, for error messages, such as 'policy loss'.
   * @param classes the classes that are registered from the start, by name.
   */
  constructor(kind: string, classes: Readonly<Record<string, C>> = {}) {
    this.#kind = kind;
    this.#classes = new Map(Object.entries(classes));
  }

  /**
   * Returns the class that is registered under a name, or for which this is an alias.
   * @throws LossError `ERR_UNKNOWN_NAME`. The message lists the known names and suggests the most similar one.
   */
  get(name: string): C {
    const cls = this.#find(name);
    if (!cls) throw unknownName('ERR_UNKNOWN_NAME', this.#kind, name, this.names(), this.aliases().keys());
    return cls;
  }

  #find(name: string): C | undefined {
    return this.#classes.get(name) ?? this.#classes.get(this.#shortNames.get(name) ?? name);
  }

  /** Returns all registered names, in the order of registration. Aliases are not among them. */
  names(): string[] {
    return [...this.#classes.keys()];
  }

  /**
   * Returns the aliases: names without their framework, such as gmpo for trl/gmpo, where no class is registered under
   * the short name. The keys are the aliases, and the values are the registered names.
   */
  aliases(): Map<string, string> {
    return new Map([...this.#shortNames].filter(([alias]) => !this.#classes.has(alias)));
  }

  /**
   * Registers a class under a name. A name of the form <framework>/<name> makes <name> an alias if that is free.
   * @param options.replace true replaces another class that is registered under the name, or for which it is an alias.
   * @throws LossError `ERR_INVALID_INPUT` if `name` is not a string or is taken, or if `cls` is not a class.
   */
  register(name: string, cls: C, options?: { replace?: boolean }): void {
    if (typeof name !== 'string' || typeof cls !== 'function')
      throw new LossError('ERR_INVALID_INPUT', {
        at: 'register',
        expected: 'a name and a class',
        received: `${describeValue(name)} and ${describeValue(cls)}`,
      });
    checkFree(this.#kind, name, this.#find(name), cls, options);
    this.#classes.set(name, cls);
    const short = name.slice(name.indexOf('/') + 1);
    if (short !== name && !this.#shortNames.has(short)) this.#shortNames.set(short, name);
  }
}

/**
 * Checks that a name may be registered.
 * @param kind the kind of what has the name, for the error message.
 * @param current what has the name so far; undefined if nothing has it.
 * @param next what is to have the name.
 * @throws LossError `ERR_INVALID_INPUT` if the name is taken by another one, unless `options.replace` is true.
 */
export function checkFree(
  kind: string,
  name: string,
  current: unknown,
  next: unknown,
  options: { replace?: boolean } | undefined,
): void {
  if (current === undefined || current === next || guarded(() => options?.replace === true)) return;
  throw new LossError('ERR_INVALID_INPUT', {
    at: 'register',
    expected: `a name that no other ${kind} has`,
    received: describeValue(name),
    hint: 'The option { replace: true } replaces the other one',
  });
}

// Used for a class that a user registered without a declaration: `clipRange` is then the default of `clipRangeLow` and
// of `clipRangeHigh`, as in Trinity-RFT.
const CLIP_ENDS: Readonly<Record<string, { defaultFrom?: string }>> = {
  clipRangeLow: { defaultFrom: 'clipRange' },
  clipRangeHigh: { defaultFrom: 'clipRange' },
};

/** A registry that creates functions of one kind by name. */
export class Registry<T> extends ClassRegistry<RegisteredClass<T>> {
  /**
   * Creates an object of the class with this name. The class's defaultArgs() supply the arguments that are not given.
   * Names of arguments may be in snake_case, as in Trinity-RFT, or in camelCase.
   * @param options.backend the training framework whose key names batches may use; 'verl' by default.
   * @throws LossError `ERR_UNKNOWN_NAME`, `ERR_INVALID_OPTION`
   */
  create(name: string, args: Readonly<Record<string, unknown>> = {}, options: { backend?: string } = {}): T {
    return createFunction(this.get(name), args, options);
  }
}

/** A registry that finds what several others have. What is registered in it goes to one of them. */
export class CombinedRegistry<T> extends Registry<T> {
  readonly #kind: string;
  readonly #parts: readonly Registry<T>[];
  readonly #partOf: (cls: RegisteredClass<T>) => Registry<T>;

  /**
   * @param kind what the classes are, for error messages.
   * @param parts the other registries. Of the same aliases, that of the first one counts.
   * @param partOf returns the registry to which a class belongs.
   */
  constructor(kind: string, parts: readonly Registry<T>[], partOf: (cls: RegisteredClass<T>) => Registry<T>) {
    super(kind);
    this.#kind = kind;
    this.#parts = parts;
    this.#partOf = partOf;
  }

  override get(name: string): RegisteredClass<T> {
    const full = this.aliases().get(name) ?? name;
    const part = this.#parts.find((each) => each.names().includes(full));
    if (!part) throw unknownName('ERR_UNKNOWN_NAME', this.#kind, name, this.names(), this.aliases().keys());
    return part.get(full);
  }

  override names(): string[] {
    return this.#parts.flatMap((part) => part.names());
  }

  override aliases(): Map<string, string> {
    const names = new Set(this.names());
    const all = this.#parts.toReversed().flatMap((part) => [...part.aliases()]);
    return new Map(all.filter(([alias]) => !names.has(alias)));
  }

  override register(name: string, cls: RegisteredClass<T>, options?: { replace?: boolean }): void {
    const part = guarded(() => this.#partOf(cls));
    const other = this.#parts.find((each) => each !== part && each.names().includes(name));
    checkFree(this.#kind, name, other?.get(name), cls, undefined);
    part.register(name, cls, options);
  }
}

/**
 * Creates an object of a class, as {@link Registry.create} does.
 * @throws LossError `ERR_UNKNOWN_NAME`, `ERR_INVALID_OPTION`
 */
export function createFunction<T>(
  cls: RegisteredClass<T>,
  args: Readonly<Record<string, unknown>>,
  options: { backend?: string },
): T {
  return guarded(() => {
    const defaults = fromTrinityArgs(cls.defaultArgs());
    const given = fromTrinityArgs(args ?? {});
    // If clipRange is given, it must replace the default values of clipRangeLow and clipRangeHigh.
    for (const [key, { defaultFrom }] of Object.entries(cls.declaration?.options ?? CLIP_ENDS))
      if (defaultFrom !== undefined && (given[defaultFrom] ?? undefined) !== undefined) delete defaults[key];
    return new cls({ ...defaults, ...given, ...options });
  }, 'ERR_INVALID_OPTION');
}
