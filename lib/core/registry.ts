// Functions by Trinity-RFT's names.
import { describeValue, guarded, LossError, unknownName } from './errors.js';
import { fromTrinityArgs, type TrinityArgs } from './options.js';

/** A class that a registry can make objects of. */
export interface RegisteredClass<T> {
  // biome-ignore lint/suspicious/noExplicitAny: each class has options of its own
  new (options: any): T;
  /** Trinity-RFT's default arguments, snake_case. */
  defaultArgs(): TrinityArgs;
}

/** Functions of one kind by name. */
export class Registry<T> {
  readonly #kind: string;
  readonly #classes = new Map<string, RegisteredClass<T>>();

  /** @param kind what the registry holds, as error messages call it. */
  constructor(kind: string, classes: Readonly<Record<string, RegisteredClass<T>>>) {
    this.#kind = kind;
    for (const [name, cls] of Object.entries(classes)) this.#classes.set(name, cls);
  }

  /**
   * The class of that name.
   * @throws LossError `ERR_UNKNOWN_NAME`, with the names there are and the nearest.
   */
  get(name: string): RegisteredClass<T> {
    const cls = this.#classes.get(name);
    if (!cls) throw unknownName('ERR_UNKNOWN_NAME', this.#kind, name, this.names());
    return cls;
  }

  /**
   * An object of that name: the class's defaultArgs() completed by the given ones, which may be written in
   * Trinity's snake_case or in camelCase.
   * @param options.backend whose names the batch's keys may have; 'verl' unless said otherwise.
   * @throws LossError `ERR_UNKNOWN_NAME`, `ERR_INVALID_OPTION`
   */
  create(name: string, args: Readonly<Record<string, unknown>> = {}, options: { backend?: string } = {}): T {
    const cls = this.get(name);
    return guarded(() => {
      const defaults = fromTrinityArgs(cls.defaultArgs());
      const given = fromTrinityArgs(args ?? {});
      // A clip range that was asked for is not to be overruled by the default of one of its ends.
      if (given.clipRange !== undefined && given.clipRange !== null) {
        delete defaults.clipRangeLow;
        delete defaults.clipRangeHigh;
      }
      return new cls({ ...defaults, ...given, ...options });
    }, 'ERR_INVALID_OPTION');
  }

  /** The names there are. */
  names(): string[] {
    return [...this.#classes.keys()];
  }

  /** Makes a class of one's own known under a name, or replaces the one that has it. */
  register(name: string, cls: RegisteredClass<T>): void {
    if (typeof name !== 'string' || typeof cls !== 'function')
      throw new LossError(
        'ERR_INVALID_INPUT',
        `register: expected a name and a class, not ${describeValue(name)} and ${describeValue(cls)}`,
      );
    this.#classes.set(name, cls);
  }
}
