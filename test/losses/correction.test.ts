/** Tests the options `correction` and `masks`, which every policy loss accepts. */
import assert from 'node:assert/strict';
import fc from 'fast-check';
import {
  ALGORITHM_TYPE,
  CORRECTION_FN,
  checkLoss,
  defineLoss,
  lossFromExpression,
  POLICY_LOSS_FN,
} from '../../lib/index.js';
import { withCorrection } from '../reference/frameworks/verl-correction.js';
import { type Args, evaluator, formulas, standsOnEdge } from '../reference/index.js';
import { reported } from '../reference/verl.js';
import { batchSpec, makeBatch, three } from '../support/draw.js';
import { ARGUMENTS, fitting, OF_ROWS, OF_WEIGHTS, readsPairs } from '../support/draw-arguments.js';
import { type FrameworkLossCase, goldenBatch, verlCases } from '../support/golden.js';
import { isLossError } from '../support/loss-error.js';
import { poison } from '../support/poison.js';
import { type Computed, packedBatch, paddedBatch, unpack, withState } from '../support/subject.js';
import { assertArray, assertComputed, assertNumber, assertSameBits } from '../support/tolerance.js';

const isOfCorrection = (name: string) => name.startsWith('rollout_');

/** Divides the arguments of a verl loss into its own and those of its rollout correction. */
function divided(args: Args): { own: Args; correction: Args } {
  const entries = Object.entries(args);
  return {
    own: Object.fromEntries(entries.filter(([name]) => !isOfCorrection(name))),
    correction: Object.fromEntries(entries.filter(([name]) => isOfCorrection(name))),
  };
}

const REJECTION = { rollout_rs: 'token_k1,seq_mean_k3', rollout_rs_threshold: '1.2,0.02' };
const CORRECTIONS = fc.constantFrom<Args>(
  { rollout_is: 'token', rollout_is_threshold: 1.1 },
  { rollout_is: 'sequence', rollout_is_threshold: '0.5_1.5', ...REJECTION },
  { rollout_is: 'token', rollout_is_batch_normalize: true, ...REJECTION },
  REJECTION,
);

// The references of these losses do not multiply all tokens' losses by weights.
const WITHOUT_WEIGHTS = ['decoupled_ppo', 'clipped_pg', 'prime_rl', 'prime_rl_ipo', 'ref_kl', 'm2po'];
WITHOUT_WEIGHTS.push(...OF_ROWS.filter((name) => name !== 'verl/geo_mean'));
// These losses read token_weights themselves.
WITHOUT_WEIGHTS.push(...OF_WEIGHTS);
const ignoresWeights = (name: string) => name.startsWith('trl/') || WITHOUT_WEIGHTS.includes(name);

