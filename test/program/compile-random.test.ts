// Compiles random losses and compares the programs with the expression's values and with finite differences.
import assert from 'node:assert/strict';
import fc from 'fast-check';
import { LossError } from '../../lib/base/errors.js';
import { COLUMNS, type ColumnName, ROW_COLUMNS } from '../../lib/batch/columns.js';
import { compileLoss } from '../../lib/program/compile.js';
import { Graph } from '../../lib/program/graph.js';
import {
  batches,
  build,
  constant,
  Evaluation,
  type Expression,
  expressions,
  expressionsOfBatches,
  expressionsOfRows,
} from './expressions.js';
import { interpret, type Row } from './interpreter.js';

const RUNS = 500;

interface Loss {
  readonly loss: Expression;
  readonly rowLoss: Expression;
  readonly rowMetric: Expression;
  readonly batchMetric: Expression;
}

const zero = constant(0);
const losses: fc.Arbitrary<Loss> = fc.oneof(
  expressions.map((loss) => ({ loss, rowLoss: zero, rowMetric: zero, batchMetric: zero })),
  fc.record({
    loss: fc.oneof(expressions, fc.constant(zero)),
    rowLoss: expressionsOfRows,
    rowMetric: expressionsOfRows,
    batchMetric: expressionsOfBatches,
  }),
);

// Compiles a loss. Skips the case if the loss is larger than programs may be, which few random losses are.
function compile(x: Loss) {
  const graph = new Graph();
  const loss = build(graph, x.loss);
  try {
    return compileLoss(graph, {
      loss,
      rowLoss: build(graph, x.rowLoss),
      metrics: [
        { node: build(graph, x.batchMetric), per: 'batch' },
        { node: build(graph, x.rowMetric), per: 'row' },
        { node: loss, per: 'token' },
      ],
    });
  } catch (error) {
    fc.pre(!(error instanceof LossError && error.message.startsWith('the loss is too large')));
    throw error;
  }
}

// Evaluates a loss, unless a value of it is too large for finite differences.
function evaluated(
  x: Loss,
  rows: readonly Row[],
  frozen?: Evaluation,
): { run: Evaluation; total: number } | undefined {
  const run = new Evaluation(rows, frozen?.stopped);
  try {
    const total = run.total(x.loss, x.rowLoss);
    return run.largest < 1e3 ? { run, total } : undefined;
  } catch (error) {
    if (error instanceof RangeError) return undefined;
    throw error;
  }
}

// Returns the values of the metrics of rows and of the batch, unless rounding can change a choice.
function metricsOf(
  x: Loss,
  rows: readonly Row[],
): { ofRows: number[]; ofBatch: number; run: Evaluation } | undefined {
  const run = new Evaluation(rows);
  try {
    const ofRows = run.values(x.rowMetric).map(([value]) => value!);
    const ofBatch = run.values(x.batchMetric)[0]?.[0];
    return ofBatch === undefined || run.isDelicate || run.largest > 1e3
      ? undefined
      : { ofRows, ofBatch, run };
  } catch (error) {
    if (error instanceof RangeError) return undefined;
    throw error;
  }
}

function assertClose(actual: number, expected: number, tolerance: number, what: string): void {
  assert.ok(Math.abs(actual - expected) <= tolerance, `${what}: expected ${expected}, got ${actual}`);
}

