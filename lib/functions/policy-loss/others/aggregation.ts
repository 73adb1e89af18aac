// How the losses of the tokens become one number, in the losses that the other frameworks and papers define.
import type { LossAggMode } from '../../../core/options.js';
import type { Expression, ProgramSymbols } from '../../../program/expression.js';
import { lossMetric } from '../../../program/loss-program.js';
import { OTHER_AGGREGATIONS } from '../aggregation.js';
import type { MetricExpression } from '../expression-loss.js';

const HELP = 'how the losses of the tokens are combined into one number';

/** The option lossAggMode of losses that can only be averaged over tokens, or over tokens and then rows. */
export const MEANS = {
  lossAggMode: {
    type: 'choice',
    choices: ['token-mean', 'seq-mean-token-mean'],
    default: 'token-mean',
    help: HELP,
  },
} as const;

/** The option lossAggMode of losses that can only be averaged over tokens. */
export const TOKEN_MEAN = {
  lossAggMode: { type: 'choice', choices: ['token-mean'], default: 'token-mean', help: HELP },
} as const;

/** Returns the loss of a token including its weight in the batch, and the metric whose value is the whole loss. */
export function aggregated(
  symbols: ProgramSymbols,
  loss: Expression,
  mode: LossAggMode,
): { loss: Expression; pg_loss: MetricExpression } {
  const weighted = loss.div(OTHER_AGGREGATIONS[mode].of(symbols));
  return { loss: weighted, pg_loss: lossMetric(symbols, weighted) };
}
