/**
 * Tests that a search finds the configuration behind logged numbers. The numbers come from the float64 reference, which
 * shares no code with the package, and from trainers' files.
 */
import assert from 'node:assert/strict';
import { LossError, POLICY_LOSS_FN } from '../../../lib/index.js';
import { type Candidate, identify, type LoggedNumbers } from '../../../lib/tools/identify/index.js';
import type { PackedRows } from '../../../lib/tools/rollouts/index.js';
import { type Args, type ReferenceBatch, referenceKl, referencePolicyLosses } from '../../reference/index.js';
import { makeBatch } from '../../support/draw.js';
import { requiredArgs } from '../../support/draw-arguments.js';
import { packedRows, takeRows } from '../../support/rows.js';

// Losses that take part in every search, so that there is something to mistake the right one for.
const OTHERS = ['ppo', 'gspo', 'cispo', 'importance_sampling'];

const PPO = { clip_range: 0.2, loss_agg_mode: 'token-mean' } as Args;

// Files have no mismatched rows, from which KTO losses could compute the estimate of the KL divergence.
const drawn = (seed: number): ReferenceBatch => ({
  ...makeBatch({ seed, rows: 12, columns: 24, values: 'moderate', mask: 'random', packed: true }),
  klEstimate: Array(12).fill(0.25),
});

/** The arguments of a loss that the reference needs, although they have defaults. */
function clipArgs(name: string): Args {
  const defaults = Object.entries(POLICY_LOSS_FN.get(name).defaultArgs());
  return Object.fromEntries(
    defaults.filter(([key, value]) => key.startsWith('clip_range') && value !== null),
  ) as Args;
}

/** What a trainer logs: the loss, its metrics, and the norm of its gradient. What a loss remembers is not a metric. */
function numbersOf(name: string, args: Args, batch: ReferenceBatch): Record<string, number> {
  const { loss, metrics, grad } = referencePolicyLosses[name]!({ ...clipArgs(name), ...args }, batch);
  const logged: object = POLICY_LOSS_FN.get(name).declaration!.metrics;
  const finite = Object.entries(metrics).filter(([key, value]) => key in logged && Number.isFinite(value));
  return { ...Object.fromEntries(finite), loss, grad_norm: Math.hypot(...grad) };
}

/** The differences from the logged numbers, relative to these, or absolute for numbers near 0. */
const errorsOf = ({ logged }: Candidate) =>
  Object.values(logged).map(({ value, logged: wanted }) => {
    assert.ok(value !== null);
    return Math.abs(value - wanted) / Math.max(Math.abs(wanted), 1e-3);
  });

const first = (candidates: readonly Candidate[]) => candidates.filter(({ rank }) => rank === 1);

