/** The losses that lib/ defines by expressions: their declarations, their inputs, and what their results hold. */
import assert from 'node:assert/strict';
import fc from 'fast-check';
import type { NativeProgramLossSpec } from '../../binding.js';
import { POLICY_LOSS_FN, sumCounts } from '../../lib/index.js';
import { policyLoss } from '../../lib/losses/policy-loss.js';
import { ARGUMENTS } from '../support/draw-arguments.js';
import { isLossError } from '../support/loss-error.js';
import { assertArray } from '../support/tolerance.js';

const NUMERICS = { range: 'any', outside: 'none' };
const base = { name: 'test', summary: 'test', source: [], options: {}, numerics: NUMERICS } as const;

const programs = POLICY_LOSS_FN.names().filter(
  (name) => 'program' in POLICY_LOSS_FN.create(name, sampled(name)[0]!).policyLoss,
);

function sampled(name: string) {
  return fc.sample(ARGUMENTS.policy[name]!, { seed: 3, numRuns: 30 });
}

describe('losses that are defined by expressions', () => {
  for (const name of programs) {
    const { declaration } = POLICY_LOSS_FN.get(name);
    const created = sampled(name).map((args) => POLICY_LOSS_FN.create(name, args, { backend: 'tinker' }));

    it(`${name} has the metrics of its declaration`, () => {
      const declared = Object.entries(declaration!.metrics);
      for (const { policyLoss } of created) {
        // What a loss remembers is no metric to its callers.
        const names = (policyLoss as NativeProgramLossSpec).metrics
          .map((metric) => metric.name)
          .filter((metric) => !metric.startsWith('state/'));
        const expected = declared.filter(
          ([metric, { when }]) => when === undefined || names.includes(metric),
        );
        assert.deepEqual([...names].sort(), expected.map(([metric]) => metric).sort());
      }
    });

    it(`${name} reads the columns of its declaration`, () => {
      const read = new Set(created.flatMap(({ selectKeys }) => selectKeys));
      assert.deepEqual([...read].sort(), [...declaration!.reads].sort());
    });
  }
});

const RowLoss = policyLoss({
  ...base,
  reads: ['old_entropy', 'rewards', 'log_z', 'action_mask'],
  metrics: { tokens: { unit: 'x' }, reward: { unit: 'x' }, best: { unit: 'x', when: 'in one call' } },
  formula: ({ lp, oldEntropy, rewards, logZ, rowSum, rowsMax, rows, square }) => ({
    loss: lp.mul(oldEntropy),
    rowLoss: square(rowSum(lp).sub(rewards)).div(rows),
    metrics: { tokens: { token: oldEntropy }, reward: { row: rewards }, best: { batch: rowsMax(logZ) } },
    allRows: true,
  }),
});

const batch = {
  shape: [3, 2] as const,
  logprob: Float32Array.of(-1, -2, -3, -4, -5, -6),
  old_entropy: Float32Array.of(1, 2, 3, 4, 5, 6),
  action_mask: Uint8Array.of(1, 1, 1, 0, 0, 0),
  rewards: Float64Array.of(1, 2, 6),
  logZ: [0.5, 0.25, 0.75],
};

describe('policyLoss()', () => {
  it('adds the losses of tokens and rows, and their gradients', () => {
    const { loss, metrics, grad } = new RowLoss().computeSync(batch, { grad: true });
    assert.equal(loss, -1 - 4 - 9 + (16 + 25 + 36) / 3);
    assert.deepEqual(
      { ...metrics, tokens: Math.round(metrics.tokens * 1e6) / 1e6 },
      { tokens: 2, reward: 3, best: 0.75 },
    );
    const expected = [1, 2, 3, 0, 0, 0].map((h, i) => h && h + (2 / 3) * (i < 2 ? -4 : -5));
    assertArray(grad!, expected, 'grad');
  });

  it('leaves the metrics of the batch out of the results of parts', () => {
    const fn = new RowLoss();
    const normalizer = sumCounts([fn.countSync(batch)]);
    const { loss, metrics } = fn.computeSync(batch, { normalizer });
    assert.equal(loss, new RowLoss().computeSync(batch).loss);
    assert.deepEqual(Object.keys(metrics), ['tokens', 'reward']);
  });

  const withBatchMetrics = (count: number) => {
    const names = Array.from({ length: count }, (_, i) => `batch_${i}`);
    const ofTokens = Array.from({ length: 16 }, (_, i) => `token_${i}`);
    return policyLoss({
      ...base,
      reads: ['action_mask'],
      metrics: Object.fromEntries([...ofTokens, ...names].map((name) => [name, { unit: 'x' }])),
      formula: ({ lp, log, batchSum, constant }) => ({
        loss: lp,
        metrics: Object.fromEntries([
          ...names.map((name, i) => [name, { batch: i === 40 ? log(batchSum(lp)) : batchSum(lp).add(i) }]),
          ...ofTokens.map((name, i) => [name, { token: constant(i) }]),
        ]),
      }),
    });
  };

  it('reports 16 metrics of tokens and 48 of the batch, but for those that are NaN', () => {
    const Loss = withBatchMetrics(48);
    const { metrics } = new Loss().computeSync(batch) as { metrics: Record<string, number> };
    const expected = Array.from({ length: 48 }, (_, i) => [`batch_${i}`, i - 6]).filter((_, i) => i !== 40);
    const ofBatch = Object.entries(metrics).filter(([name]) => name.startsWith('batch_'));
    assert.deepEqual(Object.fromEntries(ofBatch), Object.fromEntries(expected));
    assert.equal(Object.keys(metrics).length, 47 + 16);
    assert.ok(Math.abs(metrics.token_15! - 15) < 1e-6);
  });

  it('refuses more metrics than a program can have', () => {
    const Loss = withBatchMetrics(49);
    assert.throws(() => new Loss(), isLossError('ERR_INVALID_OPTION', /too many metrics/));
  });

  it('names the numbers per row that a batch lacks', () => {
    const { rewards: _, ...without } = batch;
    assert.throws(
      () => new RowLoss().computeSync(without),
      isLossError('ERR_MISSING_INPUT', /rewards: expected a reward per row/),
    );
  });

  it('refuses expressions with more values than they may have', () => {
    const Invalid = policyLoss({
      ...base,
      reads: ['action_mask'],
      metrics: {},
      formula: ({ lp }) => ({
        rowLoss: lp,
        metrics: {},
      }),
    });
    assert.throws(() => new Invalid(), isLossError('ERR_INVALID_OPTION', /one value per row/));
  });

  it('has the types of the declared metrics', () => {
    const declaration = {
      ...base,
      reads: [],
      metrics: { a: { unit: 'x' }, b: { unit: 'x', when: 'at times' } },
    } as const;
    policyLoss({
      ...declaration,
      formula: ({ lp }) => ({ loss: lp, metrics: { a: { token: lp }, b: undefined } }),
    });
    policyLoss({
      ...declaration,
      // @ts-expect-error: the metric b is missing
      formula: ({ lp }) => ({ loss: lp, metrics: { a: { token: lp } } }),
    });
    policyLoss({
      ...declaration,
      // @ts-expect-error: a is declared without a condition
      formula: ({ lp }) => ({ loss: lp, metrics: { a: undefined, b: { token: lp } } }),
    });
    policyLoss({
      ...declaration,
      // @ts-expect-error: a metric is per token, per row or per batch
      formula: ({ lp }) => ({ metrics: { a: { tokens: lp }, b: undefined } }),
    });
  });
});
