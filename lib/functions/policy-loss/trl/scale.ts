// What TRL's losses divide the sum over all tokens by.
import type { CheckedOptions } from '../../../core/options.js';
import type { Expression, ProgramSymbols } from '../../../program/expression.js';

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
    default: 512,
    atLeast: 1,
    typical: [1, 512],
    help: 'dr_grpo divides by this number of tokens in each row',
  },
} as const;

/** The losses of TRL's GRPO trainer. */
export type LossType = 'grpo' | 'bnpo' | 'dr_grpo' | 'dapo' | 'cispo' | 'sapo' | 'vespo' | 'luspo';

type ScaleOptions = CheckedOptions<typeof SCALE> & Partial<CheckedOptions<typeof COMPLETION_LENGTH>>;
type Weight = (symbols: ProgramSymbols, options: ScaleOptions) => Expression;

/** Makes a weight from what the loss is divided by in each accumulation step. */
function dividedBy(divisor: Weight): Weight {
  return (symbols, options) =>
    symbols.constant(1).div(divisor(symbols, options).mul(options.gradientAccumulationSteps));
}

const byRowTokens = dividedBy(({ rows, n, max }) => rows.mul(max(n, 1)));
const byItems: Weight = ({ tokens, constant, max }, { numItemsInBatch, numProcesses }) =>
  constant(numProcesses).div(max(numItemsInBatch ?? tokens, 1));

/** The weight of a token in each loss. */
const WEIGHTS: Record<LossType, Weight> = {
  grpo: byRowTokens,
  sapo: byRowTokens,
  bnpo: dividedBy(({ tokens, max }) => max(tokens, 1)),
  dr_grpo: dividedBy(({ rows }, { maxCompletionLength }) =>
    rows.mul(maxCompletionLength ?? COMPLETION_LENGTH.maxCompletionLength.default),
  ),
  luspo: dividedBy(({ rows }) => rows),
  dapo: byItems,
  cispo: byItems,
  vespo: byItems,
};

/** Returns the weight of a token's loss in the loss of the batch. */
export function weightOf(symbols: ProgramSymbols, type: LossType, options: ScaleOptions): Expression {
  return WEIGHTS[type](symbols, options);
}

/** Returns whether a loss is divided by the number of tokens of all processes and accumulation steps. */
export function isDividedByItems(type: LossType): boolean {
  return WEIGHTS[type] === byItems;
}

/** Returns the weight of a token in a mean over all unmasked tokens of an accumulation step. */
export function meanWeight(symbols: ProgramSymbols, options: ScaleOptions): Expression {
  return WEIGHTS.bnpo(symbols, options);
}
