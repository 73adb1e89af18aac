// The registry of algorithms.
import { ClassRegistry } from '../core/registry.js';
import type { AlgorithmClass } from './algorithm-type.js';
import { ALGORITHM_CLASSES } from './algorithms.js';

/** Algorithms by name. */
export class AlgorithmRegistry extends ClassRegistry<AlgorithmClass> {
  constructor(classes: Readonly<Record<string, AlgorithmClass>>) {
    super('algorithm', classes);
  }
}

/** The algorithms by Trinity-RFT's names. */
export const ALGORITHM_TYPE = new AlgorithmRegistry(ALGORITHM_CLASSES);
