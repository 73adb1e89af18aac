/**
 * Tests TRL's policy losses against every result of TRL itself, and against the float64 reference on drawn batches and
 * options.
 */
import assert from 'node:assert/strict';
import fc from 'fast-check';
import { type Batch, POLICY_LOSS_FN } from '../../lib/index.js';
import { option } from '../reference/batch.js';
import { type Args, type ReferenceBatch, type ReferenceResult, standsOnEdge } from '../reference/index.js';
import { ARGUMENTS, batchSpec, fitting, makeBatch } from '../support/draw.js';
import { cutRows, type FrameworkLossCase, goldenBatch, referenceBatch, trlCases } from '../support/golden.js';
import { poison } from '../support/poison.js';
import { packedBatch, paddedBatch, subject, unpack } from '../support/subject.js';
import { assertArray, assertComputed, assertNumber } from '../support/tolerance.js';

const SEED = Number(process.env.FC_SEED ?? 2025);
const METRIC_RELATIVE = 1e-4;
const cases = trlCases.filter((each): each is FrameworkLossCase => each.kind === 'policy_loss');
const names = POLICY_LOSS_FN.names().filter((name) => name.startsWith('trl/'));

type Reasons = Readonly<Record<string, (each: FrameworkLossCase) => boolean>>;

/** The cases that programs cannot compute, by what programs would need for them. */
const LEFT: Reasons = {
  'a quantile of the batch': ({ args }) => option(args, 'top_entropy_quantile', 1) < 1,
  'the column old_logprob, if the batch has it': ({ fn, inputs }) => readsOld(fn) && !inputs.old_logprob,
  'the column rollout_logprob, if the batch has it': ({ fn, inputs }) =>
    fn === 'iw_opd' && !inputs.rollout_logprob,
  'the advantages of rows without tokens': ({ fn, inputs }) => OF_ROWS.includes(fn) && hasEmptyRow(inputs),
};
const readsOld = (fn: string) => !['a2po', 'nash_md', 'iw_opd'].includes(fn);
/** The losses of rows that read advantages. */
const OF_ROWS = ['gmpo', 'rloo'];

/** The metrics that programs cannot compute, by what programs would need for them. */
const METRICS_LEFT: Record<string, { metric: RegExp; of(each: FrameworkLossCase): boolean }> = {
  'the column entropy, if the batch has it': {
    metric: /^entropy$/,
    of: ({ args, inputs }) => inputs.entropy !== undefined && !hasBonus(args),
  },
  'whether there is an advantage per row': {
    metric: /^clip_ratio|^vespo/,
    of: ({ fn, args, inputs }) =>
      inputs.advantages?.shape.length === 2 &&
      (fn === 'vespo' || args.importance_sampling_level === 'sequence'),
  },
};

function hasBonus(args: Args): boolean {
  return option(args, 'entropy_coef', 0) !== 0 || args.use_adaptive_entropy === true;
}

function hasEmptyRow(inputs: FrameworkLossCase['inputs']): boolean {
  const { data, shape } = inputs.action_mask!;
  const columns = shape[1]!;
  return Array.from({ length: shape[0]! }, (_, b) => data.slice(b * columns, (b + 1) * columns)).some((row) =>
    row.every((kept) => !kept),
  );
}

const isLeft = (each: FrameworkLossCase) => Object.values(LEFT).some((of) => of(each));
const computed = cases.filter((each) => !isLeft(each));

function agreesWithCase(each: FrameworkLossCase): void {
  const { fn, args, inputs, expected } = each;
  const { loss, metrics, grad } = POLICY_LOSS_FN.create(`trl/${fn}`, args).computeSync(goldenBatch(inputs), {
    grad: true,
  });
  assertNumber(loss, expected.loss, 'loss');
  assertArray(grad!, expected.grad_logprob.data, 'grad');
  const compared = Object.entries(expected.metrics).filter(
    ([name]) => !Object.values(METRICS_LEFT).some(({ metric, of }) => metric.test(name) && of(each)),
  );
  for (const [name, value] of compared)
    assertNumber(metrics[name], value, name, Math.abs(value) * 20, METRIC_RELATIVE);
  const absent = Object.keys(metrics).filter((name) => !(name in expected.metrics));
  assert.deepEqual(absent, [], 'metrics that TRL does not report');
}

