/** Tests the terms of objectives: KL penalties in the rewards, coefficients of 0, loss_agg_mode, and errors. */
import assert from 'node:assert/strict';
import { type Batch, ENTROPY_LOSS_FN, KL_FN, type LossErrorCode, POLICY_LOSS_FN } from '../../lib/index.js';
import { tokenRewards } from '../reference/advantage.js';
import { referenceAdvantages } from '../reference/advantages.js';
import type { Args } from '../reference/index.js';
import { type Parts, penalisedRewards, referenceObjective } from '../reference/objective.js';
import { DEFAULTS } from '../support/algorithms.js';
import { without } from '../support/batch-keys.js';
import { layOut, makeRewarded } from '../support/draw.js';
import { isLossError } from '../support/loss-error.js';
import {
  assertObjective,
  assertSameObjective,
  objectiveOf,
  REWARDED,
  unadvised,
} from '../support/objective.js';
import { assertArray, assertNumber } from '../support/tolerance.js';

describe('objectives with a KL penalty in the rewards', () => {
  const ESTIMATORS = KL_FN.names().filter((name) => name !== 'none');
  const WITH_TOKEN_REWARDS = ['ppo', 'reinforceplusplus', 'rloo'];

  for (const name of WITH_TOKEN_REWARDS)
    for (const packed of [false, true])
      it(`${name}, ${packed ? 'packed' : 'padded'}: equals the objective of rewards with the penalty subtracted`, async () => {
        for (const estimator of ESTIMATORS)
          for (const scored of [true, false]) {
            const bare = unadvised({ ...REWARDED, packed, perToken: true });
            const { tokenLevelRewards, ...unscored } = bare;
            const scores = scored ? tokenLevelRewards! : tokenRewards(unscored);
            const laidOut = layOut(bare);
            const { tokenLevelRewards: laidScores, ...laid } = laidOut;
            const given = (scored ? { ...laid, token_level_scores: laidScores } : laid) as Batch;
            const config = { kl_penalty_fn: estimator, kl_penalty_fn_args: { kl_coef: 0.4 } };
            const objective = objectiveOf(name, config);
            assert.ok(objective.klPenaltyFn instanceof KL_FN.get(estimator));
            const result = objective.computeSync(given, { grad: true });
            assertSameObjective(await objective.compute(given, { grad: true }), result);
            const camelCase = { klPenaltyFn: estimator, klPenaltyFnArgs: { klCoef: 0.4 } };
            assertSameObjective(objectiveOf(name, camelCase).computeSync(given, { grad: true }), result);

            const penalised = penalisedRewards(estimator, 0.4, scores, bare);
            assertNumber(result.metrics['kl_penalty/kl'], penalised.kl, 'kl_penalty/kl');
            assert.equal(result.metrics['kl_penalty/kl_coef'], 0.4);
            const { advantages } = referenceAdvantages[DEFAULTS[name]![1]!]!(
              {},
              { ...bare, tokenLevelRewards: penalised.tokenLevelRewards },
            );
            const parts: Parts = {
              policy: { name: 'ppo', args: { clip_range: 0.2 } },
              kl: { name: 'k2', args: {} },
              entropy: { name: 'default', args: {} },
            };
            const { 'kl_penalty/kl': _kl, 'kl_penalty/kl_coef': _coef, ...metrics } = result.metrics;
            assertObjective(bare, { ...result, metrics }, referenceObjective(parts, { ...bare, advantages }));
          }
      });

  it('an adaptive coefficient changes with the divergence from call to call', () => {
    const args = { kl_coef: 0.4, adaptive: true, target_kl: 0.001, horizon: 40 };
    const objective = objectiveOf('reinforceplusplus', { kl_penalty_fn: 'k2', kl_penalty_fn_args: args });
    const alone = KL_FN.create('k2', args);
    const bare = unadvised(REWARDED);
    const batch = layOut(bare);
    const token_level_scores = Float32Array.from(tokenRewards(bare));
    for (let call = 0; call < 3; call++) {
      const { metrics } = objective.computeSync(batch);
      const expected = alone.applyKlPenaltyToRewardSync({ ...batch, token_level_scores });
      assert.equal(metrics['kl_penalty/kl'], expected.metrics.kl);
      assert.equal(metrics['kl_penalty/kl_coef'], expected.metrics.kl_coef);
      assert.equal(objective.klPenaltyFn.klCoef, alone.klCoef);
    }
    assert.notEqual(alone.klCoef, 0.4);
  });

  it('the penalty none leaves the rewards unchanged and reports no metrics', () => {
    const batch = layOut(unadvised(REWARDED));
    const { metrics } = objectiveOf('reinforceplusplus', { kl_penalty_fn: 'none' }).computeSync(batch);
    assert.ok(!Object.keys(metrics).some((key) => key.startsWith('kl_penalty')));
  });
});

