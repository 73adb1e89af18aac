// verl's rollout correction as expressions: its weights, the tokens that it keeps, and its metrics.
import type { Expression, ProgramSymbols } from '../../../program/expression.js';
import { type CorrectionMetrics, correctionMetrics } from './rollout-metrics.js';
import { type CorrectionOptions, importanceWeights, statisticsOf } from './rollout-weights.js';

/** A rollout correction. */
export interface RolloutCorrection {
  /** The weight that a token's loss is multiplied by. */
  readonly weight?: Expression | undefined;
  /** 1 for tokens that are kept, and 0 for others. */
  readonly kept?: Expression | undefined;
  readonly metrics: CorrectionMetrics;
}

/**
 * Returns the correction for the difference between a policy and the rollout.
 * @param policy the log-probability of a token under the policy, constant for the gradient.
 * @param rollout the one that the inference engine reported.
 * @throws LossError `ERR_INVALID_OPTION`
 */
export function rolloutCorrection(
  owner: string,
  symbols: ProgramSymbols,
  options: CorrectionOptions,
  policy: Expression,
  rollout: Expression,
): RolloutCorrection {
  const q = policy.sub(rollout);
  const weights = importanceWeights(owner, symbols, options, q);
  const statistics = statisticsOf(owner, symbols, options, q);
  const [first, ...others] = statistics.map(({ passed }) => passed);
  const kept = first && others.reduce((all, passed) => all.and(passed), first);
  const metrics = correctionMetrics(symbols, { policy, rollout, weights, statistics, kept });
  return { weight: weights?.weight, kept, metrics };
}
