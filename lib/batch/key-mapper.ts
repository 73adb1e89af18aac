// Translates the names of batch columns between training frameworks.
import { describeValue, guarded, LossError, unknownName } from '../base/errors.js';
import { toCamelCase } from '../base/options.js';
import { checkFree } from '../base/registry.js';
import { INPUT_NAMES, inputRow } from './columns.js';

const mappers = new Map<string, KeyMapper>();

/**
 * Translates between the column names of one training framework and of Trinity-RFT. Mappers for two backends are built
 * in: `verl`, and `tinker`, which uses Trinity-RFT's names. {@link KeyMapper.register} adds others.
 */
export class KeyMapper {
  readonly #toTrinity: ReadonlyMap<string, string>;
  readonly #fromTrinity: ReadonlyMap<string, string>;
  readonly #keys = new Map<string, readonly string[]>();

  /**
   * @param toTrinity the columns whose names differ: an object with the framework's names as keys and Trinity-RFT's
   * names as values.
   * @throws LossError `ERR_INVALID_INPUT` if a name is not a string.
   */
  constructor(toTrinity: Readonly<Record<string, string>>) {
    if (toTrinity === null || typeof toTrinity !== 'object')
      throw new LossError('ERR_INVALID_INPUT', {
        at: 'KeyMapper',
        expected: 'an object of column names',
        received: describeValue(toTrinity),
      });
    const pairs = guarded(() => Object.entries(toTrinity));
    for (const [theirs, trinitys] of pairs)
      if (typeof trinitys !== 'string')
        throw new LossError('ERR_INVALID_INPUT', {
          at: 'KeyMapper',
          key: theirs,
          expected: 'the name of a column',
          received: describeValue(trinitys),
        });
    this.#toTrinity = new Map(pairs);
    this.#fromTrinity = new Map(pairs.map(([theirs, trinitys]) => [trinitys, theirs]));
  }

  /**
   * Translates the framework's name of a column to Trinity-RFT's. A name that the mapper does not know is returned
   * unchanged.
   */
  toTrinity(key: string): string {
    return this.#toTrinity.get(key) ?? key;
  }

  /**
   * Translates Trinity-RFT's name of a column to the framework's. A name that the mapper does not know is returned
   * unchanged.
   */
  fromTrinity(key: string): string {
    return this.#fromTrinity.get(key) ?? key;
  }

  /**
   * @internal Returns the keys under which a batch may have a column: in camelCase, as in Trinity-RFT, and as in the
   * framework.
   */
  keys(name: string): readonly string[] {
    let keys = this.#keys.get(name);
    if (keys === undefined) {
      keys = [...new Set([toCamelCase(name), name, this.fromTrinity(name)])];
      this.#keys.set(name, keys);
    }
    return keys;
  }

  /**
   * Returns the mapper of a backend.
   * @throws LossError `ERR_UNKNOWN_NAME` if no backend has this name.
   */
  static get(backend: string): KeyMapper {
    const mapper = mappers.get(backend);
    if (!mapper) throw unknownName('ERR_UNKNOWN_NAME', 'backend', backend, KeyMapper.names());
    return mapper;
  }

  /** Returns the names of all registered backends. */
  static names(): string[] {
    return [...mappers.keys()];
  }

  /**
   * Registers a mapper for a backend.
   * @param options.replace true replaces another mapper that the backend has. Losses and other objects that exist already
   * continue to use the mapper with which they were created.
   * @throws LossError `ERR_INVALID_INPUT` if the name is not a string or is taken, or if the mapper is not a KeyMapper.
   */
  static register(backend: string, mapper: KeyMapper, options?: { replace?: boolean }): void {
    if (typeof backend !== 'string' || !guarded(() => #toTrinity in Object(mapper)))
      throw new LossError('ERR_INVALID_INPUT', {
        at: 'register',
        expected: 'a name and a KeyMapper',
        received: `${describeValue(backend)} and ${describeValue(mapper)}`,
      });
    checkFree('backend', backend, mappers.get(backend), mapper, options);
    mappers.set(backend, mapper);
  }
}

const verl = INPUT_NAMES.flatMap((name) => {
  const theirs = inputRow(name).verl;
  return theirs === undefined ? [] : [[theirs, name] as const];
});
KeyMapper.register('verl', new KeyMapper(Object.fromEntries(verl)));
KeyMapper.register('tinker', new KeyMapper({}));