describe('identify', () => {
  describe('ranks first the loss that the reference computed', () => {
    POLICY_LOSS_FN.names().forEach((name, i) => {
      it(name, async () => {
        const { declaration } = POLICY_LOSS_FN.get(name);
        const args = requiredArgs(declaration);
        const batch = drawn(100 + i);
        const logged = numbersOf(name, args, batch);
        const rows = packedRows(batch);
        // Without a reference policy and corrections, a search is much shorter.
        const { columns } = POLICY_LOSS_FN.create(name, args).reads;
        if (!columns.includes('ref_logprob')) delete rows.refLogprob;
        if (!columns.includes('rollout_logprob')) delete rows.rolloutLogprob;
        const { candidates, tried } = await identify(rows, {
          logged,
          losses: [...new Set([name, 'ppo', 'importance_sampling'])],
          microBatches: [1],
        });
        const best = first(candidates);
        assert.ok(
          best.some(({ loss, microBatches, kl }) => loss === name && microBatches === 1 && kl === null),
          JSON.stringify(candidates.slice(0, 2)),
        );
        // The others of the rank have the same numbers, within some rounding errors of float32.
        const exact = Math.max(...errorsOf(best[0]!));
        for (const each of best)
          for (const error of errorsOf(each))
            assert.ok(error <= Math.max(1e-5, 3 * exact), JSON.stringify([each, best[0]]));
        assert.ok(tried > best.length);
      });
    });
  });

  it('finds clip bounds, the KL term, the entropy coefficient and the micro-batches', async () => {
    const batch = drawn(1);
    const rows = packedRows(batch);
    const halves = [0, 1].map((half) => takeRows(batch, 6 * half, 6));
    const args = { clip_range_low: 0.1, clip_range_high: 0.28, loss_agg_mode: 'token-mean' } as Args;
    const kl = halves.map((half) => referenceKl.k3!.loss({ kl_coef: 1, loss_agg_mode: 'token-mean' }, half));
    const pg = halves.map((half) => referencePolicyLosses.ppo!(args, half));
    const mean = ([a, b]: readonly number[]) => (a! + b!) / 2;
    const entropy = mean(halves.map(meanEntropy));
    const pg_loss = mean(pg.map(({ loss }) => loss));
    const kl_loss = mean(kl.map(({ loss }) => loss));
    const grads = pg.flatMap(({ grad }, i) => Array.from(grad, (g, t) => (g + 0.02 * kl[i]!.grad[t]!) / 2));
    const { candidates } = await identify(rows, {
      logged: {
        'actor/pg_loss': pg_loss,
        'actor/kl_loss': kl_loss,
        pg_clipfrac: mean(pg.map(({ metrics }) => metrics.pg_clipfrac!)),
        loss: pg_loss + 0.02 * kl_loss - 0.001 * entropy,
        grad_norm: Math.hypot(...grads),
      },
      losses: [...OTHERS, 'verl/vanilla', 'trl/grpo'],
    });
    const found = first(candidates).find(({ loss }) => loss === 'ppo')!;
    assert.ok(found, JSON.stringify(candidates[0]));
    assert.equal(found.options.clip_range_low, 0.1);
    assert.equal(found.options.clip_range_high, 0.28);
    assert.deepEqual(found.kl, { fn: 'k3', coef: 0.02 });
    assert.equal(found.entropyCoef, 0.001);
    assert.equal(found.microBatches, 2);
    assert.equal(found.matches, 5);
  });

  it('finds any coefficient if all terms of the loss are known', async () => {
    const batch = drawn(7);
    const pg = referencePolicyLosses.ppo!(PPO, batch).loss;
    const kl = referenceKl.k2!.loss({ kl_coef: 1, loss_agg_mode: 'token-mean' }, batch).loss;
    const { candidates } = await identify(packedRows(batch), {
      logged: { pg_loss: pg, kl_loss: kl, loss: pg + 0.0137 * kl },
      losses: ['ppo'],
      microBatches: [1],
    });
    assert.deepEqual(first(candidates)[0]!.kl, { fn: 'k2', coef: 0.0137 });
  });

  it('takes the old policy for the current one, and the rollout engine for the old one', async () => {
    const batch = drawn(2);
    const { logprob: _, ...rest } = packedRows(batch);
    const roles = { ...batch, logprob: batch.oldLogprob!, oldLogprob: batch.rolloutLogprob! };
    const logged = numbersOf('ppo', { clip_range: 0.05 }, roles);
    const { candidates } = await identify(rest as PackedRows, { logged, losses: OTHERS });
    const [found] = first(candidates);
    assert.equal(found!.logprobsFrom, 'old_logprobs');
    assert.equal(found!.oldLogprobsFrom, 'rollout_logprobs');
    assert.equal(found!.loss, 'ppo');
    assert.equal(found!.options.clip_range_low, 0.05);
  });

  it('reports ties at a ratio of 1 as ties, and what would tell them apart', async () => {
    const batch = drawn(3);
    const { logprob: _, rolloutLogprob: __, ...rest } = packedRows(batch);
    const atOne = { ...batch, logprob: batch.oldLogprob! };
    const { loss } = referencePolicyLosses.ppo!(PPO, atOne);
    const { candidates, wouldTellApart } = await identify(rest as PackedRows, {
      logged: { loss },
      losses: OTHERS,
    });
    const tied = first(candidates).filter(
      ({ kl, lossAggMode }) => kl === null && lossAggMode === 'token-mean',
    );
    for (const name of ['ppo', 'gspo', 'importance_sampling']) {
      const found = tied.find((candidate) => candidate.loss === name);
      assert.ok(found, name);
      if (name === 'ppo') assert.ok(found.undetermined.includes('clip_range_low'));
    }
    assert.ok(wouldTellApart.length > 0);
  });

  it("applies a trainer's factors", async () => {
    const batch = drawn(4);
    const { loss, metrics } = referencePolicyLosses.ppo!(PPO, batch);
    const { candidates } = await identify(packedRows(batch), {
      logged: { pg_loss: 4 * loss, pg_clipfrac: metrics.pg_clipfrac! },
      losses: ['ppo'],
      trainer: 'verl',
      microBatches: [1],
    });
    assert.equal(first(candidates)[0]!.factor, 4);
  });

  it('does not rank a needless KL term with a small coefficient as high, if numbers are logged in full', async () => {
    const batch = drawn(301);
    const logged = numbersOf('gspo', {}, batch);
    const options = { losses: ['gspo', 'ppo'], microBatches: [1] };
    const { candidates } = await identify(packedRows(batch), { logged, ...options });
    assert.deepEqual(
      first(candidates).map(({ loss, kl, entropyCoef }) => [loss, kl, entropyCoef]),
      [['gspo', null, 0]],
    );
    assert.ok(candidates.some(({ rank, kl }) => rank === 2 && kl !== null));
  });

  it('knows a number to as many digits as are given', async () => {
    const batch = drawn(5);
    const { loss } = referencePolicyLosses.ppo!(PPO, batch);
    const options = { losses: ['ppo'], microBatches: [1] };
    const text = loss.toFixed(2);
    const [best] = (await identify(packedRows(batch), { logged: { loss: text }, ...options })).candidates;
    assert.equal(best!.logged.loss!.digits, 7);
  });

  it('takes a whole number as exact unless it is a text', async () => {
    const rows = packedRows(drawn(5));
    const options = { losses: ['ppo'], microBatches: [1] };
    const digitsOf = async (logged: LoggedNumbers) =>
      (await identify(rows, { logged, ...options })).candidates[0]!.logged.pg_clipfrac!.digits;
    assert.ok((await digitsOf({ pg_clipfrac: 1 })) < 1);
    assert.equal(await digitsOf({ pg_clipfrac: '1' }), 7);
  });

  it('refuses numbers, names and rows that it cannot use', async () => {
    const rows = packedRows(drawn(6));
    const codes: [options: object, code: string][] = [
      [{ logged: {} }, 'ERR_INVALID_OPTION'],
      [{ logged: { loss: Number.NaN } }, 'ERR_INVALID_OPTION'],
      [{ logged: { loss: '' } }, 'ERR_INVALID_OPTION'],
      [{ logged: { loss: 1 }, losses: ['ppoo'] }, 'ERR_UNKNOWN_NAME'],
      [{ logged: { loss: 1 }, trainer: 'verll' }, 'ERR_UNKNOWN_NAME'],
      [{ logged: { loss: 1 }, top: 0 }, 'ERR_INVALID_OPTION'],
    ];
    for (const [options, code] of codes)
      await assert.rejects(
        identify(rows, options as { logged: LoggedNumbers }),
        (error) => error instanceof LossError && error.code === code,
        JSON.stringify(options),
      );
    const { logprob: _, oldLogprob: __, rolloutLogprob: ___, ...without } = rows;
    await assert.rejects(
      identify(without as PackedRows, { logged: { loss: 1 } }),
      (error) => error instanceof LossError && error.code === 'ERR_MISSING_INPUT',
    );
  });
});

function meanEntropy({ entropy, actionMask }: ReferenceBatch): number {
  let [sum, tokens] = [0, 0];
  for (let t = 0; t < actionMask.length; t++) {
    sum += actionMask[t]! * entropy![t]!;
    tokens += actionMask[t]!;
  }
  return sum / tokens;
}
