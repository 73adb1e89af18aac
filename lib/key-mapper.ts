// Which training framework calls a column what.
import { unknownName } from './errors.js';

const mappers = new Map<string, KeyMapper>();

/**
 * The names of one training framework's batch columns beside Trinity-RFT's own. Two are built in: `verl` and
 * `tinker` (which uses Trinity's names); {@link KeyMapper.register} adds another.
 */
export class KeyMapper {
  readonly #toTrinity: ReadonlyMap<string, string>;
  readonly #fromTrinity: ReadonlyMap<string, string>;

  /** @param toTrinity the framework's name → Trinity's name, of the columns that differ. */
  constructor(toTrinity: Readonly<Record<string, string>>) {
    this.#toTrinity = new Map(Object.entries(toTrinity));
    this.#fromTrinity = new Map(Object.entries(toTrinity).map(([theirs, trinitys]) => [trinitys, theirs]));
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

  /** Makes a backend known, or replaces it. Objects that exist keep the names they were made with. */
  static register(backend: string, mapper: KeyMapper): void {
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
