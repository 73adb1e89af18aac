/**
 * Compares the built-in losses with the same losses written as expressions. They have no code in common, so this is a
 * third version of every formula, next to the native code and the reference.
 */
import assert from 'node:assert/strict';
import fc from 'fast-check';
import type { LossAggMode } from '../../lib/core/options.js';
import { KL_FN, lossFromExpression, POLICY_LOSS_FN } from '../../lib/index.js';
import { type Args, type ReferenceBatch, standsOnEdge } from '../reference/index.js';
import { ARGUMENTS, batchSpec, makeBatch } from '../support/draw.js';
import { type Computed, packedBatch, paddedBatch, type Subject, subject } from '../support/subject.js';
import { assertArray, assertNumber } from '../support/tolerance.js';
import {
  METRICS_NOT_WRITTEN,
  NOT_WRITTEN,
  WRITTEN,
  WRITTEN_KL,
  type Written,
} from '../support/written-losses.js';

const SEED = Number(process.env.FC_SEED ?? 2025);
const RUNS = 50;

/** Compares a written loss with a built-in one. */
function agrees(written: Written, on: Subject, batch: ReferenceBatch): void {
  const { text, lossAggMode = 'token-mean', ...rest } = written;
  const fn = lossFromExpression(text, { lossAggMode: lossAggMode as LossAggMode, ...rest });
  const laid = batch.rowLengths ? packedBatch(batch) : paddedBatch(batch);
  const [actual, expected] = [fn.computeSync(laid, { grad: true }) as Computed, on.sync(laid)];
  const { magnitude } = on.reference(batch);
  assertNumber(actual.loss, expected.loss, 'loss', magnitude.loss);
  for (const [name, value] of Object.entries(expected.metrics)) {
    if (name in METRICS_NOT_WRITTEN) continue;
    // Built-in policy losses have a metric that is the loss under another name, such as pg_loss.
    const metric = name.endsWith('_loss') && !(name in actual.metrics) ? actual.loss : actual.metrics[name];
    assertNumber(metric, value, name, magnitude.metrics[name]);
  }
  assertArray(actual.grad, expected.grad, 'grad');
}

/** Returns whether a loss has native code, instead of being defined by expressions. */
const isNative = (name: string) =>
  !('program' in POLICY_LOSS_FN.create(name, fc.sample(ARGUMENTS.policy[name]!, 1)[0]).policyLoss);

describe('built-in losses written as expressions', () => {
  it('are all built-in losses that the language can express', () => {
    assert.deepEqual(
      POLICY_LOSS_FN.names().filter(isNative).sort(),
      [...Object.keys(WRITTEN), ...Object.keys(NOT_WRITTEN)].sort(),
    );
    assert.deepEqual([...KL_FN.names()].sort(), Object.keys(WRITTEN_KL).sort());
  });

  for (const [name, write] of Object.entries(WRITTEN))
    it(`policy ${name}`, () => {
      fc.assert(
        fc.property(ARGUMENTS.policy[name]!, batchSpec, (args: Args, spec) => {
          const on = subject('policy', name, args);
          const batch = makeBatch(spec);
          fc.pre(!standsOnEdge(on.formula, args, batch));
          agrees({ lossAggMode: args.loss_agg_mode as string, ...write(args) }, on, batch);
        }),
        { numRuns: RUNS, seed: SEED },
      );
    });

  for (const [name, estimate] of Object.entries(WRITTEN_KL))
    it(`KL ${name}`, () => {
      fc.assert(
        fc.property(ARGUMENTS.kl[name]!, batchSpec, (args: Args, spec) => {
          // Where ref is far from lp, the terms of the gradient of r·k3 cancel, and only the built-in knows their sum.
          fc.pre(name !== 'corrected_k3' || spec.values !== 'wide');
          const on = subject('kl', name, args);
          const batch = makeBatch(spec);
          fc.pre(!standsOnEdge(on.formula, args, batch));
          const { kl_coef, loss_agg_mode } = args as { kl_coef: number; loss_agg_mode: string };
          agrees(
            { text: `kl_coef*(${estimate})`, options: { kl_coef }, lossAggMode: loss_agg_mode },
            on,
            batch,
          );
        }),
        { numRuns: RUNS, seed: SEED },
      );
    });
});
