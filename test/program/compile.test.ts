// How losses become programs: the number of passes, the limits, and the cases that random losses seldom meet.
import assert from 'node:assert/strict';
import type { NativeProgram } from '../../binding.js';
import { COLUMNS, ROW_COLUMNS } from '../../lib/batch/columns.js';
import { type CompiledLoss, compileLoss, type LossNodes } from '../../lib/program/compile.js';
import { Graph } from '../../lib/program/graph.js';
import type { Node } from '../../lib/program/node.js';
import { parseExpression } from '../../lib/program/parse.js';
import { isLossError } from '../support/loss-error.js';
import { decode, interpret, type Row, segmentKinds } from './interpreter.js';

function compile(text: string, metrics: readonly string[] = []): CompiledLoss {
  const graph = new Graph();
  const parse = (x: string) => parseExpression('test', x, graph, new Map());
  const nodes = metrics.map((metric) => ({ node: parse(metric), per: 'token' as const }));
  return compileLoss(graph, { loss: parse(text), metrics: nodes });
}

function compileNode(build: (graph: Graph) => Node): CompiledLoss {
  const graph = new Graph();
  return compileLoss(graph, { loss: build(graph), metrics: [] });
}

// A row without masked tokens. Its log-probabilities and advantages are given; the other columns are 0.
function row(logprobs: readonly number[], advantages: readonly number[] = logprobs): Row {
  const zeros = logprobs.map(() => 0);
  return {
    columns: COLUMNS.map((name) =>
      name === 'logprob' ? logprobs : name === 'advantages' ? advantages : zeros,
    ),
    numbers: ROW_COLUMNS.map(() => 0),
    mask: logprobs.map(() => true),
    weight: 1,
    repeats: 1,
    group: 0,
  };
}

const gradient = (text: string, ...rows: Row[]) => interpret(compile(text).withGrad, rows).grad;

const opsOf = (program: NativeProgram) => decode(program).map(({ op }) => op);

describe('the segments of a loss', () => {
  for (const [text, withGrad, withoutGrad] of [
    // What is the same for all tokens of a row is multiplied once per row.
    ['-A*lp', 'row tokens', 'tokens'],
    ['-A*r', 'tokens', 'tokens'],
    ['max(-A*r, -A*clip(r, 0.8, 1.28)) + 0.1*(exp(ref-lp)-ref+lp-1)', 'tokens', 'tokens'],
    ['-A*r/n', 'row tokens', 'row tokens'],
    // One pass for the row's ratio and for its adjoint, because the adjoint is a product of values of the row.
    ['-A*exp(row_mean(d))', 'row tokens row tokens', 'tokens row tokens'],
    ['-logsigmoid(0.1*row_sum(lp-ref))', 'row tokens row tokens', 'tokens row tokens'],
    ['-A*r/sg(row_max(r))', 'tokens row tokens', 'tokens row tokens'],
    // The clipped ratio of a row decides which tokens count for its adjoint, so that takes a pass of its own.
    [
      'min(A*exp(row_mean(d)), A*clip(exp(row_mean(d)), 0.8, 1.2))',
      'row tokens row tokens row tokens',
      'tokens row tokens',
    ],
    ['-(A - batch_mean(A))*r', 'row tokens row batch tokens', 'row tokens row batch tokens'],
    // One pass for the sum and for its adjoint.
    ['batch_sum(lp)*lp', 'tokens row batch row tokens', 'tokens row batch tokens'],
    [
      'batch_mean(square(lp - batch_mean(lp)))',
      'row tokens row batch row tokens row batch row tokens',
      'row tokens row batch tokens row batch tokens',
    ],
  ] as const)
    it(`of ${text}`, () => {
      const compiled = compile(text);
      assert.equal(segmentKinds(compiled.withGrad).join(' '), withGrad);
      assert.equal(segmentKinds(compiled.withoutGrad).join(' '), withoutGrad);
    });
});

