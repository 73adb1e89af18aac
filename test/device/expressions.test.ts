/**
 * Tests losses from expressions on a CUDA device, real or emulated: golden cases, random expressions, and a loss that reads
 * numbers per row.
 */
import assert from 'node:assert/strict';
import fc from 'fast-check';
import {
  ALGORITHM_TYPE,
  devices,
  type LossResult,
  lossFromExpression,
  type Metrics,
  POLICY_LOSS_FN,
  type PolicyLossFn,
  upload,
} from '../../lib/index.js';
import { policyLoss } from '../../lib/losses/policy-loss.js';
import { batchSpec, EDGE_LENGTHS, makeBatch } from '../support/draw.js';
import { assertJudged, EXPRESSIONS, judge } from '../support/expressions.js';
import { isLossError } from '../support/loss-error.js';
import { packedBatch, paddedBatch, unpack } from '../support/subject.js';
import { assertArray, assertNumber, assertSameArray, assertSameBits } from '../support/tolerance.js';
import { asyncOf, syncOf, userLoss } from '../support/user-loss.js';

const DEVICE = 'cuda:0';
const SEED = Number(process.env.FC_SEED ?? 2025);
const LEVELS = ['token', 'row', 'batch', 'pairs'] as const;

type Laid = ReturnType<typeof packedBatch>;

// Computes from a batch in host memory and from its uploaded copy, and asserts that the results have equal bits.
async function onDevice(fn: PolicyLossFn, batch: Laid) {
  const fromHost = await asyncOf(fn, batch, DEVICE);
  using resident = await upload(batch, DEVICE);
  assertSameBits(await asyncOf(fn, resident), fromHost);
  assertSameBits(syncOf(fn, resident), fromHost);
  return fromHost;
}

describe(`random expressions on ${DEVICE}`, () => {
  for (const level of LEVELS)
    it(`agree with the reference: ${level} expressions`, () =>
      fc.assert(
        fc.asyncProperty(EXPRESSIONS[level], EXPRESSIONS[level], batchSpec, async (loss, metric, spec) => {
          const batch = makeBatch(level === 'pairs' ? { ...spec, rows: spec.rows + (spec.rows % 2) } : spec);
          const { fn, formula, args } = userLoss(loss, 'seq-mean-token-mean', { metric });
          const judged = judge(formula, args, batch);
          if (!judged) return;
          const computed = await onDevice(fn, batch.rowLengths ? packedBatch(batch) : paddedBatch(batch));
          const grad = batch.rowLengths ? unpack(batch, computed.grad) : computed.grad;
          assertJudged({ ...computed, grad }, judged);
        }),
        { numRuns: 60, seed: SEED },
      ));

  for (const level of LEVELS)
    it(`have the same bits per token as on the CPU: ${level} expressions`, async function () {
      if (devices()[0]!.isa === 'sse4') this.skip();
      const laid = packedBatch(makeBatch(EDGE_LENGTHS));
      for (const loss of fc.sample(EXPRESSIONS[level], { seed: SEED, numRuns: 20 })) {
        const { fn } = userLoss(loss);
        const [there, here] = [await asyncOf(fn, laid, DEVICE), await asyncOf(fn, laid)];
        assertSameArray(there.grad, here.grad, 'gradient');
      }
    });
});

const RowLoss = policyLoss({
  name: 'test',
  summary: 'test',
  source: [],
  options: {},
  numerics: { range: 'any', outside: 'none' },
  reads: ['rewards', 'v_star', 'probability', 'log_z', 'action_mask'],
  metrics: { reward: { unit: 'x' }, best: { unit: 'x', when: 'in one call' } },
  formula: ({ lp, rewards, vStar, probability, logZ, rowSum, rowsMax, rows, square }) => ({
    rowLoss: square(rowSum(lp).add(logZ).sub(rewards)).mul(probability).div(rows),
    metrics: { reward: { row: rewards }, best: { batch: rowsMax(vStar) } },
    allRows: true,
  }),
});

