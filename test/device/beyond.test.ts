/**
 * Computes every golden policy loss of the frameworks on a CUDA device, real or emulated. The tests in test/beyond compare
 * the CPU's results with those of the frameworks. These tests compare the device's results with the CPU's: gradients bit by
 * bit, and sums within a tenth of the bounds that the frameworks' results have.
 */
import assert from 'node:assert/strict';
import { type Batch, type DeviceBatch, devices, LossError, POLICY_LOSS_FN, upload } from '../../lib/index.js';
import {
  cutRows,
  type FrameworkLossCase,
  goldenBatch,
  othersCases,
  referenceBatch,
  trlCases,
  verlCases,
} from '../support/golden.js';
import { type Computed, packedBatch } from '../support/subject.js';
import { assertNumber, assertSameArray, assertSameBits } from '../support/tolerance.js';

const DEVICE = 'cuda:0';

const LOSS_RELATIVE = 2e-6;
const METRIC_RELATIVE = 1e-5;

const isPolicyLoss = (each: { kind?: string }): each is FrameworkLossCase => each.kind === 'policy_loss';
/** The registered name of a case's function. */
const FILES: Record<string, { cases: FrameworkLossCase[]; nameOf(fn: string): string }> = {
  verl: { cases: verlCases.filter(isPolicyLoss), nameOf: (fn) => `verl/${fn.replace(/^verl_/, '')}` },
  trl: { cases: trlCases.filter(isPolicyLoss), nameOf: (fn) => `trl/${fn}` },
  others: { cases: othersCases.filter(isPolicyLoss), nameOf: (fn) => fn },
};

/** Returns the result, or the code of the error that the library throws instead. */
async function outcome(compute: () => Promise<unknown>): Promise<Computed | string> {
  try {
    return (await compute()) as Computed;
  } catch (error) {
    if (error instanceof LossError) return error.code;
    throw error;
  }
}

/** Returns the inputs as a packed batch without masked tokens at the ends of rows. Advantages per row stay as they are. */
function packedCase(inputs: FrameworkLossCase['inputs']): Batch {
  const { advantages, ...perToken } = inputs;
  if (advantages?.shape.length !== 1) return packedBatch(cutRows(referenceBatch(inputs)));
  return { ...packedBatch(cutRows(referenceBatch(perToken))), advantages: advantages.data };
}

async function agrees(name: string, args: Record<string, unknown>, batch: Batch): Promise<boolean> {
  const compute = (where: Batch | DeviceBatch, device?: string) =>
    outcome(async () =>
      POLICY_LOSS_FN.create(name, args).compute(where, { grad: true, ...(device && { device }) }),
    );
  const expected = await compute(batch);
  const fromHost = await compute(batch, DEVICE);
  if (typeof expected === 'string' || typeof fromHost === 'string') {
    assert.equal(fromHost, expected);
    return false;
  }
  assertNumber(fromHost.loss, expected.loss, 'loss', 0, LOSS_RELATIVE);
  assert.deepEqual(Object.keys(fromHost.metrics), Object.keys(expected.metrics));
  for (const [metric, value] of Object.entries(expected.metrics))
    assertNumber(fromHost.metrics[metric], value, metric, 0, METRIC_RELATIVE);
  assertSameArray(fromHost.grad, expected.grad, 'grad');
  using resident = await upload(batch, DEVICE);
  assertSameBits((await compute(resident)) as Computed, fromHost);
  return true;
}

for (const [file, { cases, nameOf }] of Object.entries(FILES))
  describe(`golden policy losses of ${file} on ${DEVICE}`, () => {
    before(function () {
      if (devices()[0]!.isa === 'sse4') this.skip();
    });

    let computed = 0;
    for (const { id, fn, args, inputs } of cases)
      it(id, async () => {
        if (await agrees(nameOf(fn), args, goldenBatch(inputs))) computed++;
        await agrees(nameOf(fn), args, packedCase(inputs));
      });

    it('are computed, nearly all of them', () => {
      assert.ok(computed > 0.7 * cases.length, `${computed} of ${cases.length}`);
    });
  });
