// verl's rollout correction.
import type { MetricsOf } from '../../../core/declaration.js';
import type { Expression, ProgramSymbols } from '../../../program/expression.js';
import { CORRECTION_FN, correctionClass } from '../correction-fn.js';
import { CORRECTION_METRICS, type CorrectionMetrics, correctionMetrics } from './rollout-metrics.js';
import {
  type CorrectionOptions,
  importanceWeights,
  ROLLOUT_CORRECTION,
  statisticsOf,
} from './rollout-weights.js';

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

/** The rollout correction of verl: importance weights of tokens or rows, and rejection by statistics. */
export class VerlRolloutCorrectionFn extends correctionClass(
  {
    name: 'verl/rollout_correction',
    summary: 'weights exp(old_logprob − rollout_logprob), of tokens or rows, and rejection by statistics',
    details: [
      'rollout_is chooses the weights: one bound truncates them, and two bounds set weights outside to 0.',
      'rollout_rs lists the statistics by which tokens or rows are rejected. Tokens that pass all of them are kept.',
    ],
    source: ['arXiv 2110.00641', 'arXiv 2512.23075', 'verl'],
    reads: ['old_logprob', 'rollout_logprob', 'action_mask'],
    options: {
      ...ROLLOUT_CORRECTION,
      bypassMode: {
        type: 'boolean',
        default: false,
        help: 'whether logprob takes the place of old_logprob',
      },
    },
    metrics: CORRECTION_METRICS,
    numerics: {
      range: 'old_logprob − rollout_logprob from −20 to 20',
      outside: 'the weights clip the log-ratio to this range',
    },
  },
  (symbols, { bypassMode, ...options }, owner) => {
    const { lp, old, rollout, sg } = symbols;
    return rolloutCorrection(owner, symbols, options, bypassMode ? sg(lp) : old, rollout);
  },
) {
  static {
    CORRECTION_FN.register('verl/rollout_correction', VerlRolloutCorrectionFn);
  }
}

/** Options of {@link VerlRolloutCorrectionFn}. */
export type VerlRolloutCorrectionOptions = NonNullable<
  ConstructorParameters<typeof VerlRolloutCorrectionFn>[0]
>;
/** Metrics of {@link VerlRolloutCorrectionFn}. */
export type VerlRolloutCorrectionMetrics = MetricsOf<
  (typeof VerlRolloutCorrectionFn)['declaration']['metrics']
>;
