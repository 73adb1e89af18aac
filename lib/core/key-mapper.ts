// Which training framework calls a column what.
import { describeValue, guarded, LossError, unknownName } from './errors.js';

const mappers = new Map<string, KeyMapper>();

/**
 * The names of one training framework's batch columns beside Trinity-RFT's own. Two are built in: `verl` and
 * `tinker` (which uses Trinity's names); {@link KeyMapper.register} adds another.
 */
export class KeyMapper {
  readonly #toTrinity: ReadonlyMap<string, string>;
  readonly #fromTrinity: ReadonlyMap<string, string>;

  /**
   * @param toTrinity the framework's name → Trinity's name, of the columns that differ.
   * @throws LossError `ERR_INVALID_INPUT` for what are no names.
   */
  constructor(toTrinity: Readonly<Record<string, string>>) {
    if (toTrinity === null || typeof toTrinity !== 'object')
      throw new LossError(
        'ERR_INVALID_INPUT',
        `expected an object with the names of columns, not ${describeValue(toTrinity)}`,
      );
    const pairs = guarded(() => Object.entries(toTrinity));
    for (const [theirs, trinitys] of pairs)
      if (typeof trinitys !== 'string')
        throw new LossError(
          'ERR_INVALID_INPUT',
          `${theirs}: expected the name of a column, not ${describeValue(trinitys)}`,
        );
    this.#toTrinity = new Map(pairs);
    this.#fromTrinity = new Map(pairs.map(([theirs, trinitys]) => [trinitys, theirs]));
  }

  /** Trinity's name of the framework's column; a name it does not know stays as it is. */
  toTrinity(key: string): string {
    return this.#toTrinity.get(key) ?? key;
  }

  /** The framework's name of Trinity's column; a name it does not know stays as it is. */
  fromTrinity(key: string): string {
    return this.#fromTrinity.get(key) ?? key;
  }

  /**
   * The mapper of a backend.
   * @throws LossError `ERR_UNKNOWN_NAME`
   */
  static get(backend: string): KeyMapper {
    const mapper = mappers.get(backend);
    if (!mapper) throw unknownName('ERR_UNKNOWN_NAME', 'backend', backend, KeyMapper.names());
    return mapper;
  }

  /** The backends there are. */
  static names(): string[] {
    return [...mappers.keys()];
  }

  /**
   * Makes a backend known, or replaces it. Objects that exist keep the names they were made with.
   * @throws LossError `ERR_INVALID_INPUT`
   */
  static register(backend: string, mapper: KeyMapper): void {
    if (typeof backend !== 'string' || !guarded(() => #toTrinity in Object(mapper)))
      throw new LossError(
        'ERR_INVALID_INPUT',
        `register: expected a name and a KeyMapper, not ${describeValue(backend)} and ${describeValue(mapper)}`,
      );
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