describe('terms with coefficient 0', () => {
  const batch = layOut(makeRewarded(REWARDED));
  const grpo = (kl_coef: number, entropy_coef: number) =>
    objectiveOf('grpo', { kl_loss_fn_args: { kl_coef }, entropy_loss_fn_args: { entropy_coef } });
  const policyAlone = POLICY_LOSS_FN.create('ppo').computeSync(batch, { grad: true });

  it('are left out if the batch lacks their column', async () => {
    for (const keys of [['entropy'], ['refLogprob'], ['entropy', 'refLogprob']]) {
      const given = without(batch, ...keys);
      const objective = grpo(0, 0);
      const result = objective.computeSync(given, { grad: true });
      assertNumber(result.loss, policyAlone.loss, 'loss');
      assertArray(result.grad!, policyAlone.grad!, 'grad');
      assert.ok((result.gradEntropy ?? []).every((g) => g === 0));
      const metrics = Object.keys(result.metrics);
      assert.equal(metrics.includes('entropy_loss'), !keys.includes('entropy'));
      assert.equal(metrics.includes('kl_loss'), !keys.includes('refLogprob'));
      assertSameObjective(await objective.compute(given, { grad: true }), result);
    }
  });

  it('report their metrics if the batch has their column', () => {
    const { loss, metrics } = grpo(0, 0).computeSync(batch);
    assertNumber(loss, policyAlone.loss, 'loss');
    const lossAggMode = 'token-mean';
    const entropy = ENTROPY_LOSS_FN.create('default').computeSync(batch, { lossAggMode });
    const kl = KL_FN.create('k2').calculateKlLossSync(batch, { lossAggMode });
    assertNumber(metrics.entropy_loss, entropy.metrics.entropy_loss!, 'entropy_loss');
    assertNumber(metrics.kl_loss, kl.metrics.kl_loss!, 'kl_loss');
    assert.equal(metrics.kl_coef, 0);
  });

  it('are required with another coefficient', async () => {
    for (const [objective, key, says] of [
      [grpo(0, 0.1), 'entropy', /entropy/],
      [grpo(0.1, 0), 'refLogprob', /ref_?log_?prob/i],
      [objectiveOf('mix', { entropy_loss_fn_args: { entropy_coef: 0.1 } }), 'entropy', /entropy/],
    ] as const) {
      assert.throws(() => objective.computeSync(without(batch, key)), isLossError('ERR_MISSING_INPUT', says));
      await assert.rejects(objective.compute(without(batch, key)), isLossError('ERR_MISSING_INPUT', says));
    }
  });

  it('say how to do without them if a batch lacks their column', () => {
    const hint = (loss: string, option: string) =>
      isLossError(
        'ERR_MISSING_INPUT',
        new RegExp(`The ${loss} loss of grpo reads it\\. ${option} 'none' leaves this loss out$`),
      );
    assert.throws(
      () => objectiveOf('grpo').computeSync(without(batch, 'refLogprob')),
      hint('KL', 'klLossFn'),
    );
    assert.throws(
      () => grpo(0, 0.1).computeSync(without(batch, 'entropy')),
      hint('entropy', 'entropyLossFn'),
    );
    assert.ok(objectiveOf('grpo', { klLossFn: 'none' }).computeSync(without(batch, 'refLogprob')));
    const dpo = objectiveOf('dpo');
    assert.throws(
      () => dpo.computeSync(without(batch, 'refLogprob')),
      isLossError('ERR_MISSING_INPUT', /without it$/),
    );
  });

  it('mix has an entropy loss and no KL loss', () => {
    const { metrics } = objectiveOf('mix').computeSync(without(batch, 'refLogprob'));
    assert.ok('entropy_loss' in metrics);
    assert.ok(!('kl_loss' in metrics));
  });
});

