/**
 * Compares the built-in losses with the same losses written as expressions. They have no code in common, so this is a
 * third version of every loss, next to the native code and the reference's formula in float64.
 */
import fc from 'fast-check';
import type { LossAggMode } from '../../lib/core/options.js';
import { lossFromExpression } from '../../lib/index.js';
import { type Args, losses, type ReferenceBatch, standsOnEdge, type Written } from '../reference/index.js';
import { ARGUMENTS, batchSpec, makeBatch } from '../support/draw.js';
import { type Computed, packedBatch, paddedBatch, type Subject, subject } from '../support/subject.js';
import { assertArray, assertNumber } from '../support/tolerance.js';

const SEED = Number(process.env.FC_SEED ?? 2025);
const RUNS = 50;

/** Compares a written loss with a built-in one. */
function agrees(written: Written, on: Subject, batch: ReferenceBatch): void {
  const { text, metricsNotWritten = {}, ...rest } = written;
  const lossAggMode = (written.lossAggMode ?? on.args.loss_agg_mode ?? 'token-mean') as LossAggMode;
  const fn = lossFromExpression(text, { ...rest, lossAggMode });
  const laid = batch.rowLengths ? packedBatch(batch) : paddedBatch(batch);
  const [actual, expected] = [fn.computeSync(laid, { grad: true }) as Computed, on.sync(laid)];
  const { magnitude } = on.reference(batch);
  assertNumber(actual.loss, expected.loss, 'loss', magnitude.loss);
  for (const [name, value] of Object.entries(expected.metrics)) {
    if (name in metricsNotWritten) continue;
    // Built-in policy losses have a metric that is the loss under another name, such as pg_loss.
    const metric = name.endsWith('_loss') && !(name in actual.metrics) ? actual.loss : actual.metrics[name];
    assertNumber(metric, value, name, magnitude.metrics[name]);
  }
  assertArray(actual.grad, expected.grad, 'grad');
}

describe('built-in losses written as expressions', () => {
  for (const family of ['policy', 'kl'] as const)
    for (const [name, loss] of Object.entries(losses[family])) {
      if ('notWritten' in loss) continue;
      it(`${family} ${name}`, () => {
        fc.assert(
          fc.property(ARGUMENTS[family][name]!, batchSpec, (args: Args, spec) => {
            // Where ref is far from lp, the terms of the gradient of r·k3 cancel, and only the built-in knows their
            // sum.
            fc.pre(!name.endsWith('corrected_k3') || spec.values !== 'wide');
            const on = subject(family, name, args);
            const batch = makeBatch(spec);
            fc.pre(!standsOnEdge(loss.formula, args, batch));
            agrees(loss.written(args), on, batch);
          }),
          { numRuns: RUNS, seed: SEED },
        );
      });
    }
});