describe("TRL's policy losses", () => {
  for (const each of computed) it(each.id, () => agreesWithCase(each));

  for (const [need, of] of Object.entries(LEFT))
    it(`leaves cases that need ${need}`, () => {
      assert.ok(
        cases.some((each) => of(each) && Object.values(LEFT).filter((other) => other(each)).length === 1),
      );
    });

  for (const [need, { metric, of }] of Object.entries(METRICS_LEFT))
    it(`leaves metrics that need ${need}`, () => {
      const found = computed.filter(
        (each) => of(each) && Object.keys(each.expected.metrics).some((name) => metric.test(name)),
      );
      assert.ok(found.length > 0);
    });

  it('has cases for every loss', () => {
    const covered = new Set(computed.map(({ fn }) => `trl/${fn}`));
    assert.deepEqual([...covered].sort(), [...names].sort());
  });

  it('ignores the values of masked tokens', () => {
    for (const { fn, args, inputs } of computed) {
      const loss = POLICY_LOSS_FN.create(`trl/${fn}`, args);
      const results = [referenceBatch(inputs), poison(referenceBatch(inputs), Number.NaN)].map((batch) =>
        loss.computeSync(layOut(batch), { grad: true }),
      );
      assert.deepEqual(results[1], results[0], fn);
    }
  });

  it('does not depend on masked tokens at the ends of rows', () => {
    for (const { fn, args, inputs } of computed) {
      const loss = POLICY_LOSS_FN.create(`trl/${fn}`, args);
      const batch = referenceBatch(inputs);
      const cut = cutRows(batch);
      const packed = loss.computeSync(layOut(cut), { grad: true });
      const { grad, ...padded } = loss.computeSync(layOut(batch), { grad: true });
      assert.deepEqual({ loss: packed.loss, metrics: packed.metrics }, padded, fn);
      assert.deepEqual(unpack(cut, packed.grad!), grad, fn);
    }
  });

  for (const name of names)
    it(`${name}: agrees with the reference on drawn batches`, () => {
      fc.assert(
        fc.property(ARGUMENTS.policy[name]!, batchSpec, fc.boolean(), (args, spec, isPerRow) => {
          const perToken = makeBatch(fitting(name, args, spec));
          const batch = isPerRow ? withAdvantagePerRow(perToken) : perToken;
          const { formula } = subject('policy', name, args);
          fc.pre(!standsOnEdge(formula, args, batch));
          agreesWithReference(name, args, batch);
        }),
        { numRuns: 100, seed: SEED },
      );
    });
});

/** Replaces the advantages of tokens with one per row. */
const withAdvantagePerRow = (batch: ReferenceBatch): ReferenceBatch => ({
  ...batch,
  advantages: Array.from({ length: batch.rows }, (_, b) => batch.advantages![b * batch.columns]!),
});

function layOut(batch: ReferenceBatch): Batch {
  const { advantages, ...perToken } = batch;
  const isPerRow = advantages?.length === batch.rows;
  const laid = (batch.rowLengths ? packedBatch : paddedBatch)(isPerRow ? perToken : batch);
  if (isPerRow) laid.advantages = Float32Array.from(advantages);
  return laid;
}

function agreesWithReference(name: string, args: Args, batch: ReferenceBatch): void {
  const { sync, reference } = subject('policy', name, args);
  const result = sync(layOut(poison(batch, Number.NaN)));
  const grad = batch.rowLengths ? unpack(batch, result.grad) : result.grad;
  const expected = reference(batch);
  assertComputed(
    { ...result, grad },
    { ...expected, gradMagnitude: gradMagnitude(name, args, batch, expected) },
  );
}

/** Returns the largest sum of the absolute values of a gradient's two terms: without the KL, and of the KL alone. */
function gradMagnitude(name: string, args: Args, batch: ReferenceBatch, { grad }: ReferenceResult): number {
  if (option(args, 'beta', 0) === 0) return 0;
  const { grad: withoutKl } = subject('policy', name, { ...args, beta: 0 }).reference(batch);
  return grad.reduce(
    (most, g, i) => Math.max(most, Math.abs(withoutKl[i]!) + Math.abs(g - withoutKl[i]!)),
    0,
  );
}