describe('loss_agg_mode', () => {
  const batch = layOut(makeRewarded(REWARDED));
  const lossAggMode = 'seq-mean-token-sum';
  const policyLoss = (name: string, args: Args) => POLICY_LOSS_FN.create(name, args).computeSync(batch).loss;

  it('applies to the policy loss unless its own arguments set one', () => {
    for (const config of [{ loss_agg_mode: lossAggMode }, { lossAggMode }]) {
      const { metrics } = objectiveOf('grpo', config).computeSync(batch);
      assertNumber(metrics.pg_loss, policyLoss('ppo', { loss_agg_mode: lossAggMode }), 'pg_loss');
      const kl = KL_FN.create('k2').calculateKlLossSync(batch, { lossAggMode });
      assertNumber(metrics.kl_loss, kl.metrics.kl_loss!, 'kl_loss');

      const own = { ...config, policy_loss_fn_args: { loss_agg_mode: 'token-mean' } };
      const named = objectiveOf('grpo', own).computeSync(batch).metrics;
      assertNumber(named.pg_loss, policyLoss('ppo', { loss_agg_mode: 'token-mean' }), 'pg_loss');
      assertNumber(named.kl_loss, kl.metrics.kl_loss!, 'kl_loss');
    }
  });

  it("defaults to the policy loss's own default", () => {
    const { metrics } = objectiveOf('gspo').computeSync(batch);
    assertNumber(metrics.pg_loss, policyLoss('gspo', {}), 'pg_loss');
    const kl = KL_FN.create('k2').calculateKlLossSync(batch, { lossAggMode: 'token-mean' });
    assertNumber(metrics.kl_loss, kl.metrics.kl_loss!, 'kl_loss');
  });

  it('is ignored by losses that do not have this option', () => {
    for (const name of ['rec', 'dpo']) {
      const config = { loss_agg_mode: lossAggMode, policy_loss_fn: name };
      assert.ok(Number.isFinite(objectiveOf('grpo', config).computeSync(batch).loss));
    }
  });
});

