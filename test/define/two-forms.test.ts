/** Tests that a loss built in TypeScript gives the same bits as the same loss written as a text. */
import fc from 'fast-check';
import { defineLoss, type LossSymbols, type Operand } from '../../lib/index.js';
import type { Expression } from '../reference/expression.js';
import { batchSpec, makeBatch } from '../support/draw.js';
import { EXPRESSIONS, OPTIONS } from '../support/expressions.js';
import { packedBatch, paddedBatch } from '../support/subject.js';
import { assertSameBits } from '../support/tolerance.js';
import { syncOf, userLoss } from '../support/user-loss.js';

const SEED = Number(process.env.FC_SEED ?? 2025);

/** The methods that stand for operators. */
const METHODS: Record<string, string> = {
  '+': 'add',
  '-': 'sub',
  '*': 'mul',
  '/': 'div',
  '<': 'lt',
  '<=': 'le',
  '>': 'gt',
  '>=': 'ge',
  '==': 'eq',
  '!=': 'ne',
  '&&': 'and',
  '||': 'or',
};

const camelCase = (name: string) => name.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());

/** Builds an expression as a user of defineLoss() would. */
function built(expression: Expression, symbols: LossSymbols, options: Record<string, number>): Operand {
  if (typeof expression === 'number') return expression;
  const named = symbols as unknown as Record<string, Operand & ((...operands: Operand[]) => Operand)>;
  if (typeof expression === 'string') return options[expression] ?? named[camelCase(expression)]!;
  const [operation, ...rest] = expression as readonly [string, ...Expression[]];
  const operands = rest.map((each) => built(each, symbols, options));
  // Numbers have no methods, so the first operand must be an expression.
  const first = typeof operands[0] === 'number' ? symbols.constant(operands[0]) : operands[0]!;
  if (operation === '?:') return symbols.select(first, operands[1]!, operands[2]!);
  if (operation === '**') return symbols.pow(first, operands[1]!);
  if (operation === '!') return first.not();
  if (operation === '-' && operands.length === 1) return first.neg();
  const method = METHODS[operation] as 'add' | undefined;
  return method ? first[method](operands[1]!) : named[camelCase(operation)]!(...operands);
}

describe('losses in TypeScript and as texts', () => {
  it('have the same bits', () => {
    const options = Object.fromEntries(
      Object.entries(OPTIONS).map(([name, value]) => [
        name,
        { type: 'number', default: value, help: 'a number' } as const,
      ]),
    );
    fc.assert(
      fc.property(EXPRESSIONS.batch, EXPRESSIONS.batch, batchSpec, (loss, metric, spec) => {
        const Loss = defineLoss('built', {
          options,
          variable: 'logprob',
          lossAggMode: 'token-mean',
          metrics: { metric: { unit: 'a number', value: (symbols) => built(metric, symbols, OPTIONS) } },
          loss: (symbols, given) => built(loss, symbols, given as unknown as Record<string, number>),
        });
        const batch = makeBatch(spec);
        const laid = batch.rowLengths ? packedBatch(batch) : paddedBatch(batch);
        assertSameBits(syncOf(new Loss({}), laid), syncOf(userLoss(loss, 'token-mean', { metric }).fn, laid));
      }),
      { numRuns: 400, seed: SEED },
    );
  });
});