describe('compileLoss()', () => {
  it('lists the columns in native order, and logprob always', () => {
    assert.deepEqual(compile('A*rollout').columns, ['logprob', 'advantages', 'rollout_logprob']);
    assert.deepEqual(compile('A', ['H', 'ref']).columns, ['logprob', 'ref_logprob', 'advantages', 'entropy']);
  });

  it('tells whether a loss or a metric reduces over the batch', () => {
    assert.equal(compile('row_sum(lp)').readsWholeBatch, false);
    assert.equal(compile('batch_sum(A)*lp').readsWholeBatch, true);
    assert.equal(compile('lp', ['batch_max(A)']).readsWholeBatch, true);
  });

  it('outputs the metrics in their order', () => {
    const { metrics } = interpret(compile('lp', ['A', '2', 'lp']).withoutGrad, [row([1, 3], [5, 6])]);
    assert.deepEqual(metrics, [[[5, 6]], [[2, 2]], [[1, 3]]]);
  });

  it('computes a subexpression once in a segment', () => {
    const ops = decode(compile('exp(d)*A + exp(lp-old)*exp(d)', ['exp(d)']).withGrad).map(({ op }) => op);
    assert.equal(ops.filter((op) => op === 'exp').length, 1);
  });

  it('lets an exponential share instructions with expm1() and the residual, also with those of the gradient alone', () => {
    const exponentials = (loss: CompiledLoss, program: 'withGrad' | 'withoutGrad') =>
      opsOf(loss[program]).filter((op) => op.startsWith('exp'));
    assert.deepEqual(exponentials(compile('A*r'), 'withGrad'), ['exp']);
    assert.deepEqual(exponentials(compile('A*r', ['r - 1 - d']), 'withoutGrad'), [
      'exp_with_residual',
      'exp_residual',
    ]);
    // The gradient of the residual is expm1(d).
    const inGradient = compile('r - 1 - d', ['A*r']);
    assert.deepEqual(exponentials(inGradient, 'withoutGrad'), ['exp_residual', 'exp_with_residual']);
    assert.ok(exponentials(inGradient, 'withGrad').includes('expm1'));
  });

  it('adds up conditions in float32, which is exact', () => {
    const ops = opsOf(compile('lp * row_sum((A > 0) && (H > 0))').withGrad);
    assert.ok(ops.includes('row_sum_single'));
    assert.ok(!ops.includes('row_sum'));
  });

  it('chooses between numbers of which one cannot be NaN, and gives NaN if the other is', () => {
    const extremes = 'max(A, 0.5) + min(-1, A) + min(A, max(A > 0, H > 0))';
    const ops = opsOf(compile(`sg(${extremes}) + lp`).withGrad);
    assert.deepEqual(
      ops.filter((op) => /^(max|min|select)/.test(op)),
      Array(4).fill('select_lt'),
    );
    const values = [-2, -0, 0.5, 2, Number.NaN];
    const { grad } = interpret(compile(`lp*sg(${extremes})`).withGrad, [row([1, 1, 1, 1, 1], values)]);
    const expected = values.map((x) => Math.max(x, 0.5) + Math.min(x, -1) + Math.min(x, Number(x > 0)));
    assert.deepEqual(grad, [expected]);
    assert.ok(opsOf(compile('lp*max(A, H)').withGrad).includes('max'));
  });

  it('chooses by a condition with one comparison, and not between equal numbers', () => {
    const ops = opsOf(compile('lp*((A > 0) || (H > 0) ? A : H)').withGrad);
    assert.ok(!ops.includes('select') && ops.includes('select_lt'));
    const same = opsOf(compile('lp*((A > 0) || (H > 0) ? sg(lp) : lp)').withoutGrad);
    assert.ok(!same.some((op) => op.startsWith('select')));
  });

  it('leaves out what no output needs', () => {
    assert.deepEqual(
      decode(compile('A > 0 ? A : A').withGrad).map(({ op }) => op),
      ['tokens', 'loss', 'grad'],
    );
  });

  it('gives no derivative to the branch that is not chosen', () => {
    assert.deepEqual(gradient('A > 0 ? lp : sqrt(lp)', row([0, 4], [1, 0])), [[1, 0.25]]);
    assert.deepEqual(gradient('A > 0 ? 3*lp : log(lp)*log(lp)', row([0], [1])), [[3]]);
    assert.deepEqual(gradient('max(A, 0) == 0 ? 0 : A/lp', row([0], [0])), [[0]]);
  });

  it('gives the derivative at a tie to the first argument, or to the first token', () => {
    assert.deepEqual(gradient('min(2*lp, 3*lp)', row([0])), [[2]]);
    assert.deepEqual(gradient('max(3*lp, 2*lp)', row([0])), [[3]]);
    assert.deepEqual(gradient('row_max(lp)', row([1, 2, 2, 0])), [[0, 4, 0, 0]]);
    assert.deepEqual(gradient('row_min(abs(lp))', row([-1, 1, 1])), [[-3, 0, 0]]);
    assert.deepEqual(gradient('batch_max(lp)', row([1, 2]), row([2, 2])), [
      [0, 4],
      [0, 0],
    ]);
  });

  it('gives clip the derivative 1 on its bounds', () => {
    assert.deepEqual(gradient('clip(lp, -1, 1)', row([-2, -1, 0, 1, 2])), [[0, 1, 1, 1, 0]]);
    assert.deepEqual(gradient('clip(lp, A, 1)', row([-2, -1, 0, 1, 2], [-1, -1, -1, -1, -1])), [
      [0, 1, 1, 1, 0],
    ]);
    assert.deepEqual(gradient('clip(A, lp, 1)', row([2, 0, -3], [1, -1, -1])), [[0, 1, 0]]);
    assert.deepEqual(gradient('clip(lp, 2, 1)', row([0, 1, 1.5, 2, 3])), [[0, 0, 0, 0, 0]]);
  });

  it('has finite derivatives of powers at 0', () => {
    assert.deepEqual(gradient('pow(lp, 2)', row([0])), [[0]]);
    assert.deepEqual(gradient('pow(lp, A)', row([0, 3], [0, 1])), [[0, 1]]);
    assert.deepEqual(gradient('pow(A, lp)', row([2, 1], [0, Math.E])), [[0, Math.E]]);
  });

  it('divides more than 16 reductions among several segments', () => {
    const sums = Array.from({ length: 20 }, (_, i) => `row_sum(lp*A + ${i})*batch_sum(tanh(lp*${i}))`);
    const compiled = compile(sums.join(' + '));
    assert.deepEqual(interpret(compiled.withoutGrad, [row([0, 0])]).loss, [[0, 0]]);
    assert.ok(interpret(compiled.withGrad, [row([1, 2], [3, 4])]).grad[0]!.every(Number.isFinite));
  });

  it('divides the losses of rows and of the batch among few segments', () => {
    const kinds = (build: (graph: Graph) => LossNodes) => {
      const graph = new Graph();
      const { withGrad, readsWholeBatch } = compileLoss(graph, build(graph));
      return `${segmentKinds(withGrad).join(' ')}${readsWholeBatch ? ', whole batch' : ''}`;
    };
    const lp = (graph: Graph) => graph.column('logprob');
    const sum = (graph: Graph) => graph.reduce('row', 'sum', lp(graph));
    const batchSum = (graph: Graph) => graph.reduce('batch', 'sum', lp(graph));
    // One pass for the metric, after the outputs.
    assert.equal(
      kinds((graph) => ({ loss: lp(graph), metrics: [{ node: sum(graph), per: 'row' }] })),
      'tokens tokens row',
    );
    // The sum for the metric comes along with the sum for the loss.
    assert.equal(
      kinds((graph) => ({
        rowLoss: graph.unary('square', sum(graph)),
        metrics: [{ node: graph.reduce('row', 'max', lp(graph)), per: 'row' }],
      })),
      'tokens row tokens row',
    );
    assert.equal(
      kinds((graph) => ({ loss: lp(graph), metrics: [{ node: batchSum(graph), per: 'batch' }] })),
      'tokens tokens row batch',
    );
    assert.equal(
      kinds((graph) => ({ rowLoss: graph.unary('square', batchSum(graph)), metrics: [] })),
      'row tokens row batch row tokens row, whole batch',
    );
    // What depends on the batch's size alone needs no pass over the batch.
    assert.equal(
      kinds((graph) => {
        const perRow = graph.binary('div', graph.constant(2), graph.batchInput('rows'));
        const weighted = graph.binary('mul', perRow, lp(graph));
        return { loss: weighted, metrics: [{ node: perRow, per: 'batch' }] };
      }),
      'row tokens batch',
    );
  });

  it('lets rows without unmasked tokens take part if all rows do', () => {
    const graph = new Graph();
    const rewards = graph.rowColumn('rewards');
    const rowLoss = graph.binary('add', graph.reduce('row', 'mean', graph.column('logprob')), rewards);
    const metrics = [
      { node: graph.reduce('rows', 'min', rewards), per: 'batch' },
      { node: rewards, per: 'row' },
    ] as const;
    const full = { ...row([1, 3]), numbers: [5, 0, 0, 0], repeats: 2 };
    const empty = { ...row([7]), mask: [false], numbers: [4, 0, 0, 0] };
    const run = (allRows: boolean) =>
      interpret(compileLoss(graph, { rowLoss, metrics, allRows }).withGrad, [full, empty]);
    const all = run(true);
    assert.deepEqual(all.rowLoss, [7, 4]);
    assert.deepEqual(all.rowMetrics, [[5, 4]]);
    assert.deepEqual(all.batchMetrics, [4]);
    assert.deepEqual(all.grad, [[1, 1], []]);
    const some = run(false);
    assert.deepEqual(some.rowLoss, [7, undefined]);
    assert.deepEqual(some.batchMetrics, [5]);
  });

  describe('refuses', () => {
    const refuses = (limit: RegExp, build: (graph: Graph) => Node) =>
      assert.throws(() => compileNode(build), isLossError('ERR_INVALID_OPTION', limit));

    it('too many instructions', () => {
      refuses(/at most 4096 instructions/, (graph) => {
        let x = graph.column('logprob');
        for (let i = 0; i < 10_000; i++) x = graph.unary('tanh', x);
        return x;
      });
    });

    it('too many registers', () => {
      refuses(/at most 32 values per token/, (graph) => {
        const lp = graph.column('logprob');
        const values = Array.from({ length: 40 }, (_, i) => graph.binary('pow', lp, graph.constant(i + 0.5)));
        const products = values.flatMap((x, i) => values.slice(i + 1).map((y) => graph.binary('mul', x, y)));
        return products.reduce((x, y) => graph.binary('add', x, y));
      });
    });

    it('too many values of a row', () => {
      refuses(/at most 256 values per row/, (graph) => {
        let x = graph.reduce('row', 'sum', graph.column('logprob'));
        for (let i = 0; i < 300; i++) x = graph.unary('tanh', x);
        return x;
      });
    });

    it('a loss with too large a derivative', () => {
      refuses(/at most 4096 instructions/, (graph) => {
        const lp = graph.column('logprob');
        let x: Node = lp;
        for (let i = 0; i < 1500; i++) x = graph.unary('tanh', graph.binary('add', x, lp));
        return x;
      });
    });
  });

  it('compiles a chain of 400 operations into few registers', () => {
    const { withGrad } = compileNode((graph) => {
      let x = graph.column('logprob');
      for (let i = 0; i < 400; i++) x = graph.unary('tanh', x);
      return x;
    });
    assert.ok(withGrad.registers <= 6, `${withGrad.registers} registers`);
  });
});