// Sums numbers of very different sizes, so that another order of the additions changes the last bits.
const SumLoss = policyLoss({
  name: 'test',
  summary: 'test',
  source: [],
  options: {},
  numerics: { range: 'any', outside: 'none' },
  reads: ['logprob', 'old_logprob', 'action_mask'],
  metrics: { mean: { unit: 'x' }, sum: { unit: 'x', when: 'in one call' } },
  formula: ({ lp, old, t, rowSum, rowMean, rowMin, rowMax, rowRank, rowQuantile, rowsSum, exp }) => {
    const sum = rowSum(exp(old.mul(8)));
    const ofTokens = rowRank(old)
      .add(t)
      .mul(lp.le(rowQuantile(old, 0.3)));
    return {
      loss: lp.mul(sum.add(ofTokens)).add(rowMax(lp.sub(old)).mul(rowMin(old))),
      metrics: { mean: { row: rowMean(lp.sub(old)) }, sum: { batch: rowsSum(sum.sub(1)) } },
    };
  },
});

describe(`reductions over long rows on ${DEVICE}`, () => {
  const fn = new SumLoss();
  // All warps compute a row together if rows are few, and each computes rows of its own if they are many.
  const rows: Record<string, number[]> = {
    'one row': [100_000],
    'few rows': [33_000, 3, 0, 16_385],
    'many rows': Array(36).fill(4500),
  };
  for (const [title, rowLengths] of Object.entries(rows))
    it(`have the same bits as on the CPU: ${title}`, async function () {
      if (devices()[0]!.isa === 'sse4') this.skip();
      const columns = Math.max(...rowLengths);
      const spec = { ...EDGE_LENGTHS, rows: rowLengths.length, columns, rowLengths };
      const laid = packedBatch(makeBatch(spec));
      const { loss, metrics, grad } = syncOf(fn, laid);
      const found = await onDevice(fn, laid);
      assertSameArray(found.grad, grad, 'grad');
      assert.equal(found.metrics.sum, metrics.sum);
      assertNumber(found.loss, loss, 'loss');
      assertNumber(found.metrics.mean, metrics.mean!, 'mean');
    });
});

describe(`losses of rows, values and rewards on ${DEVICE}`, () => {
  const batch = makeBatch(EDGE_LENGTHS);
  const { groupIds, ...laid } = packedBatch(batch);
  const TEXTS = [
    '-logsigmoid(0.1*(chosen(row_sum(lp - ref)) - rejected(row_sum(lp - ref))))',
    '0.5*max(square(value - returns), square(clip(value, old_value - 0.2, old_value + 0.2) - returns))',
    '-logsigmoid(chosen(reward) - rejected(reward) - margin)',
  ];
  for (const text of TEXTS)
    it(`${text} has the same results as on the CPU`, async () => {
      const fn = lossFromExpression(text);
      using resident = await upload(laid, DEVICE);
      const gradOf = (result: object) =>
        Object.entries(result).find(([key]) => key.startsWith('grad'))![1] as Float32Array;
      const expected = fn.computeSync(laid, { grad: true });
      for (const found of [
        await fn.compute(laid, { grad: true, device: DEVICE }),
        await fn.compute(resident, { grad: true }),
      ]) {
        assertNumber(found.loss, expected.loss, 'loss');
        assertArray(gradOf(found), gradOf(expected), 'gradient');
      }
    });
});

describe(`a loss that reads numbers per row on ${DEVICE}`, () => {
  // The third row has no unmasked token.
  const batch = {
    shape: [4, 2] as const,
    logprob: Float32Array.of(-1, -2, -3, -4, -5, -6, -7, -8),
    actionMask: Uint8Array.of(1, 1, 1, 0, 0, 0, 1, 1),
    rewards: Float64Array.of(1, 2, 6, -17),
    vStar: [0.5, 0.25, 0.75, 0],
    probability: [1, 0.5, 0.25, 0.5],
    logZ: [1, 2, 4, 0],
  };

  it('has the same results as on the CPU', async () => {
    const fn = new RowLoss();
    const wanted = { grad: true, gradLogZ: true };
    const expected = fn.computeSync(batch, wanted);
    assert.deepEqual(expected.metrics, { reward: -2, best: 0.75 });
    assert.equal(expected.loss, (9 + 0.5 * 9 + 0.25 * 4 + 0.5 * 4) / 4);
    assert.deepEqual([...expected.grad!], [-1.5, -1.5, -0.75, 0, 0, 0, 0.5, 0.5]);
    assert.deepEqual([...expected.gradLogZ!], [-1.5, -0.75, -0.25, 0.5]);
    assert.deepEqual(await fn.compute(batch, { ...wanted, device: DEVICE }), expected);
    using resident = await upload(batch, DEVICE);
    assert.deepEqual(await fn.compute(resident, wanted), expected);
  });

  it('names the numbers that were not uploaded', async () => {
    const { logZ: _, ...without } = batch;
    using resident = await upload(without, DEVICE);
    await assert.rejects(
      new RowLoss().compute(resident),
      isLossError('ERR_MISSING_INPUT', /logZ: expected a column that was uploaded/),
    );
  });
});

