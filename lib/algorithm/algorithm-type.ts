// The base class of all algorithms.

import { guarded, LossError } from '../base/errors.js';
import {
  type AlgorithmConfig,
  type CheckedConfig,
  checkConfigKeys,
  type ObjectiveConfig,
  TRAINER_KEYS,
} from './config.js';
import { Objective } from './objective.js';
import type { ObjectiveFunctions } from './objective-functions.js';

/**
 * The kind of experiences that an algorithm trains on: given answers ('sft'), answers with rewards or advantages
 * ('experience'), or preference pairs ('dpo').
 */
export type Schema = 'sft' | 'experience' | 'dpo';

/** A whole Trinity-RFT configuration, or only its `algorithm` section. The keys are Trinity-RFT's. */
export type TrinityConfig = Record<string, unknown>;

/** The class of an algorithm. The registry ALGORITHM_TYPE holds these classes. */
export type AlgorithmClass = typeof AlgorithmType;

/**
 * An algorithm: the functions that its objective consists of, and what the algorithm needs from a trainer. This class
 * is abstract, and all its members are static. Each algorithm is a frozen subclass of it.
 *
 * Source: Trinity-RFT, trinity.algorithm.algorithm.
 */
// biome-ignore lint/complexity/noStaticOnlyClass: Trinity's algorithms are classes of constants
export abstract class AlgorithmType {
  /** The algorithm's name in Trinity-RFT, such as 'grpo'. */
  static readonly algorithmName: string;
  /** A description of the algorithm in one line, without a full stop. */
  static readonly summary: string;
  /** The papers (such as 'arXiv 2402.03300') and implementations that the algorithm follows. */
  static readonly source: readonly string[];
  /** Whether the algorithm trains a critic. */
  static readonly useCritic: boolean;
  /** Whether the algorithm needs the log-probabilities of a reference policy. */
  static readonly useReference: boolean;
  /**
   * Whether the trainer computes the advantages, on its own batches. If not, they are computed when rollouts arrive.
   */
  static readonly computeAdvantageInTrainer: boolean;
  /** Whether a trainer may move rows from one micro-batch to another. */
  static readonly canBalanceBatch: boolean;
  /** The kind of experiences that the algorithm trains on. */
  static readonly schema: Schema;
  /** @internal The object that defaultConfig() returns. */
  static readonly defaults: Readonly<AlgorithmConfig>;

  /**
   * Returns the algorithm's default configuration: the names of its functions, and how it samples. The object is
   * frozen.
   */
  static defaultConfig(): Readonly<AlgorithmConfig> {
    return this.defaults;
  }

  /**
   * Checks a configuration and returns it, with corrections where the algorithm needs them. Some corrections emit a
   * warning. The given object is not changed.
   * @param config a whole configuration, or its `algorithm` section.
   * @throws LossError `ERR_INVALID_OPTION` for values that the algorithm does not support.
   */
  static checkConfig(config: TrinityConfig): TrinityConfig {
    return config;
  }

  /**
   * Returns the algorithm's objective, which computes the loss, the metrics and the gradients of batches.
   * @param config the keys and arguments that differ from the algorithm's defaults.
   * @throws LossError `ERR_INVALID_OPTION` for unknown keys and arguments, `ERR_UNKNOWN_NAME` for unknown functions,
   * `ERR_INVALID_INPUT` if this is not the class of an algorithm.
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
