/** Tests that the TypeScript form of losses has the columns and functions of the text, with the same meaning. */
import assert from 'node:assert/strict';
import { toCamelCase } from '../../lib/base/options.js';
import { type Expression, type LossSymbols, symbolsOf } from '../../lib/program/expression.js';
import { Graph } from '../../lib/program/graph.js';
import { parseExpression } from '../../lib/program/parse.js';
import { FUNCTIONS, VALUES } from '../../lib/program/symbols.js';

/** Asserts that an expression and a text give the same node. */
function same(text: string, build: (symbols: LossSymbols) => Expression): void {
  const graph = new Graph();
  const expected = parseExpression('text', text, graph, new Map());
  assert.equal(build(symbolsOf(graph)).node, expected, text);
}

describe('the symbols of defineLoss', () => {
  it('are the names of the language in camelCase', () => {
    const names = [...VALUES.keys(), ...FUNCTIONS.keys()].map(toCamelCase);
    assert.deepEqual(Object.keys(symbolsOf(new Graph())), [...names, 'constant', 'select']);
  });

  for (const name of VALUES.keys())
    it(name, () => same(name, (symbols) => symbols[toCamelCase(name) as 'lp']));

  for (const [name, { parameters, levels, variadic }] of FUNCTIONS)
    it(`${name}()`, () => {
      const columns = ['lp', 'A', 'H'].slice(0, variadic ? 3 : parameters.length) as ('lp' | 'A' | 'H')[];
      const isOfRows = columns.map((_, i) => levels?.[i] === 'row');
      const args = columns.map((column, i) => (isOfRows[i] ? `row_sum(${column})` : column));
      same(`${name}(${args.join(', ')})`, (symbols) => {
        const call = symbols[toCamelCase(name) as 'max'] as (...args: Expression[]) => Expression;
        return call(...columns.map((x, i) => (isOfRows[i] ? symbols.rowSum(symbols[x]) : symbols[x])));
      });
    });

  const METHODS: Record<string, (symbols: LossSymbols) => Expression> = {
    'lp + A': ({ lp, A }) => lp.add(A),
    'lp - A': ({ lp, A }) => lp.sub(A),
    'lp * A': ({ lp, A }) => lp.mul(A),
    'lp / A': ({ lp, A }) => lp.div(A),
    '-lp': ({ lp }) => lp.neg(),
    'lp < A': ({ lp, A }) => lp.lt(A),
    'lp <= A': ({ lp, A }) => lp.le(A),
    'lp > A': ({ lp, A }) => lp.gt(A),
    'lp >= A': ({ lp, A }) => lp.ge(A),
    'lp == A': ({ lp, A }) => lp.eq(A),
    'lp != A': ({ lp, A }) => lp.ne(A),
    'lp && A': ({ lp, A }) => lp.and(A),
    'lp || A': ({ lp, A }) => lp.or(A),
    '!lp': ({ lp }) => lp.not(),
    'lp * 2.5': ({ lp }) => lp.mul(2.5),
    '1 - r': ({ r, constant }) => constant(1).sub(r),
    'A > 0 ? lp : 2': ({ A, lp, select }) => select(A.gt(0), lp, 2),
  };
  for (const [text, build] of Object.entries(METHODS)) it(text, () => same(text, build));
});
