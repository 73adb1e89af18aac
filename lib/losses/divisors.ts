// What each framework divides the losses of the tokens by, and the options that set these divisors. The losses are computed
// from these tables, and docs/numerics.md shows them.

import { LossError } from '../base/errors.js';
import { AGGREGATION_HELP, aggregation, choice, integer, number } from '../base/option.js';
import type { CheckedOptions, LossAggMode } from '../base/options.js';
import type { Expression, ProgramSymbols } from '../program/expression.js';
import { lossMetric, type MetricExpression } from '../program/loss-program.js';

/** The divisor of a token's loss: in words, for the documentation, and as an expression. */
interface Divisor<Options> {
  readonly words: string;
  readonly of: (symbols: ProgramSymbols, options: Options) => Expression;
}
type Divisors<Mode extends string, Options> = Readonly<Record<Mode, Divisor<Options>>>;

/** The options that set the divisors of verl's aggregation modes. */
export const VERL_DIVISOR = {
  lossScaleFactor: number({
    above: 0,
    typical: [1, 64],
    help: 'seq-mean-token-sum-norm also divides by this; the row length T if absent',
  }),
  dpSize: integer({
    default: 1,
    atLeast: 1,
    help: 'the number of processes whose gradients are averaged; the loss is multiplied by it',
  }),
  batchNumTokens: integer({
    atLeast: 1,
    typical: [1, 200],
    help: 'token-mean divides by this; the number of unmasked tokens of the batch if absent',
  }),
  globalBatchSize: integer({
    atLeast: 1,
    typical: [1, 32],
    help: 'the modes seq-mean-… divide by this; the number of rows with unmasked tokens if absent',
  }),
};

/** The options of verl's losses whose aggregation mode can be chosen. */
export const VERL_AGGREGATION = { lossAggMode: aggregation('token-mean'), ...VERL_DIVISOR };

type VerlOptions = CheckedOptions<typeof VERL_DIVISOR>;

const FILLED = '(rows with unmasked tokens, or global_batch_size)';

// A batch can have rows without having tokens in any of them.
const filledRows = ({ n, constant, rowsSum, max }: ProgramSymbols, { globalBatchSize }: VerlOptions) =>
  globalBatchSize === undefined ? max(rowsSum(n.gt(0)), 1) : constant(globalBatchSize);

// The weight of a token's loss is dp_size divided by `of`.
const ofProcesses = (words: string, of: Divisor<VerlOptions>['of']): Divisor<VerlOptions> => ({
  words: `${words} / dp_size`,
  of,
});
const VERL: Divisors<LossAggMode, VerlOptions> = {
  'token-mean': ofProcesses('(N, or batch_num_tokens)', ({ tokens, constant }, { batchNumTokens }) =>
    batchNumTokens === undefined ? tokens : constant(batchNumTokens),
  ),
  'token-sum': ofProcesses('1', ({ constant }) => constant(1)),
  'seq-mean-token-sum': ofProcesses(FILLED, filledRows),
  'seq-mean-token-mean': ofProcesses(`${FILLED} · (n + 1e-8)`, (symbols, options) =>
    filledRows(symbols, options).mul(symbols.n.add(1e-8)),
  ),
  'seq-mean-token-sum-norm': ofProcesses(`${FILLED} · (T, or loss_scale_factor)`, (symbols, options) =>
    filledRows(symbols, options).mul(options.lossScaleFactor ?? symbols.rowLength),
  ),
};

/**
 * Returns the weight of a token's loss in verl's loss of the batch.
 * @throws LossError `ERR_INVALID_OPTION` if there are several processes and the mode needs a count of all of them that
 * the options do not give.
 */
export function verlWeight(
  symbols: ProgramSymbols,
  { lossAggMode, ...options }: CheckedOptions<typeof VERL_AGGREGATION>,
): Expression {
  const { dpSize } = options;
  const needed = { 'token-mean': 'batchNumTokens', 'token-sum': undefined } as const;
  const count = lossAggMode in needed ? needed[lossAggMode as keyof typeof needed] : 'globalBatchSize';
  if (dpSize > 1 && count !== undefined && options[count] === undefined)
    throw new LossError('ERR_INVALID_OPTION', {
      option: count,
      expected: (spell) => `a number, because ${spell('dpSize')} is ${dpSize}`,
      received: 'nothing',
    });
  return symbols.constant(dpSize).div(VERL[lossAggMode].of(symbols, options));
}

/** The option that sets how many steps the gradients of an optimizer step are summed over. */
export const ACCUMULATION = {
  gradientAccumulationSteps: integer({
    default: 1,
    atLeast: 1,
    typical: [1, 8],
    help: 'the loss is divided by this number of accumulation steps; dapo, cispo and vespo ignore it',
  }),
};

/** The option that sets the number of processes. */
export const PROCESSES = {
  numProcesses: integer({
    default: 1,
    atLeast: 1,
    typical: [1, 8],
    help: 'the number of processes whose gradients are averaged; the losses that are divided by numItemsInBatch are multiplied by it',
  }),
};

/** The options that set the divisors of the losses of TRL's GRPO trainer. */
export const TRL_DIVISOR = {
  numItemsInBatch: integer({
    atLeast: 0,
    typical: [0, 200],
    help: 'dapo, cispo and vespo are divided by this; the number of unmasked tokens of the batch if absent',
  }),
  ...PROCESSES,
  ...ACCUMULATION,
};