describe('the option correction', () => {
  const cases = verlCases.filter(
    (each): each is FrameworkLossCase =>
      each.kind === 'policy_loss' && 'rollout_is' in each.args && each.fn !== 'bypass_mode',
  );
  for (const { id, fn, args, inputs, expected } of cases) {
    const name = `verl/${fn.replace(/^verl_/, '')}`;
    if (!POLICY_LOSS_FN.names().includes(name)) continue;
    it(`agrees with verl: ${id}`, async () => {
      const { own, correction } = divided(args);
      const loss = POLICY_LOSS_FN.create(name, { ...own, correction });
      const computed = loss.computeSync(goldenBatch(inputs), { grad: true }) as Computed;
      const metrics = reported(expected.metrics, args);
      assertComputed(computed, { ...expected, metrics, grad: expected.grad_logprob.data });
      assertSameBits((await loss.compute(goldenBatch(inputs), { grad: true })) as Computed, computed);
    });
  }

  // bypass_mode corrects for another difference: that of logprob to old_logprob.
  for (const name of Object.keys(formulas.policy).filter((each) => each !== 'verl/bypass_mode'))
    it(`gives ${name} the mask and the weights, as in the reference`, () => {
      const own = POLICY_LOSS_FN.get(name).declaration!.options;
      const formula = 'rolloutIs' in own ? formulas.policy[name]! : withCorrection(formulas.policy[name]!);
      const reference = evaluator(formula, 'logprob');
      const corrections = ignoresWeights(name) ? fc.constant(REJECTION) : CORRECTIONS;
      let compared = 0;
      fc.assert(
        fc.property(ARGUMENTS.policy[name]!, corrections, three(batchSpec), (args, correction, specs) => {
          const { own } = divided(args);
          const loss = POLICY_LOSS_FN.create(name, { ...own, correction });
          const all = { ...own, rollout_is_threshold: 2, ...correction };
          for (const spec of specs) {
            const { attentionMask: _, ...batch } = makeBatch(fitting(name, own, spec));
            if (standsOnEdge(formula, all, batch)) continue;
            compared++;
            const lay = spec.packed ? packedBatch : paddedBatch;
            const computed = loss.computeSync(lay(poison(batch, Number.NaN, name === 'ppo')), {
              grad: true,
            }) as Computed;
            const grad = spec.packed ? unpack(batch, computed.grad) : computed.grad;
            const expected = reference(all, batch);
            const metrics = reported(expected.metrics, all);
            assertComputed({ ...withState(computed), grad }, { ...expected, metrics });
          }
        }),
        { seed: 5, numRuns: 6 },
      );
      assert.ok(compared > 8, `compared only ${compared} batches`);
    });

  // In a single row, a weight per row multiplies the whole loss.
  const SEQUENCE = { rollout_is: 'sequence', rollout_is_threshold: 1.5 } as const;
  const correctionFn = CORRECTION_FN.create('verl/rollout_correction', SEQUENCE);
  const isMultiplied = (name: string) => !readsPairs(name) && !OF_WEIGHTS.includes(name);
  for (const name of Object.keys(formulas.policy).filter(isMultiplied))
    it(`multiplies ${name} by the weight of the only row`, () => {
      fc.assert(
        fc.property(ARGUMENTS.policy[name]!, three(batchSpec), (args, specs) => {
          const { own } = divided(args);
          const plain = POLICY_LOSS_FN.create(name, own);
          const corrected = POLICY_LOSS_FN.create(name, { ...own, correction: SEQUENCE });
          for (const spec of specs) {
            const batch = paddedBatch(makeBatch({ ...spec, rows: 1, packed: false, values: 'moderate' }));
            const weight = Math.max(...correctionFn.computeSync(batch).weights!);
            if (weight === 0) continue; // Some losses count rows without tokens, which have no weights.
            const expected = plain.computeSync(batch, { grad: true });
            const { loss, metrics, grad } = corrected.computeSync(batch, { grad: true });
            assertNumber(loss, expected.loss * weight, 'loss');
            assertArray(
              grad!,
              Array.from(expected.grad!, (g) => g * weight),
              'grad',
            );
            for (const key of ['pg_loss', 'usual/pg_loss', 'final_loss'])
              if (expected.metrics[key]) assertNumber(metrics[key], expected.metrics[key]! * weight, key);
          }
        }),
        { seed: 8, numRuns: 5 },
      );
    });

  const CORRECTION = {
    rollout_is: 'token',
    rollout_is_threshold: 1.1,
    rollout_rs: 'token_k1',
    rollout_rs_threshold: 1.1,
  } as const;
  const drawn = makeBatch({
    seed: 3,
    rows: 6,
    columns: 40,
    values: 'moderate',
    mask: 'random',
    packed: false,
  });
  const TEXT = 'max(-A*r, -A*clip(r, 0.8, 1.2))';

  for (const lossAggMode of ['token-mean', 'token-sum', 'seq-mean-token-mean'] as const)
    it(`is the same for built-in, defined and written losses: ${lossAggMode}`, () => {
      const Defined = defineLoss('defined', {
        lossAggMode,
        loss: ({ A, r, max, clip }) => max(A.neg().mul(r), A.neg().mul(clip(r, 0.8, 1.2))),
      });
      const native = { clip_range: 0.2, clip_ratio_c: 1e9, loss_agg_mode: lossAggMode };
      const wanted = POLICY_LOSS_FN.create('ppo', { ...native, correction: CORRECTION });
      const batch = paddedBatch(drawn);
      const { loss, grad, metrics } = wanted.computeSync(batch, { grad: true });
      assert.ok((metrics as Record<string, number>)['rollout_corr/rollout_rs_masked_fraction']! > 0.1);
      for (const other of [
        new Defined({ correction: CORRECTION }),
        lossFromExpression(TEXT, { lossAggMode, correction: CORRECTION }),
      ]) {
        const result = other.computeSync(batch, { grad: true });
        assertNumber(result.loss, loss, 'loss');
        assertArray(result.grad!, grad!, 'grad');
        const { pg_clipfrac, pg_clipfrac_lower, ppo_kl, pg_loss, ...ofCorrection } = metrics;
        assert.deepEqual(result.metrics, ofCorrection);
      }
    });

  it('is part of an objective, whose other terms see the kept tokens too', async () => {
    const objective = ALGORITHM_TYPE.get('grpo').objective({
      policy_loss_fn_args: { clip_range: 0.2, correction: CORRECTION },
      kl_loss_fn_args: { kl_coef: 0.1 },
    });
    const batch = paddedBatch(drawn);
    const { keptMask } = CORRECTION_FN.create('verl/rollout_correction', CORRECTION).computeSync(batch);
    const result = objective.computeSync(batch, { grad: true });
    assert.deepEqual(await objective.compute(batch, { grad: true }), result);
    const plain = ALGORITHM_TYPE.get('grpo').objective({ kl_loss_fn_args: { kl_coef: 0.1 } });
    const kept = plain.computeSync({ ...batch, actionMask: keptMask }, { grad: true });
    assertNumber(result.metrics.kl_loss, kept.metrics.kl_loss!, 'kl_loss');
    const loss = POLICY_LOSS_FN.create('ppo', { clip_range: 0.2, correction: CORRECTION });
    assertNumber(result.metrics.pg_loss, loss.computeSync(batch).metrics.pg_loss!, 'pg_loss');
    assert.deepEqual(objective.countSync(batch), loss.countSync(batch));
  });

  it('refuses wrong arguments', () => {
    const refuses = (name: string, args: Args, pattern: RegExp) =>
      assert.throws(() => POLICY_LOSS_FN.create(name, args), isLossError('ERR_INVALID_OPTION', pattern));
    const ppo = { clip_range: 0.2 };
    refuses('ppo', { ...ppo, correction: 'token' }, /correction: expected an object of arguments, got/);
    refuses('ppo', { ...ppo, correction: { rollout: 'token' } }, /VerlRolloutCorrectionFn/);
    refuses(
      'ppo',
      { ...ppo, masks: { delta: 0 } },
      /PPOPolicyLossFn: masks: delta: expected a number above 0/,
    );
    refuses('dpo', { correction: { rollout_is: 'token' } }, /only leaves out tokens/);
    refuses('prime/ce', { correction: { rollout_is: 'token' } }, /correction: .*reads token_weights itself/);
    refuses('prime/ce', { masks: { top_entropy_quantile: 0.5 } }, /masks: .*reads token_weights itself/);
    assert.throws(
      () => POLICY_LOSS_FN.create('ppo', { ...ppo, correction: { name: 'verl/rollout' } }),
      isLossError('ERR_UNKNOWN_NAME', /unknown correction: .*got 'verl\/rollout'/),
    );
    const normalized = { rollout_is: 'token', rollout_is_batch_normalize: true };
    const fn = POLICY_LOSS_FN.create('ppo', { ...ppo, correction: normalized });
    assert.throws(
      () => fn.computeSync(paddedBatch(drawn), { part: true }),
      isLossError('ERR_INVALID_OPTION', /the whole batch in one call/),
    );
    const { rolloutLogprob: _, ...lacking } = paddedBatch(drawn);
    assert.throws(
      () => fn.computeSync(lacking as never),
      isLossError('ERR_MISSING_INPUT', /rolloutLogprob: expected a log-probability per token/),
    );
  });

  for (const [kind, options] of Object.entries({
    correction: { correction: CORRECTION },
    masks: { masks: { delta: 1.2, offPolicyMaskThreshold: 0.1, overlongLength: 9 } },
  }))
    it(`passes checkLoss: ${kind}`, async () => {
      for (const fn of [
        POLICY_LOSS_FN.create('ppo', { clip_range: 0.2, ...options }),
        POLICY_LOSS_FN.create('trl/grpo', options),
        lossFromExpression('-A*r*exp(row_mean(d))', options),
      ]) {
        const report = await checkLoss(fn);
        assert.ok(report.ok, String(report));
      }
    });

  it('needs only a mask if it does nothing', async () => {
    const fn = CORRECTION_FN.create('verl/rollout_correction_v070');
    const actionMask = Uint8Array.of(1, 0, 1, 1);
    const { metrics, ...result } = fn.computeSync({ shape: [2, 2], actionMask });
    assert.deepEqual(result, { weights: null, keptMask: actionMask });
    assert.ok(Object.values(metrics).every((value) => value === 0));
    assert.deepEqual(await fn.compute({ shape: [2, 2], actionMask }), { ...result, metrics });
  });

  it('names the keys that it reads', () => {
    const fn = POLICY_LOSS_FN.create('ppo', { clip_range: 0.2, correction: CORRECTION });
    assert.ok(fn.selectKeys.includes('rollout_log_probs'));
    const masked = POLICY_LOSS_FN.create('sft', { masks: { delta: 2 } });
    assert.deepEqual(masked.selectKeys, ['response_mask', 'old_log_probs']);
    assert.deepEqual(CORRECTION_FN.create('verl/rollout_correction').selectKeys, [
      'old_log_probs',
      'rollout_log_probs',
      'response_mask',
    ]);
  });
});

