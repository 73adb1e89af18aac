// What each framework divides the losses of the tokens by. The losses are computed from this table, and docs/numerics.md
// shows it.
import type { LossAggMode } from '../../core/options.js';
import type { Expression, ProgramSymbols } from '../../program/expression.js';

/** How the losses of the tokens become one number. */
export interface Aggregation<Options> {
  /** What a token's loss is divided by, in words, for the documentation. */
  readonly divisor: string;
  /** Returns the weight of a token's loss in the loss of the batch. */
  readonly weight: (symbols: ProgramSymbols, options: Options) => Expression;
}

/** The options of verl that set divisors. */
export interface VerlCounts {
  readonly dpSize: number;
  readonly batchNumTokens: number | undefined;
  readonly globalBatchSize: number | undefined;
  readonly lossScaleFactor: number | undefined;
}

// A batch can have rows without having tokens in any of them.
const filledRows = (
  { n, constant, rowsSum, max }: ProgramSymbols,
  { globalBatchSize }: VerlCounts,
): Expression => (globalBatchSize === undefined ? max(rowsSum(n.gt(0)), 1) : constant(globalBatchSize));

function ofVerl(
  divisor: string,
  divisorOf: (symbols: ProgramSymbols, options: VerlCounts) => Expression,
): Aggregation<VerlCounts> {
  return {
    divisor: `${divisor} / dp_size`,
    weight: (symbols, options) => symbols.constant(options.dpSize).div(divisorOf(symbols, options)),
  };
}

const FILLED = '(rows with unmasked tokens, or global_batch_size)';

/** The aggregation modes of verl. */
export const VERL_AGGREGATIONS: Readonly<Record<LossAggMode, Aggregation<VerlCounts>>> = {
  'token-mean': ofVerl('(N, or batch_num_tokens)', ({ tokens, constant }, { batchNumTokens }) =>
    batchNumTokens === undefined ? tokens : constant(batchNumTokens),
  ),
  'token-sum': ofVerl('1', ({ constant }) => constant(1)),
  'seq-mean-token-sum': ofVerl(FILLED, filledRows),
  'seq-mean-token-mean': ofVerl(`${FILLED} · (n + 1e-8)`, (symbols, options) =>
    filledRows(symbols, options).mul(symbols.n.add(1e-8)),
  ),
  'seq-mean-token-sum-norm': ofVerl(`${FILLED} · (T, or loss_scale_factor)`, (symbols, options) =>
    filledRows(symbols, options).mul(options.lossScaleFactor ?? symbols.rowLength),
  ),
};

/** The options of TRL that set divisors. */
export interface TrlCounts {
  readonly numItemsInBatch: number | undefined;
  readonly numProcesses: number;
  readonly gradientAccumulationSteps: number;
  readonly maxCompletionLength?: number;
}

/** TRL's default of maxCompletionLength. */
export const COMPLETION_TOKENS = 512;

/** The losses of TRL's GRPO trainer, each of which has an aggregation of its own. */
export type LossType = 'grpo' | 'bnpo' | 'dr_grpo' | 'dapo' | 'cispo' | 'sapo' | 'vespo' | 'luspo';

function ofSteps(
  divisor: string,
  divisorOf: (symbols: ProgramSymbols, options: TrlCounts) => Expression,
): Aggregation<TrlCounts> {
  return {
    divisor: `${divisor} · gradient_accumulation_steps`,
    weight: (symbols, options) =>
      symbols.constant(1).div(divisorOf(symbols, options).mul(options.gradientAccumulationSteps)),
  };
}

const ofRowTokens = ofSteps('B · max(n, 1)', ({ rows, n, max }) => rows.mul(max(n, 1)));

/** The aggregation of the losses that are averaged over all processes and accumulation steps. */
export const OF_ITEMS: Aggregation<TrlCounts> = {
  divisor: 'max(N or num_items_in_batch, 1) / num_processes',
  weight: ({ tokens, constant, max }, { numItemsInBatch, numProcesses }) =>
    constant(numProcesses).div(max(numItemsInBatch ?? tokens, 1)),
};

/** The aggregation of each loss of TRL's GRPO trainer. */
export const TRL_AGGREGATIONS: Readonly<Record<LossType, Aggregation<TrlCounts>>> = {
  grpo: ofRowTokens,
  sapo: ofRowTokens,
  bnpo: ofSteps('max(N, 1)', ({ tokens, max }) => max(tokens, 1)),
  dr_grpo: ofSteps('B · max_completion_length', ({ rows }, { maxCompletionLength = COMPLETION_TOKENS }) =>
    rows.mul(maxCompletionLength),
  ),
  luspo: ofSteps('B', ({ rows }) => rows),
  dapo: OF_ITEMS,
  cispo: OF_ITEMS,
  vespo: OF_ITEMS,
};

/** What a token's loss is divided by: in words, for the documentation, and as an expression. */
export interface Divisor {
  readonly divisor: string;
  readonly of: (symbols: ProgramSymbols) => Expression;
}

/** The aggregation modes of the other frameworks and papers. */
export const OTHER_AGGREGATIONS: Readonly<Record<LossAggMode, Divisor>> = {
  'token-mean': { divisor: 'N', of: ({ tokens }) => tokens },
  'token-sum': { divisor: '1', of: ({ constant }) => constant(1) },
  'seq-mean-token-sum': { divisor: 'B', of: ({ rows }) => rows },
  'seq-mean-token-mean': { divisor: 'B · max(n, 1)', of: ({ rows, n, max }) => rows.mul(max(n, 1)) },
  'seq-mean-token-sum-norm': { divisor: 'T', of: ({ rowLength }) => rowLength },
};

/** The aggregation modes of Trinity-RFT. native/engine/weights.h computes their weights. */
const TRINITY_DIVISORS: Readonly<Record<LossAggMode, string>> = {
  'token-mean': 'N + 1e-8',
  'token-sum': '1',
  'seq-mean-token-sum': 'B',
  'seq-mean-token-mean': 'B · (n + 1e-8)',
  'seq-mean-token-sum-norm': 'T + 1e-8',
};

function divisorsOf(table: Readonly<Record<string, { readonly divisor: string }>>): Record<string, string> {
  return Object.fromEntries(Object.entries(table).map(([mode, { divisor }]) => [mode, divisor]));
}

/** What a token's loss is divided by, for each framework and each of its aggregation modes or losses. */
export const DIVISORS_BY_FRAMEWORK: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  'Trinity-RFT': TRINITY_DIVISORS,
  verl: divisorsOf(VERL_AGGREGATIONS),
  TRL: divisorsOf(TRL_AGGREGATIONS),
  'other frameworks and papers': divisorsOf(OTHER_AGGREGATIONS),
};