const COMPLETION_TOKENS = 512;

/** The option that sets the divisor of dr_grpo. */
export const COMPLETION_LENGTH = {
  maxCompletionLength: integer({
    default: COMPLETION_TOKENS,
    atLeast: 1,
    typical: [1, 512],
    help: 'dr_grpo divides by this number of tokens in each row',
  }),
};

/** The options of a TRL loss that set divisors. */
export type TrlOptions = CheckedOptions<typeof TRL_DIVISOR> &
  Partial<CheckedOptions<typeof COMPLETION_LENGTH>>;

/** The losses of TRL's GRPO trainer, each of which has an aggregation of its own. */
export type LossType = 'grpo' | 'bnpo' | 'dr_grpo' | 'dapo' | 'cispo' | 'sapo' | 'vespo' | 'luspo';

const ofSteps = (words: string, of: Divisor<TrlOptions>['of']): Divisor<TrlOptions> => ({
  words: `${words} · gradient_accumulation_steps`,
  of: (symbols, options) => of(symbols, options).mul(options.gradientAccumulationSteps),
});
const OF_ROW_TOKENS = ofSteps('B · max(n, 1)', ({ rows, n, max }) => rows.mul(max(n, 1)));
// The weight of a token's loss is num_processes divided by `of`, and 1 divided by it with the other divisors.
const OF_ITEMS: Divisor<TrlOptions> = {
  words: 'max(N or num_items_in_batch, 1) / num_processes',
  of: ({ tokens, max }, { numItemsInBatch }) => max(numItemsInBatch ?? tokens, 1),
};
const TRL: Divisors<LossType, TrlOptions> = {
  grpo: OF_ROW_TOKENS,
  sapo: OF_ROW_TOKENS,
  bnpo: ofSteps('max(N, 1)', ({ tokens, max }) => max(tokens, 1)),
  dr_grpo: ofSteps('B · max_completion_length', ({ rows }, { maxCompletionLength = COMPLETION_TOKENS }) =>
    rows.mul(maxCompletionLength),
  ),
  luspo: ofSteps('B', ({ rows }) => rows),
  dapo: OF_ITEMS,
  cispo: OF_ITEMS,
  vespo: OF_ITEMS,
};

/** Returns whether a loss of TRL is divided by the number of tokens of all processes and accumulation steps. */
export function isDividedByItems(type: LossType): boolean {
  return TRL[type] === OF_ITEMS;
}

/** Returns the weight of a token's loss in TRL's loss of the batch. */
export function trlWeight(symbols: ProgramSymbols, type: LossType, options: TrlOptions): Expression {
  const scale = isDividedByItems(type) ? options.numProcesses : 1;
  return symbols.constant(scale).div(TRL[type].of(symbols, options));
}

/** The option lossAggMode of losses that can only be averaged over tokens, or over tokens and then rows. */
export const MEANS = {
  lossAggMode: choice(['token-mean', 'seq-mean-token-mean'], {
    default: 'token-mean',
    help: AGGREGATION_HELP,
  }),
};

/** The option lossAggMode of losses that can only be averaged over tokens. */
export const TOKEN_MEAN = {
  lossAggMode: choice(['token-mean'], { default: 'token-mean', help: AGGREGATION_HELP }),
};

// The aggregation modes of the losses of papers.
const PAPERS: Divisors<LossAggMode, void> = {
  'token-mean': { words: 'N', of: ({ tokens }) => tokens },
  'token-sum': { words: '1', of: ({ constant }) => constant(1) },
  'seq-mean-token-sum': { words: 'B', of: ({ rows }) => rows },
  'seq-mean-token-mean': { words: 'B · max(n, 1)', of: ({ rows, n, max }) => rows.mul(max(n, 1)) },
  'seq-mean-token-sum-norm': { words: 'T', of: ({ rowLength }) => rowLength },
};

/**
 * Returns a loss of the family papers: that of a token including its weight in the batch, and its metrics.
 * The metric `pg_loss` is the whole loss.
 */
export function aggregated<M>(
  symbols: ProgramSymbols,
  loss: Expression,
  mode: LossAggMode,
  metrics: M,
): { loss: Expression; metrics: M & { pg_loss: MetricExpression } } {
  const divided = loss.div(PAPERS[mode].of(symbols));
  return { loss: divided, metrics: { ...metrics, pg_loss: lossMetric(symbols, divided) } };
}

// The aggregation modes of Trinity-RFT. native/engine/weights.h computes their weights.
const TRINITY: Readonly<Record<LossAggMode, { readonly words: string }>> = {
  'token-mean': { words: 'N + 1e-8' },
  'token-sum': { words: '1' },
  'seq-mean-token-sum': { words: 'B' },
  'seq-mean-token-mean': { words: 'B · (n + 1e-8)' },
  'seq-mean-token-sum-norm': { words: 'T + 1e-8' },
};

/** The divisors of a token's loss, for each framework and each of its aggregation modes or losses. */
export const DIVISORS: Readonly<Record<string, Readonly<Record<string, { readonly words: string }>>>> = {
  'Trinity-RFT': TRINITY,
  verl: VERL,
  TRL,
  papers: PAPERS,
};
