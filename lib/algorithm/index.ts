// The registry of algorithms.
import { describeValue, LossError, unknownName } from '../core/errors.js';
import type { AlgorithmClass } from './algorithm-type.js';
import { ALGORITHM_CLASSES } from './algorithms.js';

/** Algorithms by name. */
export class AlgorithmRegistry {
  readonly #classes: Map<string, AlgorithmClass>;

  constructor(classes: Readonly<Record<string, AlgorithmClass>>) {
    this.#classes = new Map(Object.entries(classes));
  }

  /**
   * The algorithm of that name.
   * @throws LossError `ERR_UNKNOWN_NAME`, with the names there are and the nearest.
   */
  get(name: string): AlgorithmClass {
    const cls = this.#classes.get(name);
    if (!cls) throw unknownName('ERR_UNKNOWN_NAME', 'algorithm', name, this.names());
    return cls;
  }

  /** The names there are. */
  names(): string[] {
    return [...this.#classes.keys()];
  }

  /** Makes an algorithm of one's own known under a name, or replaces the one that has it. */
  register(name: string, cls: AlgorithmClass): void {
    if (typeof name !== 'string' || typeof cls !== 'function')
      throw new LossError(
        'ERR_INVALID_INPUT',
        `register: expected a name and a class, not ${describeValue(name)} and ${describeValue(cls)}`,
      );
    this.#classes.set(name, cls);
  }
}

/** The algorithms by Trinity-RFT's names. */
export const ALGORITHM_TYPE = new AlgorithmRegistry(ALGORITHM_CLASSES);
