// The registry of algorithms.
import { describeValue, LossError, unknownName } from '../core/errors.js';
import type { AlgorithmClass } from './algorithm-type.js';
import { ALGORITHM_CLASSES } from './algorithms.js';

/** The registry of algorithms, by name. */
export class AlgorithmRegistry {
  readonly #classes: Map<string, AlgorithmClass>;

  constructor(classes: Readonly<Record<string, AlgorithmClass>>) {
    this.#classes = new Map(Object.entries(classes));
  }

  /**
   * Returns an algorithm's class.
   * @throws LossError `ERR_UNKNOWN_NAME` with the known names and the nearest one.
   */
  get(name: string): AlgorithmClass {
    const cls = this.#classes.get(name);
    if (!cls) throw unknownName('ERR_UNKNOWN_NAME', 'algorithm', name, this.names());
    return cls;
  }

  /** Returns all names. */
  names(): string[] {
    return [...this.#classes.keys()];
  }

  /** Registers a class under a name. It replaces an algorithm that has this name. */
  register(name: string, cls: AlgorithmClass): void {
    if (typeof name !== 'string' || typeof cls !== 'function')
      throw new LossError('ERR_INVALID_INPUT', {
        at: 'register',
        expected: 'a name and a class',
        received: `${describeValue(name)} and ${describeValue(cls)}`,
      });
    this.#classes.set(name, cls);
  }
}

/** The algorithms by Trinity-RFT's names. */
export const ALGORITHM_TYPE = new AlgorithmRegistry(ALGORITHM_CLASSES);
