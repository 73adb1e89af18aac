// The registry of algorithms.
import { ClassRegistry } from '../base/registry.js';
import type { AlgorithmClass } from './algorithm-type.js';
import { ALGORITHM_CLASSES } from './algorithms.js';

/** A registry of algorithm classes by their names. */
export class AlgorithmRegistry extends ClassRegistry<AlgorithmClass> {
  constructor(classes: Readonly<Record<string, AlgorithmClass>>) {
    super('algorithm', classes);
  }
}

/** All algorithms, by their names in Trinity-RFT. */
export const ALGORITHM_TYPE = new AlgorithmRegistry(ALGORITHM_CLASSES);