describe('the option masks', () => {
  const moderate = {
    seed: 4,
    rows: 7,
    columns: 30,
    values: 'moderate',
    mask: 'random',
    packed: false,
  } as const;
  const batch = paddedBatch(makeBatch(moderate));

  for (const masks of [{ delta: 1.5 }, { off_policy_mask_threshold: 0.02 }] as const)
    for (const name of ['trl/grpo', 'trl/dapo', 'trl/dr_grpo'])
      it(`does the same as ${name} with ${Object.keys(masks)}`, () => {
        const own = POLICY_LOSS_FN.create(name, masks).computeSync(batch, { grad: true });
        const of = POLICY_LOSS_FN.create(name, { masks }).computeSync(batch, { grad: true });
        const plain = POLICY_LOSS_FN.create(name).computeSync(batch, { grad: true });
        assertNumber(of.loss, own.loss, 'loss');
        assertArray(of.grad!, own.grad!, 'grad');
        for (const [metric, value] of Object.entries(own.metrics))
          assertNumber(of.metrics[metric], value!, metric);
        assert.notDeepEqual(of.grad, plain.grad);
      });

  it('limits the ratio of a built-in loss', () => {
    const masks = { delta: 1.1 };
    const fn = POLICY_LOSS_FN.create('importance_sampling', { masks });
    const { loss, grad, metrics } = fn.computeSync(batch, { grad: true });
    const written = lossFromExpression('-A*min(r, 1.1)').computeSync(batch, { grad: true });
    assertNumber(loss, written.loss, 'loss');
    assertArray(grad!, written.grad!, 'grad');
    assert.ok((metrics as Record<string, number>)['mask/delta_fraction']! > 0.1);
  });

  it('is refused with the prompts of trl/orpo, which have no log-probabilities of a rollout', () => {
    const fn = POLICY_LOSS_FN.create('trl/orpo', { masks: { overlongLength: 20 } });
    const refused = isLossError(
      'ERR_INVALID_INPUT',
      /attentionMask: expected none with masks or a correction/,
    );
    const { rolloutLogprob: _, ...pairs } = paddedBatch(
      makeBatch({ seed: 3, rows: 4, columns: 5, values: 'moderate', mask: 'random', packed: false }),
    );
    assert.throws(() => fn.computeSync(pairs as never), refused);
    const { attentionMask, ...answers } = pairs;
    assert.ok(attentionMask);
    assert.ok(Number.isFinite(fn.computeSync(answers as never).loss));
  });

  it('leaves out overlong rows', () => {
    const counts = Array.from({ length: moderate.rows }, (_, row) =>
      (batch.actionMask as Uint8Array).subarray(row * 30, row * 30 + 30).reduce((a, b) => a + b, 0),
    );
    const overlongLength = counts.toSorted((a, b) => a - b)[4]!;
    const actionMask = (batch.actionMask as Uint8Array).map((m, i) =>
      counts[Math.floor(i / 30)]! < overlongLength ? m : 0,
    );
    for (const name of ['sft', 'gspo', 'verl/gpg', 'trl/rloo']) {
      const args = name === 'gspo' ? { clip_range: 0.2 } : {};
      const masked = POLICY_LOSS_FN.create(name, { ...args, masks: { overlongLength } });
      const { metrics, ...result } = masked.computeSync(batch, { grad: true });
      const { metrics: plain, ...expected } = POLICY_LOSS_FN.create(name, args).computeSync(
        { ...batch, actionMask },
        { grad: true },
      );
      assert.deepEqual(result, expected);
      const { 'mask/overlong_fraction': fraction, ...others } = metrics;
      assert.deepEqual(others, plain);
      assertNumber(fraction, counts.filter((n) => n >= overlongLength).length / moderate.rows, name);
    }
  });

  it('combines with a correction', () => {
    const correction = { rollout_is: 'token', ...REJECTION } as const;
    const masks = { overlong_length: 20, off_policy_mask_threshold: 0.02 };
    const { weights, keptMask } = CORRECTION_FN.create('verl/rollout_correction', correction).computeSync(
      batch,
    );
    const both = POLICY_LOSS_FN.create('sft', { correction, masks }).computeSync(batch, { grad: true });
    const masked = POLICY_LOSS_FN.create('sft', { masks, loss_agg_mode: 'token-sum' });
    const alone = masked.computeSync({ ...batch }, { grad: true });
    const kept = both.grad!.reduce(
      (n, g, i) => n + (keptMask[i]! && alone.grad![i] !== 0 && g !== 0 ? 1 : 0),
      0,
    );
    assert.ok(kept > 10);
    const scale =
      both.grad!.find((g) => g !== 0)! /
      alone.grad!.map((g, i) => g * weights![i]! * keptMask[i]!).find((g) => g !== 0)!;
    assertArray(
      both.grad!,
      alone.grad!.map((g, i) => g * weights![i]! * keptMask[i]! * scale),
      'grad',
    );
  });
});
