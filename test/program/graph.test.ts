// The graph of a user-defined loss: which expressions are one node, and how they are simplified and differentiated.
import assert from 'node:assert/strict';
import { COLUMNS } from '../../lib/batch/columns.js';
import { differentiate } from '../../lib/program/differentiate.js';
import { Graph } from '../../lib/program/graph.js';
import type { Level, Node } from '../../lib/program/node.js';
import { parseExpression } from '../../lib/program/parse.js';
import { isLossError } from '../support/loss-error.js';

const NAMES: Record<string, string> = {
  logprob: 'lp',
  old_logprob: 'old',
  ref_logprob: 'ref',
  advantages: 'A',
};

function parse(graph: Graph, text: string): Node {
  return parseExpression('test', text, graph, new Map());
}

// Writes a node as calls of operations. The operands of sums and products are sorted, because their order is free.
function show({ op, operands, value }: Node): string {
  if (op === 'constant') return String(value);
  if (op === 'column') return NAMES[COLUMNS[value]!] ?? COLUMNS[value]!;
  if (op === 'row_input') return ['n', 'weight', 'repeats'][value]!;
  const shown = operands.map(show);
  if (op === 'add' || op.startsWith('mul')) shown.sort();
  return `${op}(${shown.join(', ')})`;
}

function simplified(text: string): string {
  return show(parse(new Graph(), text));
}

function derivative(text: string): string {
  const graph = new Graph();
  return show(differentiate(graph, parse(graph, text), graph.constant(0)).ofTokens);
}

describe('Graph', () => {
  it('has one node for equal expressions', () => {
    const graph = new Graph();
    assert.equal(parse(graph, 'exp(lp - old) * A'), parse(graph, 'A * r'));
    assert.equal(parse(graph, 'lp + A'), parse(graph, 'A + lp'));
    assert.equal(parse(graph, 'A > 0 ? 1 : 0'), parse(graph, 'A > 0'));
  });

  it('keeps the order of operands on which ties depend', () => {
    const graph = new Graph();
    assert.notEqual(parse(graph, 'min(lp, A)'), parse(graph, 'min(A, lp)'));
    assert.notEqual(parse(graph, 'lp - A'), parse(graph, 'A - lp'));
  });

  for (const [text, level] of [
    ['2 ** 0.5', 'constant'],
    ['n + row_sum(lp)', 'row'],
    ['batch_mean(lp) * 2', 'batch'],
    ['row_max(lp) - batch_min(lp)', 'row'],
    ['A - row_mean(A)', 'token'],
  ] satisfies [string, Level][])
    it(`computes ${text} at the level ${level}`, () => {
      assert.equal(parse(new Graph(), text).level, level);
    });

  it('refuses a graph that is too large', () => {
    const graph = new Graph();
    let x = graph.column('logprob');
    assert.throws(
      () => {
        for (;;) x = graph.unary('tanh', x);
      },
      isLossError('ERR_INVALID_OPTION', /at most 200000 subexpressions/),
    );
  });
});

describe('simplification', () => {
  const residual = 'exp_residual(sub(lp, old))';
  for (const [text, expected] of [
    ['exp(d) - 1', 'expm1(sub(lp, old))'],
    ['1 - exp(d)', 'neg(expm1(sub(lp, old)))'],
    ['exp(d) - 1 - d', residual],
    ['exp(d) - d - 1', residual],
    ['-d - 1 + r', residual],
    ['(r - 1) - d', residual],
    ['r - (1 + d)', residual],
    ['d + 1 - r', `neg(${residual})`],
    ['d - (r - 1)', `neg(${residual})`],
    ['r - 1 - log(r)', residual],
    ['exp(lp - old) - lp + old - 1', residual],
    ['expm1(d) - lp + old', residual],
    ['exp(ref - lp) - (ref - lp) - 1', 'exp_residual(sub(ref, lp))'],
    ['exp(ref-lp) - ref + lp - 1', 'exp_residual(sub(ref, lp))'],
    ['exp(lp + 0.5) - lp - 1.5', 'exp_residual(add(0.5, lp))'],
    ['A + (exp(d) - 1 - d)', `add(A, ${residual})`],
    ['A + r - 1', 'add(A, expm1(sub(lp, old)))'],
    ['A - 1 - log(A)', 'exp_residual(log(A))'],
    ['exp(d) - 2 - d', 'sub(sub(exp(sub(lp, old)), 2), sub(lp, old))'],
    ['log(1 + A)', 'log1p(A)'],
    ['log(1 - A)', 'log1p(neg(A))'],
    ['log(1 + exp(A))', 'neg(logsigmoid(neg(A)))'],
    ['log(exp(lp) * 1)', 'lp'],
    ['log(sigmoid(lp))', 'logsigmoid(lp)'],
    ['log(1 - sigmoid(lp))', 'logsigmoid(neg(lp))'],
    ['log1p(-sigmoid(lp))', 'logsigmoid(neg(lp))'],
    ['1 - sigmoid(lp)', 'sigmoid(neg(lp))'],
    ['1 / (1 + exp(-lp))', 'sigmoid(lp)'],
    ['exp(lp) / (1 + exp(lp))', 'sigmoid(lp)'],
    ['pow(lp, 2)', 'mul(lp, lp)'],
    ['lp ** 3', 'mul(lp, mul(lp, lp))'],
    ['lp ** -1', 'div(1, lp)'],
    ['lp ** 0', '1'],
    ['lp ** 0.5', 'pow(lp, 0.5)'],
    ['-(-lp)', 'lp'],
    ['lp - -A', 'add(A, lp)'],
    ['-2 * -lp', 'mul(2, lp)'],
    ['lp * 1 + 0', 'lp'],
    ['1 > 0 ? lp : A', 'lp'],
    ['!(A > 0) ? lp : ref', 'select(lt(0, A), ref, lp)'],
    ['!!(A > 0)', 'lt(0, A)'],
    ['sg(A)', 'A'],
    ['row_sum(2 * lp)', 'mul(2, row_sum(lp))'],
    ['row_sum(-lp * row_max(lp) / n)', 'mul(div(neg(row_max(lp)), n), row_sum(lp))'],
    ['row_sum(row_max(lp))', 'mul(n, row_max(lp))'],
    ['row_sum(!(A > 0))', 'sub(n, row_sum(lt(0, A)))'],
    ['row_mean(3)', '3'],
    [
      'batch_max(batch_mean(lp))',
      'div(rows_sum(mul(repeats, row_sum(lp))), max(rows_sum(mul(n, repeats)), 1))',
    ],
  ] as const)
    it(`of ${text} gives ${expected}`, () => {
      assert.equal(simplified(text), expected);
    });

  for (const text of ['lp / lp', '0 * lp', 'lp - lp', 'exp(log(lp))', 'lp == lp'])
    it(`leaves ${text}, which can be NaN`, () => {
      assert.match(simplified(text), /lp/);
    });
});

