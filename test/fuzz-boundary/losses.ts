/**
 * Targets and cases of the boundary fuzzer for user-defined losses: texts that are almost right, and programs that are
 * almost right, as the compiler would make them if it had a fault. Native code must refuse a wrong program.
 */
import fc from 'fast-check';
import type { NativeFunctionSpec, NativeProgramLossSpec } from '../../binding.js';
import { takeNow } from '../../lib/base/steps.js';
import { COLUMNS, ROW_DATA } from '../../lib/batch/columns.js';
import { BatchReader } from '../../lib/batch/reader.js';
import { Evaluator } from '../../lib/call/evaluator.js';
import { type Batch, KeyMapper, LossError, lossFromExpression } from '../../lib/index.js';
import { textOf } from '../reference/expression.js';
import { EXPRESSIONS, OPTIONS } from '../support/expressions.js';
import type { Anything } from './odd-values.js';
import type { Target } from './targets.js';

/** Losses whose programs have segments of every kind. */
const LOSSES = [
  'max(-A*r, -A*clip(r, 1 - low, 1 + high))',
  'exp(row_mean(d))*A + pow(r, beta)',
  'row_max(r)*batch_min(d) + (A > 0 ? tanh(lp) : log1p(H))',
  'lp*batch_sum(r*row_min(lp*batch_mean(lp)))',
  'A*lp*(row_rank(r) < t) + group_max(row_sum(d))*row_quantile(lp, 0.3)',
  'logsigmoid(chosen(row_sum(lp)) - rejected(row_mean(lp)))',
];

/** Losses that are differentiated by other columns than logprob. */
const OTHER_LOSSES = [
  'square(value - returns)*row_rank(value)',
  'logsigmoid(chosen(reward) - group_min(reward))',
];

type Spec = NonNullable<NativeFunctionSpec['policyLoss']> & { program: unknown };

/** Changes numbers of a program's arrays. Positions count modulo the length of the array. */
export interface Tampering {
  array: 'code' | 'constants';
  /** Where to write which number, one after another. */
  writes: readonly (readonly [at: number, value: number])[];
  /** The instruction to move to the place of another one. */
  moves: readonly (readonly [from: number, to: number])[];
  /** How many numbers of the end to remove. */
  cut: number;
}

/** Returns the array with the changes. */
export function tamper(array: Anything, { writes, moves, cut }: Tampering): Anything {
  if (!ArrayBuffer.isView(array)) return array;
  const changed = (array as Int32Array).slice(0, Math.max(0, (array as Int32Array).length - cut));
  const count = Math.floor(changed.length / NUMBERS);
  for (const [from, to] of count > 0 ? moves : [])
    changed.copyWithin((to % count) * NUMBERS, (from % count) * NUMBERS, ((from % count) + 1) * NUMBERS);
  for (const [at, value] of changed.length > 0 ? writes : []) changed[at % changed.length] = value;
  return changed;
}

/** The length of an instruction in NativeProgram.code. */
const NUMBERS = 6;

const number = fc.oneof(
  fc.integer({ min: 0, max: 70 }),
  fc.tuple(fc.nat({ max: 8 }), fc.nat({ max: 20 })).map(([kind, index]) => 65536 * kind + index),
  fc.integer(),
);

/** Draws changes of a program. */
export const tampering: fc.Arbitrary<Tampering> = fc.record({
  array: fc.constantFrom('code' as const, 'code' as const, 'constants' as const),
  writes: fc.array(fc.tuple(fc.nat({ max: 4096 }), number), { maxLength: 4 }),
  moves: fc.array(fc.tuple(fc.nat({ max: 700 }), fc.nat({ max: 700 })), { maxLength: 2 }),
  cut: fc.oneof({ arbitrary: fc.constant(0), weight: 5 }, fc.nat({ max: 40 })),
});

const READER = new BatchReader(KeyMapper.get('verl'), { inputs: [...COLUMNS, ...ROW_DATA, 'action_mask'] });

/**
 * Runs a program twice. Succeeds if native code refuses it with a TypeError.
 * @throws Error if the two runs give different results, because native code then left memory unwritten.
 */
