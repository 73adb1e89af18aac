// The base class of all algorithms.

import { guarded, LossError } from '../core/errors.js';
import {
  type AlgorithmConfig,
  type CheckedConfig,
  checkConfigKeys,
  type ObjectiveConfig,
  TRAINER_KEYS,
} from './config.js';
import { Objective, type ObjectiveFunctions } from './objective.js';

/** The kind of experiences that an algorithm trains on. */
export type Schema = 'sft' | 'experience' | 'dpo';

/** A whole Trinity-RFT configuration, or its `algorithm` section alone, under Trinity's keys. */
export type TrinityConfig = Record<string, unknown>;

/** An algorithm's class, as ALGORITHM_TYPE holds it. */
export type AlgorithmClass = typeof AlgorithmType;

/**
 * An algorithm: the functions that make its objective, and what it needs from a trainer. The class is abstract and all
 * its members are static. Each algorithm is a frozen subclass with its name in Trinity-RFT.
 *
 * Source: Trinity-RFT, trinity.algorithm.algorithm.
 */
// biome-ignore lint/complexity/noStaticOnlyClass: Trinity's algorithms are classes of constants
export abstract class AlgorithmType {
  /** Its name in Trinity-RFT. */
  static readonly algorithmName: string;
  /** One line about it, without a full stop. */
  static readonly summary: string;
  /** The papers ('arXiv 2402.03300') and implementations that it follows. */
  static readonly source: readonly string[];
  /** Whether it trains a critic. */
  static readonly useCritic: boolean;
  /** Whether it needs the reference policy's log-probabilities. */
  static readonly useReference: boolean;
  /** Whether its advantages are computed on the trainer's batches instead of when rollouts arrive. */
  static readonly computeAdvantageInTrainer: boolean;
  /** Whether rows may be moved between micro-batches. */
  static readonly canBalanceBatch: boolean;
  /** The kind of experiences that it trains on. */
  static readonly schema: Schema;
  /** @internal The result of defaultConfig(). */
  static readonly defaults: Readonly<AlgorithmConfig>;

  /** Returns the names of its functions, and how it samples. The object is frozen. */
  static defaultConfig(): Readonly<AlgorithmConfig> {
    return this.defaults;
  }

  /**
   * Checks a configuration and returns it, corrected if necessary. Some corrections emit a warning. The given object is
   * not changed.
   * @param config a whole configuration, or its `algorithm` section.
   * @throws LossError `ERR_INVALID_OPTION` for values that the algorithm does not support.
   */
  static checkConfig(config: TrinityConfig): TrinityConfig {
    return config;
  }

  /**
   * Returns the algorithm's objective, which computes batches.
   * @throws LossError `ERR_INVALID_OPTION` for unknown keys and arguments, `ERR_UNKNOWN_NAME` for unknown functions.
   */
  static objective(config: ObjectiveConfig = {}): Objective {
    if (this.defaults === undefined)
      throw new LossError('ERR_INVALID_INPUT', {
        at: 'objective',
        expected: 'the class of an algorithm',
        received: `class ${this.name}`,
      });
    return guarded(() => {
      const given = checkConfigKeys(`objective of ${this.algorithmName}`, config, [
        'backend',
        ...TRAINER_KEYS,
      ]);
      const checked = this.checkConfig({ ...objectiveKeys(this.defaults), ...given });
      return new Objective(this.algorithmName, checked as ObjectiveFunctions);
    }, 'ERR_INVALID_OPTION');
  }
}

function objectiveKeys({
  repeat_times,
  sample_strategy,
  ...functions
}: Readonly<AlgorithmConfig>): CheckedConfig {
  return functions;
}