describe('errors of objectives', () => {
  it('a gradient by entropy_other, which objectives do not return', () => {
    assert.throws(
      () => objectiveOf('ppo', { policy_loss_fn: 'oat/bnf' }),
      isLossError(
        'ERR_INVALID_OPTION',
        /policy_loss_fn: expected a loss without .*entropy_other.*'oat\/bnf'/,
      ),
    );
  });

  it('rows that belong together, of which an advantage function would drop some', () => {
    for (const policy_loss_fn of ['dpo', 'trl/dpo', 'trl/tpo'])
      assert.throws(
        () =>
          objectiveOf('ppo', {
            policy_loss_fn,
            advantage_fn: 'grpo',
            advantage_fn_args: { std_threshold: 0.1 },
          }),
        isLossError('ERR_INVALID_OPTION', /keeps all rows/),
      );
  });

  it('unknown keys, all named in the message', () => {
    assert.throws(
      () => objectiveOf('grpo', { clip_range: 0.2, kl_coef: 0.1, policy_loss_fn: 'ppo' }),
      isLossError('ERR_INVALID_OPTION', /\bclip_range\b/, /\bkl_coef\b/),
    );
    assert.throws(
      () => objectiveOf('grpo', { policy_los_fn: 'ppo' }),
      isLossError('ERR_INVALID_OPTION', /policy_los_fn/),
    );
  });

  it('unknown functions and wrong arguments', () => {
    for (const [config, code, says] of [
      [{ policy_loss_fn: 'gsspo' }, 'ERR_UNKNOWN_NAME', /gsspo/],
      [{ advantage_fn: 'grop' }, 'ERR_UNKNOWN_NAME', /grop/],
      [{ kl_loss_fn: 'k9' }, 'ERR_UNKNOWN_NAME', /k9/],
      [{ kl_penalty_fn: 'k9' }, 'ERR_UNKNOWN_NAME', /k9/],
      [{ entropy_loss_fn: 'max' }, 'ERR_UNKNOWN_NAME', /max/],
      [{ backend: 'verll' }, 'ERR_UNKNOWN_NAME', /verll/],
      [{ loss_agg_mode: 'token-men' }, 'ERR_INVALID_OPTION', /token-men/],
      [{ policy_loss_fn_args: { clip_rage: 0.2 } }, 'ERR_INVALID_OPTION', /clip_?rage/i],
      [{ policy_loss_fn_args: { clip_range: '0.2' } }, 'ERR_INVALID_OPTION', /clip_?range/i],
      [{ policy_loss_fn_args: 0.2 }, 'ERR_INVALID_OPTION', /policy_?loss_?fn_?args/i],
      [{ advantage_fn_args: { std_cal_level: 'task' } }, 'ERR_INVALID_OPTION', /std_?cal_?level/i],
      [{ advantage_fn_args: [] }, 'ERR_INVALID_OPTION', /advantage_?fn_?args/i],
      [{ kl_loss_fn_args: { kl_coef: 'low' } }, 'ERR_INVALID_OPTION', /kl_?coef/i],
      [{ kl_loss_fn_args: { adaptive: true } }, 'ERR_INVALID_OPTION', /target_?kl/i],
      [{ entropy_loss_fn_args: { entropy_coef: Number.NaN } }, 'ERR_INVALID_OPTION', /entropy_?coef/i],
    ] as [Args, LossErrorCode, RegExp][])
      assert.throws(() => objectiveOf('grpo', config), isLossError(code, says), JSON.stringify(config));
    for (const config of [5, 'grpo', []])
      assert.throws(
        () => objectiveOf('grpo', config as unknown as Args),
        isLossError('ERR_INVALID_OPTION'),
        JSON.stringify(config),
      );
  });

  it('wrong batches and gradient arrays', async () => {
    const batch = layOut(makeRewarded(REWARDED));
    const objective = objectiveOf('grpo');
    for (const [given, options, code, says] of [
      [7, {}, 'ERR_INVALID_INPUT', /batch/i],
      [without(batch, 'logprob'), {}, 'ERR_MISSING_INPUT', /log_?prob/i],
      [batch, { grad: new Float32Array(3) }, 'ERR_SHAPE_MISMATCH', /grad/],
      [batch, { gradEntropy: new Float32Array(3) }, 'ERR_SHAPE_MISMATCH', /gradEntropy/],
      [
        batch,
        { gradEntropy: new Float64Array(168) as unknown as Float32Array },
        'ERR_INVALID_INPUT',
        /gradEntropy/,
      ],
    ] as [Batch, object, LossErrorCode, RegExp][]) {
      assert.throws(() => objective.computeSync(given, options), isLossError(code, says));
      const promise = objective.compute(given, options);
      await assert.rejects(promise, isLossError(code, says));
    }
    await assert.rejects(
      objective.compute(batch, { signal: AbortSignal.abort() }),
      isLossError('ERR_ABORTED'),
    );
  });
});
