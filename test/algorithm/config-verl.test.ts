/** Tests objectives made from the configurations of verl against its functions, composed by hand. */
import assert from 'node:assert/strict';
import {
  ADVANTAGE_FN,
  type Batch,
  CORRECTION_FN,
  fromConfig,
  KL_FN,
  type Objective,
  POLICY_LOSS_FN,
  sumCounts,
} from '../../lib/index.js';
import { BATCH, COLUMNS, classOf, LENGTHS, MASK, REWARDED, ROWS } from '../support/config-batch.js';
import { isLossError } from '../support/loss-error.js';
import { assertSameObjective } from '../support/objective.js';
import { assertArray, assertNumber } from '../support/tolerance.js';

describe('fromConfig of verl', () => {
  const DAPO = `
actor_rollout_ref:
  actor:
    strategy: fsdp2
    ppo_mini_batch_size: 32
    optim: { lr: 1e-6 }
    clip_ratio_low: 0.2
    clip_ratio_high: 0.28
    clip_ratio_c: 10.0
    loss_agg_mode: token-mean
    use_kl_loss: False
    entropy_coeff: 0
  rollout: { name: vllm, n: 16, temperature: 1.0 }
algorithm:
  adv_estimator: grpo
  use_kl_in_reward: False
  kl_ctrl: { kl_coef: 0.0 }
  filter_groups: { enable: True, metric: acc }
trainer: { total_epochs: 1 }
`;
  it('has the functions of DAPO', () => {
    const objective = fromConfig(DAPO);
    assert.equal(objective.algorithm, 'verl');
    assert.equal(classOf(objective.policyLossFn), POLICY_LOSS_FN.get('verl/vanilla'));
    assert.equal(classOf(objective.advantageFn), ADVANTAGE_FN.get('verl/grpo_vectorized'));
    assert.equal(classOf(objective.klLossFn), KL_FN.get('none'));
    const { loss, grad } = objective.computeSync(BATCH, { grad: true });
    const args = { clip_ratio_high: 0.28, clip_ratio_c: 10 };
    const direct = POLICY_LOSS_FN.create('verl/vanilla', args).computeSync(BATCH, { grad: true });
    assert.deepEqual([loss, grad], [direct.loss, direct.grad]);
  });

  it('computes the advantages of its estimator', () => {
    const { advantages } = ADVANTAGE_FN.create('verl/gae', { gamma: 0.9, lam: 0.8 }).computeSync(REWARDED);
    const objective = fromConfig({ algorithm: { gamma: 0.9, lam: 0.8 } });
    assert.equal(
      objective.computeSync(REWARDED).loss,
      POLICY_LOSS_FN.create('verl/vanilla').computeSync({ ...REWARDED, advantages }).loss,
    );
  });

  it('subtracts the KL penalty from the rewards', () => {
    const kl = { kl_coef: 0.2, adaptive: true, horizon: 50, target_kl: 0.3 };
    const objective = fromConfig({
      algorithm: {
        use_kl_in_reward: true,
        kl_penalty: 'k3',
        kl_ctrl: { type: 'adaptive', kl_coef: 0.2, horizon: 50, target_kl: 0.3 },
      },
    });
    const penalty = KL_FN.create('low_var_kl', kl);
    const scores = new Float32Array(ROWS * COLUMNS);
    for (const [row, length] of LENGTHS.entries())
      if (length > 0) scores[row * COLUMNS + length - 1] = REWARDED.rewards[row]!;
    for (let step = 0; step < 2; step++) {
      const { tokenLevelRewards } = penalty.applyKlPenaltyToRewardSync({
        ...REWARDED,
        tokenLevelScores: scores,
      });
      const { advantages } = ADVANTAGE_FN.create('verl/gae').computeSync({
        ...REWARDED,
        tokenLevelRewards,
      });
      const expected = POLICY_LOSS_FN.create('verl/vanilla').computeSync({ ...REWARDED, advantages });
      assertNumber(objective.computeSync(REWARDED).loss, expected.loss, 'loss');
    }
  });

  /** Returns the weight of each token in verl's aggregation of the tokens that are kept. */
  function weights(mode: string, kept: Uint8Array, scale = COLUMNS): number[] {
    const counts = LENGTHS.map((_, row) => {
      let n = 0;
      for (let t = 0; t < COLUMNS; t++) n += kept[row * COLUMNS + t]!;
      return n;
    });
    const filled = counts.filter((n) => n > 0).length;
    const tokens = counts.reduce((a, b) => a + b, 0);
    const divisors: Record<string, (n: number) => number> = {
      'token-mean': () => tokens,
      'token-sum': () => 1,
      'seq-mean-token-sum': () => filled,
      'seq-mean-token-mean': (n) => filled * (n + 1e-8),
      'seq-mean-token-sum-norm': () => filled * scale,
    };
    return [...kept].map((k, i) => (k === 0 ? 0 : 1 / divisors[mode]!(counts[Math.floor(i / COLUMNS)]!)));
  }

  /** Checks an objective against its policy loss, its KL function and the entropies, aggregated as verl does. */
  function assertComposed(
    objective: Objective,
    policyLoss: string,
    args: Record<string, unknown>,
    { kl, coef, entropyCoef, mode, kept = MASK, scale }: Terms,
  ): void {
    const actual = objective.computeSync(BATCH, { grad: true });
    const policy = POLICY_LOSS_FN.create(policyLoss, args).computeSync(BATCH, { grad: true });
    const weight = weights(mode, kept, scale);
    const fn = KL_FN.create(kl, { kl_coef: 1 });
    const values = fn.calculateKlSync(BATCH);
    const slopes = fn.calculateKlLossSync(BATCH, { lossAggMode: 'token-sum', grad: true }).grad!;
    const sum = (of: (i: number) => number) =>
      weight.reduce((all, w, i) => all + (w === 0 ? 0 : w * of(i)), 0);
    const klLoss = sum((i) => values[i]!);
    const entropyLoss = sum((i) => REWARDED.entropy[i]!);
    assertNumber(actual.loss, policy.loss + coef * klLoss - entropyCoef * entropyLoss, 'loss');
    assertNumber(actual.metrics.pg_loss, policy.loss, 'pg_loss');
    assertNumber(actual.metrics.kl_loss, klLoss, 'kl_loss');
    assert.equal(actual.metrics.kl_coef, coef);
    assertNumber(actual.metrics.entropy_loss, entropyLoss, 'entropy_loss');
    assertArray(
      actual.grad!,
      weight.map((w, i) => policy.grad![i]! + (w === 0 ? 0 : coef * w * slopes[i]!)),
      'grad',
    );
    assertArray(
      actual.gradEntropy!,
      weight.map((w) => -entropyCoef * w),
      'gradEntropy',
    );
  }
  interface Terms {
    kl: string;
    coef: number;
    entropyCoef: number;
    mode: string;
    kept?: Uint8Array;
    scale?: number;
  }

  const KL_TYPES: [type: string, registered: string][] = [
    ['kl', 'k1'],
    ['abs', 'abs'],
    ['mse', 'k2'],
    ['k3', 'low_var_kl'],
    ['k3+', 'low_var_kl+'],
    ['abs+', 'abs+'],
  ];
  for (const [type, kl] of KL_TYPES)
    for (const mode of [
      'token-mean',
      'token-sum',
      'seq-mean-token-sum',
      'seq-mean-token-mean',
      'seq-mean-token-sum-norm',
    ])
      it(`aggregates the KL loss ${type} and the entropy loss by ${mode} as verl does`, () => {
        const actor = {
          use_kl_loss: true,
          kl_loss_type: type,
          kl_loss_coef: 0.3,
          entropy_coeff: 0.05,
          loss_agg_mode: mode,
          loss_scale_factor: 7,
        };
        const objective = fromConfig({ actor_rollout_ref: { actor } });
        assert.equal(classOf(objective.klLossFn), KL_FN.get(kl));
        assert.equal(objective.klLossFn.klCoef, 0.3);
        assert.equal(objective.entropyLossFn.entropyCoef, 0.05);
        assert.equal(objective.lossAggMode, mode);
        const args = { loss_agg_mode: mode, loss_scale_factor: 7 };
        assertComposed(objective, 'verl/vanilla', args, {
          kl,
          coef: 0.3,
          entropyCoef: 0.05,
          mode,
          scale: 7,
        });
      });

  it('leaves rejected tokens out of the KL loss and the entropy loss', () => {
    const correction = {
      rollout_is: 'token',
      rollout_rs: 'token_k1',
      rollout_rs_threshold: '0.93_1.05',
    } as const;
    const { keptMask, weights: given } = CORRECTION_FN.create(
      'verl/rollout_correction',
      correction,
    ).computeSync(BATCH);
    assert.ok(given);
    const count = keptMask.reduce((a, b) => a + b, 0);
    assert.ok(count > 3 && count < MASK.reduce((a, b) => a + b, 0));
    for (const [policyLoss, args] of [
      ['vanilla', { loss_agg_mode: 'seq-mean-token-mean' }],
      ['geo_mean', {}],
    ] as const) {
      const objective = fromConfig({
        'actor_rollout_ref.actor': {
          use_kl_loss: true,
          kl_loss_coef: 0.3,
          entropy_coeff: 0.05,
          loss_agg_mode: 'seq-mean-token-mean',
          policy_loss: { loss_mode: policyLoss },
        },
        algorithm: { rollout_correction: correction },
      });
      const terms = {
        kl: 'low_var_kl',
        coef: 0.3,
        entropyCoef: 0.05,
        mode: 'seq-mean-token-mean',
        kept: keptMask,
      };
      assertComposed(objective, `verl/${policyLoss}`, { ...correction, ...args }, terms);
    }
  });

  it('reports its terms with a correction that has all metrics that a program can have', () => {
    const correction = {
      rollout_is: 'sequence',
      rollout_is_threshold: '0.5_2',
      rollout_is_batch_normalize: true,
      rollout_rs: 'token_k1,token_k2,seq_sum_k1',
      rollout_rs_threshold: 2,
    } as const;
    const objective = fromConfig({
      'actor_rollout_ref.actor': { use_kl_loss: true, kl_loss_coef: 0.3, entropy_coeff: 0.05 },
      'algorithm.rollout_correction': correction,
    });
    const { keptMask: kept } = CORRECTION_FN.create('verl/rollout_correction', correction).computeSync(BATCH);
    const terms = { kl: 'low_var_kl', coef: 0.3, entropyCoef: 0.05, mode: 'token-mean', kept };
    assertComposed(objective, 'verl/vanilla', correction, terms);
  });

  it('keeps the tokens that bypass_mode rejects in the KL loss', () => {
    const correction = { rollout_rs: 'token_k1', rollout_rs_threshold: '0.93_1.05' };
    const objective = fromConfig({
      'actor_rollout_ref.actor': { use_kl_loss: true, kl_loss_coef: 0.3, entropy_coeff: 0.05 },
      'algorithm.rollout_correction': { ...correction, bypass_mode: true, loss_type: 'reinforce' },
    });
    assert.equal(classOf(objective.policyLossFn), POLICY_LOSS_FN.get('verl/bypass_mode'));
    const terms = { kl: 'low_var_kl', coef: 0.3, entropyCoef: 0.05, mode: 'token-mean' };
    assertComposed(objective, 'verl/bypass_mode', { ...correction, loss_type: 'reinforce' }, terms);
  });

  it('gives the same bits in parts, on its own threads and in one call', async () => {
    const objective = fromConfig({
      'actor_rollout_ref.actor': { use_kl_loss: true, kl_loss_coef: 0.3, entropy_coeff: 0.05 },
    });
    const whole = objective.computeSync(BATCH, { grad: true });
    assertSameObjective(await objective.compute(BATCH, { grad: true }), whole);
    const part = (from: number, to: number): Batch => ({
      ...Object.fromEntries(
        Object.entries(BATCH).map(([key, value]) => {
          const size = (value as ArrayLike<number>).length === ROWS ? 1 : COLUMNS;
          return [key, (value as Float32Array).slice(from * size, to * size)];
        }),
      ),
      shape: [to - from, COLUMNS],
    });
    const parts = [part(0, 2), part(2, ROWS)];
    const normalizer = sumCounts(parts.map((each) => objective.countSync(each)));
    const results = parts.map((each) => objective.computeSync(each, { normalizer, part: true, grad: true }));
    const merged = objective.merge(
      results.map((each) => each.part!),
      normalizer,
    );
    assert.equal(merged.loss, whole.loss);
    assert.equal(merged.metrics.kl_loss, whole.metrics.kl_loss);
    assert.deepEqual(
      results.flatMap(({ grad }) => [...grad!]),
      [...whole.grad!],
    );
  });

  it('needs the columns of its terms', () => {
    const objective = fromConfig({ 'actor_rollout_ref.actor.use_kl_loss': true });
    const { refLogprob, ...others } = BATCH as Batch & { refLogprob: unknown };
    assert.throws(() => objective.computeSync(others), isLossError('ERR_MISSING_INPUT', /ref_?log/i));
  });

  it('computes no advantages that depend on rejected tokens', () => {
    const algorithm = {
      adv_estimator: 'gae',
      rollout_correction: { rollout_rs: 'token_k2', rollout_rs_threshold: 2 },
    };
    assert.throws(
      () => fromConfig({ algorithm }).computeSync(REWARDED),
      isLossError('ERR_MISSING_INPUT', /algorithm\.rollout_correction\.rollout_rs/),
    );
    assert.ok(Number.isFinite(fromConfig({ algorithm }).computeSync(BATCH).loss));
    assert.ok(fromConfig({ algorithm: { ...algorithm, adv_estimator: 'grpo' } }).computeSync(REWARDED));
  });

  it('refuses contradictions', () => {
    const actor = 'actor_rollout_ref.actor';
    for (const [config, path] of [
      [
        { [`${actor}.policy_loss.loss_mode`]: 'bypass_mode' },
        /actor\.policy_loss\.loss_mode: expected .*bypass_mode/,
      ],
      [
        { [`${actor}.tis_imp_ratio_cap`]: 2, 'algorithm.rollout_correction.rollout_is': 'token' },
        /actor\.tis_imp_ratio_cap: expected no value above 0/,
      ],
      [
        { 'algorithm.adv_estimator': 'grpoo' },
        /algorithm\.adv_estimator: expected one of gae, grpo.*got 'grpoo'/,
      ],
      [{ 'algorithm.gamma': 2 }, /algorithm\.gamma: expected a number from 0 to 1/],
      [{ 'algorithm.rollout_correction.rollout_rs': 'token' }, /rollout_correction\.rollout_rs/],
      [{ [`${actor}.policy_loss.clip_cov_ration`]: 1 }, /Did you mean '.*clip_cov_ratio'/],
      [{ [`${actor}.use_kl_loss`]: 'yes' }, /use_kl_loss: expected true or false, got 'yes'/],
    ] as const)
      assert.throws(() => fromConfig(config), isLossError('ERR_INVALID_OPTION', path));
  });
});
