/** Compares a built-in loss with the same loss written as an expression, on one batch. They have no code in common. */
import fc from 'fast-check';
import type { LossAggMode } from '../../lib/base/options.js';
import { lossFromExpression } from '../../lib/index.js';
import { losses } from '../reference/index.js';
import { type BatchSpec, makeBatchOffEdges } from '../support/draw.js';
import { ARGUMENTS, fitting } from '../support/draw-arguments.js';
import { type Computed, packedBatch, subject } from '../support/subject.js';
import { assertArray, assertNumber } from '../support/tolerance.js';

const SPEC: BatchSpec = { seed: 7, rows: 8, columns: 60, values: 'moderate', mask: 'random', packed: true };

/** Returns whether a loss is also written as an expression. */
export const isWritten = (family: 'policy' | 'kl', name: string): boolean =>
  'written' in (losses[family][name] ?? {});

export function assertWritten(family: 'policy' | 'kl', name: string): void {
  const loss = losses[family][name]!;
  if ('notWritten' in loss) return;
  const [args] = fc.sample(ARGUMENTS[family][name]!, { seed: 5, numRuns: 1 });
  const builtIn = subject(family, name, args!);
  const batch = makeBatchOffEdges(fitting(name, args!, SPEC), builtIn);
  const { text, metricsNotWritten = {}, ...rest } = loss.written(args!);
  const lossAggMode = (rest.lossAggMode ?? args!.loss_agg_mode ?? 'token-mean') as LossAggMode;
  const written = lossFromExpression(text, { ...rest, lossAggMode });

  const actual = written.computeSync(packedBatch(batch), { grad: true }) as Computed;
  const expected = builtIn.sync(packedBatch(batch));
  const { magnitude } = builtIn.reference(batch);
  assertNumber(actual.loss, expected.loss, 'loss', magnitude.loss);
  for (const [metric, value] of Object.entries(expected.metrics)) {
    if (metric in metricsNotWritten) continue;
    // Built-in policy losses have a metric that is the loss under another name, such as pg_loss.
    const isLoss = metric.endsWith('_loss') && !(metric in actual.metrics);
    assertNumber(isLoss ? actual.loss : actual.metrics[metric], value, metric, magnitude.metrics[metric]);
  }
  assertArray(actual.grad, expected.grad, 'grad');
}