describe('compiled random losses', () => {
  it('have the values of the expression, with and without the gradient', () => {
    fc.assert(
      fc.property(losses, batches, (x, rows) => {
        const expected = evaluated(x, rows);
        fc.pre(expected !== undefined && !expected.run.isDelicate);
        const { withGrad, withoutGrad } = compile(x);
        const outputs = interpret(withGrad, rows);
        const values = new Evaluation(rows).values(x.loss);
        const counted = outputs.loss.filter((row) => row.length > 0);
        assert.equal(counted.length, values.length);
        for (const [b, row] of values.entries())
          for (const [i, value] of row.entries())
            assertClose(counted[b]![i]!, value, 1e-9 * (1 + expected.run.largest), `row ${b}, token ${i}`);
        const rowLosses = new Evaluation(rows).values(x.rowLoss);
        const countedRows = outputs.rowLoss.filter((value) => value !== undefined);
        for (const [b, value] of countedRows.entries())
          assertClose(value, rowLosses[b]![0]!, 1e-9 * (1 + expected.run.largest), `row ${b}`);
        const same = interpret(withoutGrad, rows);
        const { grad, gradEntropy, gradLogZ } = same;
        assert.deepEqual(same, { ...outputs, grad, gradEntropy, gradLogZ });
        assert.equal([...grad, ...gradEntropy].flat().length, 0);
        assert.ok(gradLogZ.every((slope) => slope === undefined));
        // A metric that is always 0 is not output.
        if (same.metrics[1]!.flat().length > 0) assert.deepEqual(same.metrics[1], same.loss);
        else assert.ok(same.loss.flat().every((value) => value === 0));
      }),
      { numRuns: RUNS },
    );
  });

  it('have the metrics of the rows and of the batch', () => {
    let checked = 0;
    fc.assert(
      fc.property(losses, batches, (x, rows) => {
        const expected = metricsOf(x, rows);
        fc.pre(expected !== undefined);
        const { rowMetrics, batchMetrics } = interpret(compile(x).withGrad, rows);
        const tolerance = 1e-9 * (1 + expected.run.largest);
        const counted = rowMetrics[0]!.filter((value) => value !== undefined);
        assert.equal(counted.length, expected.ofRows.length);
        for (const [b, value] of counted.entries())
          assertClose(value, expected.ofRows[b]!, tolerance, `row ${b}`);
        assertClose(batchMetrics[0]!, expected.ofBatch, tolerance, 'the batch');
        checked++;
      }),
      { numRuns: RUNS },
    );
    assert.ok(checked > RUNS / 2);
  });

  it('have the gradients of the expression', () => {
    const checked = { logprob: 0, entropy: 0, log_z: 0 };
    fc.assert(
      fc.property(losses, batches, (x, rows) => {
        const base = evaluated(x, rows);
        fc.pre(base !== undefined);
        const { grad, gradEntropy, gradLogZ } = interpret(compile(x).withGrad, rows);
        const compare = (what: keyof typeof checked, actual: number, move: Move) => {
          const slope = centralDifference(x, rows, move, base.run);
          if (slope === undefined) return;
          checked[what]++;
          assertClose(actual, slope, 1e-5 * (1 + base.run.largest + Math.abs(slope)), `gradient of ${what}`);
        };
        for (const [b, { mask }] of rows.entries()) {
          const positions = mask.flatMap((isUnmasked, t) => (isUnmasked ? [t] : []));
          for (const [i, actual] of grad[b]!.entries())
            compare('logprob', actual, moveToken('logprob', b, positions[i]!));
          for (const [i, actual] of gradEntropy[b]!.entries())
            compare('entropy', actual, moveToken('entropy', b, positions[i]!));
          if (gradLogZ[b] !== undefined) compare('log_z', gradLogZ[b], moveLogZ(b));
        }
      }),
      { numRuns: RUNS },
    );
    assert.ok(checked.logprob > RUNS && checked.entropy > RUNS / 20 && checked.log_z > RUNS / 50);
  });
});

const STEP = 1e-5;

// Returns the rows after one of their numbers has changed by a step.
type Move = (rows: readonly Row[], step: number) => Row[];

const moveToken =
  (column: ColumnName, b: number, t: number): Move =>
  (rows, step) => {
    const index = COLUMNS.indexOf(column);
    const { columns } = rows[b]!;
    const moved = columns[index]!.with(t, columns[index]![t]! + step);
    return rows.with(b, { ...rows[b]!, columns: columns.with(index, moved) });
  };

const moveLogZ =
  (b: number): Move =>
  (rows, step) => {
    const index = ROW_COLUMNS.indexOf('log_z');
    const { numbers } = rows[b]!;
    return rows.with(b, { ...rows[b]!, numbers: numbers.with(index, numbers[index]! + step) });
  };

// Returns the slope of the total loss, or undefined if a kink is near.
function centralDifference(x: Loss, rows: readonly Row[], move: Move, base: Evaluation): number | undefined {
  const at = (step: number) => {
    const result = evaluated(x, move(rows, step), base);
    if (result === undefined || result.run.isDelicate || !sameChoices(result.run, base)) return undefined;
    return result.total;
  };
  const [low, high] = [at(-STEP), at(STEP)];
  return low === undefined || high === undefined ? undefined : (high - low) / (2 * STEP);
}

function sameChoices(a: Evaluation, b: Evaluation): boolean {
  return a.choices.length === b.choices.length && a.choices.every((choice, i) => choice === b.choices[i]);
}
