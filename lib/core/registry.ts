// Registries: functions and algorithms by their names in Trinity-RFT.
import type { FunctionDeclaration } from './declaration.js';
import { describeValue, guarded, LossError, unknownName } from './errors.js';
import { fromTrinityArgs, type TrinityArgs } from './options.js';

/** A class that a registry can create objects of. */
export interface RegisteredClass<T> {
  // biome-ignore lint/suspicious/noExplicitAny: each class has its own options
  new (options: any): T;
  /** Trinity-RFT's default arguments, snake_case. */
  defaultArgs(): TrinityArgs;
  /** The function's declaration; the package's own classes have one. */
  readonly declaration?: FunctionDeclaration;
}

/** Classes of one kind by name. */
export class ClassRegistry<C> {
  readonly #kind: string;
  readonly #classes: Map<string, C>;

  /** @param kind what the registry holds, such as 'policy loss'; error messages use it. */
  constructor(kind: string, classes: Readonly<Record<string, C>> = {}) {
    this.#kind = kind;
    this.#classes = new Map(Object.entries(classes));
  }

  /**
   * Returns the class with that name.
   * @throws LossError `ERR_UNKNOWN_NAME`, with the known names and the nearest one.
   */
  get(name: string): C {
    const cls = this.#classes.get(name);
    if (!cls) throw unknownName('ERR_UNKNOWN_NAME', this.#kind, name, this.names());
    return cls;
  }

  /** Returns all names, in the order of registration. */
  names(): string[] {
    return [...this.#classes.keys()];
  }

  /**
   * Registers a class under a name. It replaces an earlier class of that name.
   * @throws LossError `ERR_INVALID_INPUT`
   */
  register(name: string, cls: C): void {
    if (typeof name !== 'string' || typeof cls !== 'function')
      throw new LossError('ERR_INVALID_INPUT', {
        at: 'register',
        expected: 'a name and a class',
        received: `${describeValue(name)} and ${describeValue(cls)}`,
      });
    this.#classes.set(name, cls);
  }
}

// Options of a user's class, which has no declaration, that follow Trinity's convention for clip ranges.
const CLIP_ENDS: Readonly<Record<string, { defaultFrom?: string }>> = {
  clipRangeLow: { defaultFrom: 'clipRange' },
  clipRangeHigh: { defaultFrom: 'clipRange' },
};

/** Functions of one kind by name. */
export class Registry<T> extends ClassRegistry<RegisteredClass<T>> {
  /**
   * Creates an object of the class with that name. The class's defaultArgs() complete the given arguments, which may be
   * written in Trinity's snake_case or in camelCase.
   * @param options.backend the framework whose key names batches may use; 'verl' by default.
   * @throws LossError `ERR_UNKNOWN_NAME`, `ERR_INVALID_OPTION`
   */
  create(name: string, args: Readonly<Record<string, unknown>> = {}, options: { backend?: string } = {}): T {
    const cls = this.get(name);
    return guarded(() => {
      const defaults = fromTrinityArgs(cls.defaultArgs());
      const given = fromTrinityArgs(args ?? {});
      // A given clipRange overrides Trinity's defaults for clipRangeLow and clipRangeHigh.
      for (const [key, { defaultFrom }] of Object.entries(cls.declaration?.options ?? CLIP_ENDS))
        if (defaultFrom !== undefined && (given[defaultFrom] ?? undefined) !== undefined)
          delete defaults[key];
      return new cls({ ...defaults, ...given, ...options });
    }, 'ERR_INVALID_OPTION');
  }
}
