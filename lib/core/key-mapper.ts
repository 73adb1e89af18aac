// Names of batch columns in different training frameworks.
import { describeValue, guarded, LossError, unknownName } from './errors.js';
import { toCamelCase } from './options.js';

const mappers = new Map<string, KeyMapper>();

/**
 * Translates between one training framework's column names and Trinity-RFT's. `verl` and `tinker` (which uses Trinity's
 * names) are built in; {@link KeyMapper.register} adds another.
 */
export class KeyMapper {
  readonly #toTrinity: ReadonlyMap<string, string>;
  readonly #fromTrinity: ReadonlyMap<string, string>;
  readonly #keys = new Map<string, readonly string[]>();

  /**
   * @param toTrinity the framework's name → Trinity's name, for the columns that differ.
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

  /** Returns Trinity's name for the framework's column, or the name itself if it is unknown. */
  toTrinity(key: string): string {
    return this.#toTrinity.get(key) ?? key;
  }

  /** Returns the framework's name for Trinity's column, or the name itself if it is unknown. */
  fromTrinity(key: string): string {
    return this.#fromTrinity.get(key) ?? key;
  }

  /** @internal Returns the keys that a column may have in a batch: camelCase, Trinity's and the framework's. */
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
   * @throws LossError `ERR_UNKNOWN_NAME`
   */
  static get(backend: string): KeyMapper {
    const mapper = mappers.get(backend);
    if (!mapper) throw unknownName('ERR_UNKNOWN_NAME', 'backend', backend, KeyMapper.names());
    return mapper;
  }

  /** Returns the names of all backends. */
  static names(): string[] {
    return [...mappers.keys()];
  }

  /**
   * Registers a backend, or replaces it. Existing objects keep the names with which they were created.
   * @throws LossError `ERR_INVALID_INPUT`
   */
  static register(backend: string, mapper: KeyMapper): void {
    if (typeof backend !== 'string' || !guarded(() => #toTrinity in Object(mapper)))
      throw new LossError('ERR_INVALID_INPUT', {
        at: 'register',
        expected: 'a name and a KeyMapper',
        received: `${describeValue(backend)} and ${describeValue(mapper)}`,
      });
    mappers.set(backend, mapper);
  }
}

KeyMapper.register(
  'verl',
  new KeyMapper({
    log_prob: 'logprob',
    old_log_probs: 'old_logprob',
    ref_log_prob: 'ref_logprob',
    response_mask: 'action_mask',
    advantages: 'advantages',
  }),
);
KeyMapper.register('tinker', new KeyMapper({}));
