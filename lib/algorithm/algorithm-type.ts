// What all algorithms have in common.

import { guarded, LossError } from '../core/errors.js';
import {
  type AlgorithmConfig,
  type CheckedConfig,
  checkConfigKeys,
  type ObjectiveConfig,
  TRAINER_KEYS,
} from './config.js';
import { Objective } from './objective.js';

/** What an algorithm's experiences look like. */
export type Schema = 'sft' | 'experience' | 'dpo';

/**
 * A whole Trinity-RFT configuration, or its `algorithm` section alone, as far as checkConfig() looks at it; all keys are
 * Trinity's.
 */
export type TrinityConfig = Record<string, unknown>;

/** An algorithm's class: what ALGORITHM_TYPE holds. */
export type AlgorithmClass = typeof AlgorithmType;

/**
 * An algorithm: which functions it is made of, and what it asks of a trainer. Abstract and without objects; each
 * algorithm is a frozen subclass, named as in Trinity-RFT.
 *
 * Source: Trinity-RFT, trinity.algorithm.algorithm.
 */
// biome-ignore lint/complexity/noStaticOnlyClass: Trinity's algorithms are classes of constants
export abstract class AlgorithmType {
  /** Trinity-RFT's name of it. */
  static readonly algorithmName: string;
  /** Whether it trains a critic. */
  static readonly useCritic: boolean;
  /** Whether it needs the reference policy's log-probabilities. */
  static readonly useReference: boolean;
  /** Whether its advantages are computed on the trainer's batches, and not as rollouts arrive. */
  static readonly computeAdvantageInTrainer: boolean;
  /** Whether rows may be moved between micro-batches. */
  static readonly canBalanceBatch: boolean;
  /** What its experiences look like. */
  static readonly schema: Schema;
  /** @internal What defaultConfig() gives. */
  static readonly defaults: Readonly<AlgorithmConfig>;

  /** The functions that it is made of and how often it samples, frozen. */
  static defaultConfig(): Readonly<AlgorithmConfig> {
    return this.defaults;
  }

  /**
   * A configuration as the algorithm needs it: checked, and corrected with a warning where it can be. The given one is
   * left as it is.
   * @param config a whole configuration, or its `algorithm` section.
   * @throws LossError `ERR_INVALID_OPTION` for what the algorithm cannot do.
   */
  static checkConfig(config: TrinityConfig): TrinityConfig {
    return config;
  }

  /**
   * The algorithm on batches.
   * @throws LossError `ERR_INVALID_OPTION` for unknown keys and arguments, `ERR_UNKNOWN_NAME` for unknown functions.
   */
  static objective(config: ObjectiveConfig = {}): Objective {
    if (this.defaults === undefined)
      throw new LossError('ERR_INVALID_INPUT', `${this.name} is no algorithm: expected a class of one`);
    return guarded(() => {
      const given = checkConfigKeys(`objective of ${this.algorithmName}`, config, [
        'backend',
        ...TRAINER_KEYS,
      ]);
      const checked = this.checkConfig({ ...objectiveKeys(this.defaults), ...given });
      return new Objective(this.algorithmName, checked as CheckedConfig & { policy_loss_fn: string });
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