describe(`losses that depend on the columns of the batch on ${DEVICE}`, () => {
  const oldLogprob = Float32Array.of(-1.5, -1.25, -3, -4, -5, -6);
  const entropy = Float32Array.of(0.5, 1.5, 2.5, 9, 9, 9);
  // The third row has no unmasked token.
  const perRow = {
    shape: [3, 2] as const,
    logprob: Float32Array.of(-1, -2, -3, -4, -5, -6),
    refLogprob: Float32Array.of(-2, -1, -3, -4, -5, -6),
    actionMask: Uint8Array.of(1, 1, 1, 0, 0, 0),
    advantages: Float32Array.of(2, -1, 6),
    logZ: [1, 2, 4],
  };
  const perToken = { ...perRow, advantages: Float32Array.of(2, 2, -1, 9, 9, 9) };
  const batches = [
    perRow,
    perToken,
    { ...perRow, entropy },
    { ...perRow, oldLogprob },
    { ...perToken, oldLogprob, entropy },
  ];
  const agrees = (actual: LossResult<Partial<Metrics>>, expected: LossResult<Partial<Metrics>>) => {
    assertNumber(actual.loss, expected.loss, 'loss');
    assert.deepEqual(Object.keys(actual.metrics), Object.keys(expected.metrics));
    for (const [name, value] of Object.entries(expected.metrics))
      assertNumber(actual.metrics[name], value!, name);
    for (const name of ['grad', 'gradEntropy', 'gradLogZ'] as const)
      assertArray(actual[name]!, expected[name]!, name);
  };

  for (const [name, args] of [
    ['trl/bnpo', { importance_sampling_level: 'sequence' }],
    ['trl/bnpo', { entropy_coef: 0.5 }],
    ['trl/gmpo', {}],
    ['verl/flowrl', {}],
  ] as const)
    it(`${name} ${JSON.stringify(args)} has the same results as on the CPU`, async () => {
      const fn = POLICY_LOSS_FN.create(name, args);
      const has = (batch: object, key: string) =>
        fn.reads.optional.includes(key as 'entropy') || key in batch;
      const wanted = { grad: true, gradEntropy: true, gradLogZ: true };
      for (const batch of batches) {
        if (fn.reads.columns.includes('entropy') && !has(batch, 'entropy')) continue;
        const withOld = fn.reads.optional.includes('old_logprob') ? batch : { ...batch, oldLogprob };
        const expected = fn.computeSync(withOld, wanted);
        agrees(await fn.compute(withOld, { ...wanted, device: DEVICE }), expected);
        using resident = await upload(withOld, DEVICE);
        agrees(await fn.compute(resident, wanted), expected);
      }
    });

  it('take the advantages of rows that an algorithm computes on the device', async () => {
    const objective = ALGORITHM_TYPE.get('grpo').objective({
      policy_loss_fn: 'trl/rloo',
      kl_loss_fn: 'none',
      entropy_loss_fn: 'none',
    });
    const { advantages: _, ...others } = perRow;
    const batch = { ...others, oldLogprob, rewards: [1, 2, 6], groupIds: [0, 0, 0] };
    const wanted = { grad: true, gradEntropy: true, gradLogZ: true };
    const expected = objective.computeSync(batch, wanted);
    using resident = await upload(batch, DEVICE);
    agrees(await objective.compute(resident, wanted), expected);
  });
});
