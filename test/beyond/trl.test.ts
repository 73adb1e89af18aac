/**
 * Tests TRL's policy losses against every result of TRL itself, and against the float64 reference on drawn batches and
 * options.
 */
import assert from 'node:assert/strict';
import fc from 'fast-check';
import { type Batch, POLICY_LOSS_FN } from '../../lib/index.js';
import { type Args, type ReferenceBatch, referencePolicyLosses, standsOnEdge } from '../reference/index.js';
import { trlFormulas } from '../reference/trl.js';
import { ARGUMENTS, batchSpec, fitting, makeBatch, three } from '../support/draw.js';
import { cutRows, type FrameworkLossCase, goldenBatch, referenceBatch, trlCases } from '../support/golden.js';
import { poison } from '../support/poison.js';
import { type Computed, packedBatch, paddedBatch, unpack } from '../support/subject.js';
import { gradMagnitude } from '../support/terms.js';
import { assertArray, assertComputed, assertNumber } from '../support/tolerance.js';

const SEED = Number(process.env.FC_SEED ?? 2025);
const METRIC_RELATIVE = 1e-4;
const cases = trlCases.filter((each): each is FrameworkLossCase => each.kind === 'policy_loss');
const names = POLICY_LOSS_FN.names().filter((name) => name.startsWith('trl/'));

function agreesWithCase(each: FrameworkLossCase): void {
  const { fn, args, inputs, expected } = each;
  const { loss, metrics, grad, gradEntropy } = POLICY_LOSS_FN.create(`trl/${fn}`, args).computeSync(
    goldenBatch(inputs),
    { grad: true, gradEntropy: true },
  );
  assertNumber(loss, expected.loss, 'loss');
  assertArray(grad!, expected.grad_logprob.data, 'grad');
  assertArray(gradEntropy!, expected.grad_entropy?.data ?? gradEntropy!.map(() => 0), 'gradEntropy');
  for (const [name, value] of Object.entries(expected.metrics))
    assertNumber(metrics[name], value, name, Math.abs(value) * 20, METRIC_RELATIVE);
  const absent = Object.keys(metrics).filter((name) => !(name in expected.metrics));
  assert.deepEqual(absent, [], 'metrics that TRL does not report');
}

describe("TRL's policy losses", () => {
  for (const each of cases) it(each.id, () => agreesWithCase(each));

  it('has cases for every loss', () => {
    const covered = new Set(cases.map(({ fn }) => `trl/${fn}`));
    assert.deepEqual([...covered].sort(), [...names].sort());
  });

  it('ignores the values of masked tokens', () => {
    for (const { fn, args, inputs } of cases) {
      const loss = POLICY_LOSS_FN.create(`trl/${fn}`, args);
      const results = [referenceBatch(inputs), poison(referenceBatch(inputs), Number.NaN)].map((batch) =>
        loss.computeSync(layOut(batch), { grad: true }),
      );
      assert.deepEqual(results[1], results[0], fn);
    }
  });

  it('does not depend on masked tokens at the ends of rows', () => {
    for (const { fn, args, inputs } of cases) {
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
      let compared = 0;
      fc.assert(
        fc.property(ARGUMENTS.policy[name]!, three(fc.tuple(batchSpec, kinds)), (args, drawn) => {
          const on = POLICY_LOSS_FN.create(name, args);
          for (const [spec, { isPerRow, lacks }] of drawn) {
            const whole = makeBatch(fitting(name, args, spec));
            const perToken = without(
              whole,
              lacks.filter((column) => on.reads.optional.includes(column)),
            );
            const batch = isPerRow ? withAdvantagePerRow(perToken) : perToken;
            if (standsOnEdge(trlFormulas[name]!, args, batch)) continue;
            agreesWithReference(name, on, args, batch);
            compared++;
          }
        }),
        { numRuns: 34, seed: SEED },
      );
      assert.ok(compared > 80, `compared only ${compared} batches`);
    });
});

/** What a batch may lack, and whether it has one advantage per row. */
const kinds = fc.record({
  isPerRow: fc.boolean(),
  lacks: fc.subarray(['old_logprob', 'entropy', 'rollout_logprob'] as const),
});

function without(batch: ReferenceBatch, columns: readonly string[]): ReferenceBatch {
  const { oldLogprob, entropy, rolloutLogprob, ...others } = batch;
  return {
    ...others,
    ...(oldLogprob && !columns.includes('old_logprob') && { oldLogprob }),
    ...(entropy && !columns.includes('entropy') && { entropy }),
    ...(rolloutLogprob && !columns.includes('rollout_logprob') && { rolloutLogprob }),
  };
}

/** Replaces the advantages of tokens with one per row, unless the batch has as many tokens as rows. */
function withAdvantagePerRow(batch: ReferenceBatch): ReferenceBatch {
  const { rows, columns, rowLengths, advantages } = batch;
  const tokens = rowLengths?.reduce((sum, length) => sum + length, 0) ?? rows * columns;
  if (tokens === rows || !advantages) return batch;
  return { ...batch, advantages: Array.from({ length: rows }, (_, b) => advantages[b * columns]!) };
}

function layOut(batch: ReferenceBatch): Batch {
  const { advantages, ...perToken } = batch;
  const isPerRow = advantages?.length === batch.rows;
  const laid = (batch.rowLengths ? packedBatch : paddedBatch)(isPerRow ? perToken : batch);
  if (isPerRow) laid.advantages = Float32Array.from(advantages);
  return laid;
}

function agreesWithReference(
  name: string,
  on: InstanceType<ReturnType<typeof POLICY_LOSS_FN.get>>,
  args: Args,
  batch: ReferenceBatch,
): void {
  const result = on.computeSync(layOut(poison(batch, Number.NaN)), { grad: true, gradEntropy: true });
  const lay = (gradient: Float32Array) => (batch.rowLengths ? unpack(batch, gradient) : gradient);
  const expected = referencePolicyLosses[name]!(args, batch);
  const gradEntropy = lay(result.gradEntropy!);
  assertArray(gradEntropy, expected.gradEntropy ?? gradEntropy.map(() => 0), 'gradEntropy');
  assertComputed({ ...result, grad: lay(result.grad!) } as Computed, {
    ...expected,
    gradMagnitude: gradMagnitude(name, 'beta', args, batch, expected),
  });
}