describe('products that can be 0 times Infinity', () => {
  const ratio = 'exp(sub(lp, old))';
  for (const [text, expected] of [
    ['A * r', `mul_no_nan(A, ${ratio})`],
    ['-A * r', `mul_no_nan(${ratio}, neg(A))`],
    ['(A > 0) * r', `mul_no_nan(${ratio}, lt(0, A))`],
    ['A * (1 + r)', `mul_no_nan(A, add(1, ${ratio}))`],
    ['A * row_mean(r)', `mul_no_nan(A, div(row_sum(${ratio}), max(n, 1)))`],
    ['0 * r', `mul_no_nan(0, ${ratio})`],
    ['-2 * r', `mul(-2, ${ratio})`],
    ['r * n', `mul(${ratio}, n)`],
    ['r * r', `mul(${ratio}, ${ratio})`],
    ['A * exp(lp)', 'mul(A, exp(lp))'],
    ['A * exp(min(d, 20))', 'mul(A, exp(min(sub(lp, old), 20)))'],
    ['A * clip(r, 0, 2)', `mul(A, clip(${ratio}, 0, 2))`],
    ['A * min(r, 2)', `mul(A, min(${ratio}, 2))`],
    ['A * max(r, 2)', `mul_no_nan(A, max(${ratio}, 2))`],
    ['A * sigmoid(r)', `mul(A, sigmoid(${ratio}))`],
  ] as const)
    it(`${text} is ${expected}`, () => {
      assert.equal(simplified(text), expected);
    });

  it('have derivatives that are such products', () => {
    assert.equal(derivative('A * r'), `mul(mul_no_nan(A, ${ratio}), weight)`);
    const mean = `exp(div(row_sum(sub(lp, old)), max(n, 1)))`;
    assert.match(derivative('A * exp(row_mean(d))'), /mul_no_nan\(.*row_sum\(A\)/, mean);
  });
});

describe('differentiate()', () => {
  for (const [text, expected] of [
    ['exp(lp)', 'mul(exp(lp), weight)'],
    ['exp(d) - 1 - d', 'mul(expm1(sub(lp, old)), weight)'],
    ['logsigmoid(lp)', 'mul(sigmoid(neg(lp)), weight)'],
    ['sigmoid(lp)', 'mul(mul(sigmoid(lp), sigmoid(neg(lp))), weight)'],
    ['tanh(lp)', 'mul(mul(4, mul(sigmoid(mul(-2, lp)), sigmoid(mul(2, lp)))), weight)'],
    ['square(lp)', 'mul(mul(2, lp), weight)'],
    ['sg(lp) * lp', 'mul(stop(lp), weight)'],
    ['clip(lp, 0, 1)', 'mul(eq(clip(lp, 0, 1), lp), weight)'],
    ['min(lp, A)', 'mul(le(lp, A), weight)'],
    ['max(A, lp)', 'mul(select(le(lp, A), 0, 1), weight)'],
    ['A', '0'],
    ['sign(lp) + (lp > 0) + sg(exp(lp))', '0'],
    ['row_sum(lp)', 'mul(n, weight)'],
    ['row_sum(A * lp)', 'mul(A, mul(n, weight))'],
  ] as const)
    it(`of ${text} gives ${expected}`, () => {
      assert.equal(derivative(text), expected);
    });
});
