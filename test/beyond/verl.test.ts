/**
 * Compares verl's policy losses and KL losses with every result of verl itself, and the policy losses with the float64
 * reference on drawn batches.
 */
import assert from 'node:assert/strict';
import fc from 'fast-check';
import { KL_FN, POLICY_LOSS_FN } from '../../lib/index.js';
import { referencePolicyLosses, standsOnEdge } from '../reference/index.js';
import { reported, verlFormulas } from '../reference/verl.js';
import { ARGUMENTS, batchSpec, fitting, makeBatch, three } from '../support/draw.js';
import { drawn } from '../support/drawn.js';
import {
  cutRows,
  type FrameworkLossCase,
  goldenBatch,
  referenceBatch,
  verlCases,
} from '../support/golden.js';
import { isLossError } from '../support/loss-error.js';
import { poison } from '../support/poison.js';
import { packedBatch, paddedBatch, subject, unpack } from '../support/subject.js';
import { assertArray, assertComputed, assertSameBits } from '../support/tolerance.js';

const cases = verlCases.filter((each): each is FrameworkLossCase => each.kind === 'policy_loss');
const nameOf = (fn: string) => `verl/${fn.replace(/^verl_/, '')}`;

async function agreesWithCase({ fn, args, inputs, expected }: FrameworkLossCase): Promise<void> {
  const on = subject('policy', nameOf(fn), args);
  const { gradLogZ } = POLICY_LOSS_FN.create(nameOf(fn), args).computeSync(goldenBatch(inputs), {
    gradLogZ: true,
  });
  assertArray(gradLogZ!, expected.grad_log_z?.data ?? gradLogZ!.map(() => 0), 'gradLogZ');
  const wanted = { ...expected, metrics: reported(expected.metrics, args), grad: expected.grad_logprob.data };
  const batch = goldenBatch(inputs);
  const computed = on.sync(batch);
  assertComputed(computed, wanted);
  assertSameBits(await on.async(batch), computed);
  const cut = cutRows(referenceBatch(inputs));
  const packed = on.sync(packedBatch(cut));
  assertComputed({ ...packed, grad: unpack(cut, packed.grad) }, wanted);
}

describe("verl's policy losses", () => {
  for (const each of cases) it(each.id, () => agreesWithCase(each));

  it('are all of those that have cases', () => {
    const covered = new Set(cases.map(({ fn }) => nameOf(fn)));
    const names = POLICY_LOSS_FN.names().filter((name) => name.startsWith('verl/'));
    assert.deepEqual([...covered].sort(), names.sort());
  });

  // The cross-validation compares the other results on drawn batches.
  it('have the gradient with respect to log_z of the reference on drawn batches', () => {
    fc.assert(
      fc.property(ARGUMENTS.policy['verl/flowrl']!, three(batchSpec), (args, specs) => {
        const on = POLICY_LOSS_FN.create('verl/flowrl', args);
        for (const spec of specs) {
          const batch = makeBatch(fitting('verl/flowrl', args, spec));
          if (standsOnEdge(verlFormulas['verl/flowrl']!, args, batch)) continue;
          const lay = spec.packed ? packedBatch : paddedBatch;
          const { gradLogZ } = on.computeSync(lay(poison(batch, Number.NaN)), { gradLogZ: true });
          assertArray(gradLogZ!, referencePolicyLosses['verl/flowrl']!(args, batch).gradLogZ!, 'gradLogZ');
        }
      }),
      { seed: 11, numRuns: 20 },
    );
  });

  it('draws other tokens for clip_cov with another seed, and follows keys', () => {
    const [rows, columns] = [8, 40];
    const at = Array.from({ length: rows * columns }, (_, i) => i);
    const logprob = at.map((i) => -1 - Math.sin(i));
    const batch = {
      shape: [rows, columns] as const,
      logprob,
      oldLogprob: logprob,
      advantages: at.map((i) => Math.sin(3 * i + 1)),
      actionMask: at.map(() => 1),
    };
    const zeros = (seed: number, keys?: number[]) => {
      const args = { clip_cov_ratio: 0.05, clip_cov_lb: -10, seed };
      const fn = POLICY_LOSS_FN.create('verl/clip_cov', args);
      const { grad } = fn.computeSync({ ...batch, ...(keys && { clip_cov_keys: keys }) }, { grad: true });
      return at.filter((i) => grad![i] === 0);
    };
    const [first, second] = [zeros(1), zeros(2)];
    assert.equal(first.length, 16);
    assert.equal(second.length, 16);
    assert.notDeepEqual(first, second);
    const keys = at.map((i) => drawn(1, Math.floor(i / columns), i % columns));
    assert.deepEqual(zeros(2, keys), first);
    assert.deepEqual(zeros(2, Array(at.length).fill(0)), at.slice(0, 16));
  });

  it('refuses several processes without the counts of all of them', () => {
    const create = (args: Record<string, unknown>) => () => POLICY_LOSS_FN.create('verl/gpg', args);
    const refused = (option: string) => isLossError('ERR_INVALID_OPTION', new RegExp(`${option}: expected`));
    assert.throws(create({ dp_size: 2 }), refused('batchNumTokens'));
    assert.throws(create({ dp_size: 2, loss_agg_mode: 'seq-mean-token-sum' }), refused('globalBatchSize'));
    create({ dp_size: 2, loss_agg_mode: 'token-sum' })();
    create({ dp_size: 2, batch_num_tokens: 64 })();
  });

  it('minimizes k1 by policy gradient only', () => {
    assert.throws(
      () => POLICY_LOSS_FN.create('verl/distillation', { loss_mode: 'k1' }),
      isLossError('ERR_INVALID_OPTION', /lossMode: expected usePolicyGradient to be true for k1/),
    );
  });

  it('gives 0 if no token is kept', () => {
    const batch = {
      shape: [1, 2] as const,
      logprob: [-1, -2],
      oldLogprob: [-1, -2],
      rolloutLogprob: [-3, -4],
      advantages: [1, -1],
      actionMask: [1, 1],
    };
    const args = { rollout_is: 'token', rollout_rs: 'token_k1', rollout_rs_threshold: 1.1 };
    for (const name of ['vanilla', 'gspo', 'geo_mean']) {
      const fn = POLICY_LOSS_FN.create(`verl/${name}`, args);
      const { loss, metrics, grad } = fn.computeSync(batch, { grad: true });
      assert.equal(loss, 0, name);
      assert.deepEqual([...grad!].map(Math.abs), [0, 0], name);
      assert.ok(Object.values(metrics).every(Number.isFinite), name);
      assert.equal(metrics['rollout_corr/rollout_rs_seq_masked_fraction'], 1, name);
    }
  });
});

describe("verl's KL losses", () => {
  const klCases = verlCases.filter((each) => each.kind === 'kl_loss');
  for (const { id, fn, args, inputs, expected } of klCases)
    it(id, async () => {
      const on = subject('kl', fn, args);
      const batch = goldenBatch(inputs);
      const computed = on.sync(batch);
      assertComputed(computed, { ...expected, grad: expected.grad_logprob.data });
      assertSameBits(await on.async(batch), computed);
      assertArray(KL_FN.create(fn).calculateKlSync(batch), expected.kl.data, 'kl');
    });

  it('have cases', () => {
    assert.deepEqual(
      [...new Set(klCases.map(({ fn }) => fn))].sort(),
      KL_FN.names()
        .filter((name) => name.endsWith('+'))
        .sort(),
    );
  });
});
