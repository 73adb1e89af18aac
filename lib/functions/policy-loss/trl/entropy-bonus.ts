// The entropy bonus of TRL's GRPO trainer.
import type { CheckedOptions } from '../../../core/options.js';
import type { Expression, ProgramSymbols } from '../../../program/expression.js';
import type { Has, MetricExpression } from '../expression-loss.js';

/** The options of the bonus. */
export const BONUS = {
  entropyCoef: {
    type: 'number',
    default: 0,
    typical: [0, 0.05],
    help: 'the coefficient of the mean entropy, which is subtracted from the loss',
  },
  useAdaptiveEntropy: {
    type: 'boolean',
    default: false,
    help: 'whether the bonus only applies at a low entropy, and the metric entropy_coef is the coefficient for the next step',
  },
  entropyCoefMin: {
    type: 'number',
    default: 0,
    typical: [0, 0.01],
    help: 'the smallest coefficient for the next step',
  },
  entropyCoefMax: {
    type: 'number',
    default: 1,
    typical: [0.05, 1],
    help: 'the largest coefficient for the next step',
  },
  entropyCoefDelta: {
    type: 'number',
    default: 0.005,
    atLeast: 0,
    typical: [0.001, 0.01],
    help: 'how much the coefficient changes from step to step',
  },
  entropyTarget: {
    type: 'number',
    default: 0.2,
    typical: [0.1, 2],
    help: 'the mean entropy up to which the coefficient increases, and above which it decreases',
  },
  lastWorldEntropy: {
    type: 'number',
    typical: [0, 2],
    help: 'the mean entropy of the last step; the bonus applies if it is at most entropyTarget; infinite if absent',
  },
} as const;

/** The declarations of the bonus's metrics. */
export const BONUS_METRICS = {
  policy_loss: { unit: 'loss', when: 'with an entropy bonus' },
  entropy_coef: {
    unit: 'coefficient',
    when: 'with an entropy bonus, when the whole batch is computed in one call',
  },
} as const;

/** The declaration of the metric of the entropies. */
export const ENTROPY_METRIC = {
  entropy: { unit: 'nats per token', when: 'if the batch has entropies' },
} as const;

/** Returns the metric of the entropies. */
export function entropyMetric({ H }: ProgramSymbols, has: Has) {
  return { entropy: has('entropy') ? { token: H } : undefined };
}

/** Returns whether a loss has a bonus. */
export function hasBonus({ entropyCoef, useAdaptiveEntropy }: BonusOptions): boolean {
  return entropyCoef !== 0 || useAdaptiveEntropy;
}

type BonusOptions = CheckedOptions<typeof BONUS>;

/**
 * Subtracts the entropy bonus from the loss of a token.
 * @param loss the loss of a token, including its weight in the batch.
 * @param weight the weight of a token's entropy in the bonus.
 * @param scale by what the metric policy_loss differs from the loss without the bonus.
 * @param isTop the condition that a token counts in the bonus; all do if it is absent.
 */
export function withBonus(
  symbols: ProgramSymbols,
  options: BonusOptions,
  loss: Expression,
  weight: Expression,
  scale: number,
  isTop: Expression | undefined,
): { loss: Expression; metrics: Record<keyof typeof BONUS_METRICS, MetricExpression | undefined> } {
  const { H, tokens, select } = symbols;
  const { entropyCoef, useAdaptiveEntropy, lastWorldEntropy, entropyTarget } = options;
  if (!hasBonus(options)) return { loss, metrics: { policy_loss: undefined, entropy_coef: undefined } };
  const entropy = isTop ? select(isTop, H, 0) : H;
  const applies = !useAdaptiveEntropy || (lastWorldEntropy ?? Number.POSITIVE_INFINITY) <= entropyTarget;
  return {
    loss: applies ? loss.sub(entropy.mul(entropyCoef).mul(weight)) : loss,
    metrics: {
      // A metric of tokens is divided by N + 1e-8.
      policy_loss: { token: loss.mul(tokens.add(1e-8)).mul(scale) },
      entropy_coef: { batch: useAdaptiveEntropy ? nextCoefficient(symbols, options, isTop) : entropyCoef },
    },
  };
}

// Returns the coefficient for the next step.
function nextCoefficient(
  { H, max, select, batchMean, batchSum }: ProgramSymbols,
  { entropyCoef, entropyCoefMin, entropyCoefMax, entropyCoefDelta, entropyTarget }: BonusOptions,
  isTop: Expression | undefined,
): Expression {
  const mean = isTop ? batchSum(select(isTop, H, 0)).div(max(batchSum(isTop), 1)) : batchMean(H);
  return select(
    mean.le(entropyTarget),
    Math.min(entropyCoef + entropyCoefDelta, entropyCoefMax),
    Math.max(entropyCoef - entropyCoefDelta, entropyCoefMin),
  );
}
