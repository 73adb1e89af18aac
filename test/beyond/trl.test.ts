/**
 * Tests TRL's policy losses against every result of TRL itself, and against the float64 reference on drawn batches and
 * options.
 */
import assert from 'node:assert/strict';
import fc from 'fast-check';
import { type Batch, POLICY_LOSS_FN } from '../../lib/index.js';
import { option } from '../reference/batch.js';
import { type Args, type ReferenceBatch, standsOnEdge } from '../reference/index.js';
import { ARGUMENTS, type BatchSpec, batchSpec, makeBatch } from '../support/draw.js';
import { cutRows, type FrameworkLossCase, goldenBatch, referenceBatch, trlCases } from '../support/golden.js';
import { poison } from '../support/poison.js';
import { generator } from '../support/random.js';
import { packedBatch, paddedBatch, subject, unpack } from '../support/subject.js';
import { assertArray, assertComputed, assertNumber } from '../support/tolerance.js';

const SEED = Number(process.env.FC_SEED ?? 2025);
const METRIC_RELATIVE = 1e-4;
const cases = trlCases.filter((each): each is FrameworkLossCase => each.kind === 'policy_loss');
const names = POLICY_LOSS_FN.names().filter((name) => name.startsWith('trl/'));

type Reasons = Readonly<Record<string, (each: FrameworkLossCase) => boolean>>;

/** The cases that programs cannot compute, by what programs would need for them. */
const LEFT: Reasons = {
  'a running sum along the row': ({ fn }) => fn === 'iw_opd',
  'a quantile of the batch': ({ args }) => option(args, 'top_entropy_quantile', 1) < 1,
  'the column old_logprob, if the batch has it': ({ fn, inputs }) => readsOld(fn) && !inputs.old_logprob,
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
        fc.property(ARGUMENTS.policy[name]!, batchSpec, (args, spec) => {
          const batch = drawn(name, args, spec);
          const { formula } = subject('policy', name, args);
          fc.pre(!standsOnEdge(formula, args, batch));
          agreesWithReference(name, args, batch);
        }),
        { numRuns: 60, seed: SEED },
      );
    });
});

/**
 * The losses that read the sum of a row's log-ratios. Where log-ratios are wide, its exponential overflows, or multiplies
 * the rounding errors of the sum.
 */
const OF_SUMS = ['trl/rloo', 'trl/vespo'];

/**
 * Draws a batch for a loss. It has an advantage per row, which is 0 in rows without tokens, and the column entropy only
 * if the loss has an entropy bonus.
 */
function drawn(name: string, args: Args, spec: BatchSpec): ReferenceBatch {
  const values = spec.values === 'wide' && OF_SUMS.includes(name) ? 'moderate' : spec.values;
  const { entropy, ...batch } = makeBatch({ ...spec, values });
  const { normal, uniform } = generator(spec.seed + 1);
  const perRow = (value: () => number) => Array.from({ length: batch.rows }, () => Math.fround(value()));
  const filled = Array.from({ length: batch.rows }, (_, b) =>
    Array.from(batch.actionMask).some((kept, at) => kept && Math.floor(at / batch.columns) === b),
  );
  return {
    ...batch,
    advantages: perRow(normal).map((advantage, b) => (filled[b] ? advantage : 0)),
    rewards: perRow(normal),
    vStar: perRow(normal),
    probability: perRow(uniform),
    ...(hasBonus(args) ? { entropy: entropy! } : {}),
  };
}

const ROW_COLUMNS = ['rewards', 'vStar', 'probability'] as const;

function layOut(batch: ReferenceBatch): Batch {
  const { advantages, ...perToken } = batch;
  const isPerRow = advantages?.length === batch.rows;
  const laid = (batch.rowLengths ? packedBatch : paddedBatch)(isPerRow ? perToken : batch);
  if (isPerRow) laid.advantages = Float32Array.from(advantages);
  for (const name of ROW_COLUMNS) if (batch[name]) laid[name] = Float64Array.from(batch[name]);
  return laid;
}

function agreesWithReference(name: string, args: Args, batch: ReferenceBatch): void {
  const { sync, reference } = subject('policy', name, args);
  const result = sync(layOut(poison(batch, Number.NaN)));
  const grad = batch.rowLengths ? unpack(batch, result.grad) : result.grad;
  assertComputed({ ...result, grad }, reference(batch));
}