function runProgram(
  [withGrad, withoutGrad, metrics, aggregation]: readonly Anything[],
  batch: Batch,
  tokens: number,
): unknown {
  const program = { withGrad, withoutGrad, readsWholeBatch: false };
  const policyLoss = { program, metrics, aggregation } as Spec;
  let evaluator: Evaluator;
  try {
    evaluator = new Evaluator({ policyLoss }, READER);
  } catch (error) {
    if (error instanceof LossError && error.cause instanceof TypeError) return undefined;
    throw error;
  }
  const [first, second] = [1, 2].map((filling) =>
    takeNow(evaluator.compute(batch, { grad: new Float32Array(tokens).fill(filling) }, () => ({}))),
  );
  if (JSON.stringify(first) !== JSON.stringify(second))
    throw new Error(`a program left memory unwritten: ${JSON.stringify([first, second])}`);
  takeNow(evaluator.compute(batch, {}, () => ({})));
  return first;
}

/**
 * Yields the targets.
 * @param batch makes a batch for any loss.
 * @param complete makes a batch that has every column.
 */
export function* ofLosses(
  batch: () => Anything,
  complete: () => Anything,
  tokens: number,
): Generator<Target> {
  yield {
    name: 'a loss of lossFromExpression',
    valid: () => [LOSSES[0], { options: OPTIONS, metrics: { first: LOSSES[1], second: 'r' } }],
    call: (given) => (lossFromExpression as Anything)(...given).compute(batch(), { grad: true }),
  };
  for (const text of OTHER_LOSSES)
    yield {
      name: `the loss ${text}`,
      valid: () => [text, {}],
      call: (given) => (lossFromExpression as Anything)(...given).compute(batch(), { grad: true }),
    };
  for (const text of LOSSES) {
    const { policyLoss } = lossFromExpression(text, {
      options: OPTIONS,
      metrics: { first: 'r', second: 'A*d' },
    });
    const { program, metrics, aggregation } = policyLoss as NativeProgramLossSpec;
    yield {
      name: `the program of ${text}`,
      valid: () => structuredClone([program.withGrad, program.withoutGrad, metrics, aggregation]),
      call: (given) => runProgram(given, complete(), tokens),
    };
  }
}

const TOKENS = [
  ...[
    'lp',
    'old',
    'A',
    'H',
    'd',
    'r',
    'n',
    't',
    'value',
    'reward',
    'group_size',
    'low',
    'x',
    '__proto__',
    'constructor',
    '0',
    '1',
    '.5',
    '1e9',
    '1e-9',
  ],
  ...[
    '+',
    '-',
    '*',
    '/',
    '**',
    '<',
    '<=',
    '==',
    '===',
    '&&',
    '||',
    '!',
    '?',
    ':',
    '(',
    ')',
    ',',
    ';',
    '=',
    '=>',
  ],
  ...[
    'exp(',
    'log(',
    'max(',
    'clip(',
    'sg(',
    'row_sum(',
    'row_max(',
    'batch_mean(',
    'group_mean(',
    'chosen(',
    'row_quantile(',
    'row_rank(',
    'pow(',
    '[',
    ']',
    '{',
    '}',
  ],
  ...[
    '`',
    '"',
    '//',
    '/*',
    '\\',
    '\n',
    '\0',
    'ℓ',
    '\ud800',
    ' ',
    '...',
    '?.',
    '++',
    'new ',
    'this',
    'await ',
  ],
];

/** Draws texts: right ones, with a part removed, repeated or replaced, and random sequences of tokens. */
export const anyText: fc.Arbitrary<string> = fc.oneof(
  EXPRESSIONS.batch.map((expression) => textOf(expression)),
  EXPRESSIONS.pairs.map((expression) => textOf(expression)),
  fc
    .tuple(
      EXPRESSIONS.batch.map((expression) => textOf(expression)),
      fc.nat({ max: 200 }),
      fc.nat({ max: 20 }),
      fc.array(fc.constantFrom(...TOKENS), { maxLength: 3 }),
      fc.integer({ min: 1, max: 3 }),
    )
    .map(([text, at, length, tokens, times]) => {
      const begin = at % (text.length + 1);
      return (text.slice(0, begin) + tokens.join('') + text.slice(begin + length)).repeat(times);
    }),
  fc.array(fc.constantFrom(...TOKENS), { maxLength: 30 }).map((tokens) => tokens.join('')),
  fc
    .tuple(fc.constantFrom(...TOKENS), fc.integer({ min: 1, max: 6000 }))
    .map(([token, n]) => token.repeat(n)),
);
