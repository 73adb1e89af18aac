// What TRL's losses divide the sum over all tokens by.
import type { CheckedOptions } from '../../../core/options.js';
import type { Expression, ProgramSymbols } from '../../../program/expression.js';
import { COMPLETION_TOKENS, type LossType, OF_ITEMS, TRL_AGGREGATIONS } from '../aggregation.js';

/** The option that sets how many steps the gradients of an optimizer step are summed over. */
export const ACCUMULATION = {
  gradientAccumulationSteps: {
    type: 'integer',
    default: 1,
    atLeast: 1,
    typical: [1, 8],
    help: 'the loss is divided by this number of accumulation steps; dapo, cispo and vespo ignore it',
  },
} as const;

/** The option that sets the number of processes. */
export const PROCESSES = {
  numProcesses: {
    type: 'integer',
    default: 1,
    atLeast: 1,
    typical: [1, 8],
    help: 'the number of processes whose gradients are averaged; the losses that are divided by numItemsInBatch are multiplied by it',
  },
} as const;

/** The options that set the divisors of the losses of TRL's GRPO trainer. */
export const SCALE = {
  numItemsInBatch: {
    type: 'integer',
    atLeast: 0,
    typical: [0, 200],
    help: 'dapo, cispo and vespo are divided by this; the number of unmasked tokens of the batch if absent',
  },
  ...PROCESSES,
  ...ACCUMULATION,
} as const;

/** The option that sets the divisor of dr_grpo. */
export const COMPLETION_LENGTH = {
  maxCompletionLength: {
    type: 'integer',
    default: COMPLETION_TOKENS,
    atLeast: 1,
    typical: [1, 512],
    help: 'dr_grpo divides by this number of tokens in each row',
  },
} as const;

type ScaleOptions = CheckedOptions<typeof SCALE> & Partial<CheckedOptions<typeof COMPLETION_LENGTH>>;

/** Returns the weight of a token's loss in the loss of the batch. */
export function weightOf(symbols: ProgramSymbols, type: LossType, options: ScaleOptions): Expression {
  return TRL_AGGREGATIONS[type].weight(symbols, options);
}

/** Returns whether a loss is divided by the number of tokens of all processes and accumulation steps. */
export function isDividedByItems(type: LossType): boolean {
  return TRL_AGGREGATIONS[type] === OF_ITEMS;
}

/** Returns the weight of a token in a mean over all unmasked tokens of an accumulation step. */
export function meanWeight(symbols: ProgramSymbols, options: ScaleOptions): Expression {
  return TRL_AGGREGATIONS.bnpo.weight(symbols, options);
}
