// The registry of algorithms.
import { ClassRegistry } from '../base/registry.js';
import type { AlgorithmClass } from './algorithm-type.js';
import { ALGORITHM_CLASSES } from './algorithms.js';

/** A registry of algorithm classes by their names. */
export class AlgorithmRegistry extends ClassRegistry<AlgorithmClass> {
  constructor(classes: Readonly<Record<string, AlgorithmClass>>) {
    super('algorithm', classes);
  }

  /**
   * Returns the class of an algorithm.
   * @throws LossError `ERR_UNKNOWN_NAME`. The message lists the known names and suggests the most similar one.
   */
  override get<N extends keyof typeof ALGORITHM_CLASSES>(name: N): (typeof ALGORITHM_CLASSES)[N];
  /** Returns the class of another algorithm, which was registered. */
  override get(name: string): AlgorithmClass;
  override get(name: string): AlgorithmClass {
    return super.get(name);
  }
}

/** All algorithms, by their names in Trinity-RFT. */
export const ALGORITHM_TYPE = new AlgorithmRegistry(ALGORITHM_CLASSES);
