// biome-ignore-all lint/suspicious/noTemplateCurlyInString: interpolations of OmegaConf look like this
/** Tests objectives made from the configurations of verl, TRL and NeMo-RL, and how a configuration's framework is told. */
import assert from 'node:assert/strict';
import { MAX_CONFIG_CHARACTERS } from '../lib/algorithm/configurations/text.js';
import {
  ADVANTAGE_FN,
  type Batch,
  CORRECTION_FN,
  fromConfig,
  fromTrinityConfig,
  KL_FN,
  type Objective,
  POLICY_LOSS_FN,
  sumCounts,
} from '../lib/index.js';
import { isLossError } from './support/loss-error.js';
import { assertSameObjective } from './support/objective.js';
import { assertArray, assertNumber } from './support/tolerance.js';

const [ROWS, COLUMNS] = [6, 5];
const wave = (phase: number, size: number, centre = 0) =>
  Float32Array.from({ length: ROWS * COLUMNS }, (_, i) => centre + size * Math.sin(phase + 1.7 * i));
/** The numbers of unmasked tokens of the rows, one of which has none. */
const LENGTHS = [5, 3, 4, 0, 5, 2];
const MASK = Uint8Array.from({ length: ROWS * COLUMNS }, (_, i) =>
  Number(i % COLUMNS < LENGTHS[Math.floor(i / COLUMNS)]!),
);
const REWARDED = {
  shape: [ROWS, COLUMNS] as const,
  logprob: wave(0, 0.6, -1.2),
  oldLogprob: wave(0.4, 0.6, -1.25),
  refLogprob: wave(1.5, 0.5, -1.2),
  rolloutLogprob: wave(0.5, 0.62, -1.25),
  entropy: wave(2, 0.4, 0.9),
  values: wave(3, 0.5),
  actionMask: MASK,
  rewards: [1, 0, 0.25, 0.7, -0.4, 0.1],
  groupIds: [0, 0, 0, 1, 1, 1],
} satisfies Batch;
const BATCH: Batch = { ...REWARDED, advantages: [1, -1, 0.5, -0.5, 2, -2] };

const classOf = (object: object | undefined) => object?.constructor;

describe('fromConfig', () => {
  describe('of verl', () => {
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
      const correction = { rollout_is: 'token', rollout_rs: 'token_k1', rollout_rs_threshold: '0.93_1.05' };
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
      };
      const objective = fromConfig({
        'actor_rollout_ref.actor': { use_kl_loss: true, kl_loss_coef: 0.3, entropy_coeff: 0.05 },
        'algorithm.rollout_correction': correction,
      });
      const { keptMask: kept } = CORRECTION_FN.create('verl/rollout_correction', correction).computeSync(
        BATCH,
      );
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
      const results = parts.map((each) =>
        objective.computeSync(each, { normalizer, part: true, grad: true }),
      );
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

  describe('of TRL', () => {
    it('has the functions and the defaults of the GRPO trainer', () => {
      const objective = fromConfig(
        'model_name_or_path: m\nlearning_rate: 1e-6\nnum_generations: 4\nbeta: 0.04\n',
      );
      assert.equal(objective.algorithm, 'trl/grpo');
      assert.equal(classOf(objective.policyLossFn), POLICY_LOSS_FN.get('trl/dapo'));
      assert.equal(classOf(objective.advantageFn), ADVANTAGE_FN.get('grpo'));
      const { advantages } = ADVANTAGE_FN.create('grpo', { epsilon: 1e-4 }).computeSync(REWARDED);
      const direct = POLICY_LOSS_FN.create('trl/dapo', { beta: 0.04 }).computeSync({
        ...REWARDED,
        advantages,
      });
      assert.equal(objective.computeSync(REWARDED).loss, direct.loss);
    });

    it('reads the JSON of a trainer', () => {
      const json = {
        loss_type: 'dr_grpo',
        scale_rewards: false,
        max_completion_length: 5,
        epsilon_high: 0.28,
        mask_truncated_completions: true,
        use_vllm: true,
        vllm_importance_sampling_mode: 'token_truncate',
        vllm_importance_sampling_cap: 2,
        gradient_accumulation_steps: 4,
        use_liger_kernel: true,
      };
      const objective = fromConfig(JSON.stringify(json));
      const masked = Uint8Array.from(MASK, (m, i) => (LENGTHS[Math.floor(i / COLUMNS)] === 5 ? 0 : m));
      const mean = (ids: number[]) => ids.reduce((sum, i) => sum + REWARDED.rewards[i]!, 0) / ids.length;
      const means = [mean([0, 1, 2]), mean([3, 4, 5])];
      const advantages = REWARDED.rewards.map((r, i) => r - means[REWARDED.groupIds[i]!]!);
      const { loss } = POLICY_LOSS_FN.create('trl/dr_grpo', {
        max_completion_length: 5,
        epsilon_high: 0.28,
        use_vllm: true,
        vllm_importance_sampling_mode: 'token_truncate',
        vllm_importance_sampling_clip_max: 2,
      }).computeSync({ ...REWARDED, actionMask: masked, advantages });
      assertNumber(objective.computeSync(REWARDED).loss, loss, 'loss');
    });

    it('has the loss of the DPO trainer', () => {
      const text = 'beta: 0.2\nloss_type: [sigmoid]\nmax_length: 1024\nlabel_smoothing: 0.0\n';
      const objective = fromConfig(text);
      assert.equal(objective.algorithm, 'trl/dpo');
      assert.equal(
        objective.computeSync(REWARDED).loss,
        POLICY_LOSS_FN.create('dpo', { beta: 0.2 }).computeSync(REWARDED).loss,
      );
      assert.equal(objective.advantageFn, undefined);
    });

    it('tells its trainers by their keys and loss types', () => {
      assert.equal(fromConfig('loss_type: bnpo').algorithm, 'trl/grpo');
      assert.equal(fromConfig('loss_type: sigmoid').algorithm, 'trl/dpo');
      assert.equal(fromConfig('precompute_ref_log_probs: true\nbeta: 0.1').algorithm, 'trl/dpo');
      assert.equal(fromConfig('epsilon: 0.1', { framework: 'trl' }).algorithm, 'trl/grpo');
      assert.throws(
        () => fromConfig('beta: 0.1'),
        isLossError('ERR_INVALID_OPTION', /keys of one framework/),
      );
      assert.equal(fromConfig('beta: 0.1', { framework: 'trl/dpo' }).algorithm, 'trl/dpo');
      assert.throws(
        () => fromConfig('importance_sampling_level: sequence_token\nloss_type: cispo'),
        isLossError('ERR_INVALID_OPTION', /importance_sampling_level: expected token or sequence/),
      );
    });
  });

  describe('of NeMo-RL', () => {
    const GSPO = `
defaults: ../../grpo_math_1B.yaml
grpo:
  num_prompts_per_step: 64
  normalize_rewards: true
  use_leave_one_out_baseline: false
  adv_estimator:
    name: grpo
    normalize_rewards: \${grpo.normalize_rewards}
    use_leave_one_out_baseline: \${grpo.use_leave_one_out_baseline}
loss_fn:
  ratio_clip_min: 0.0003
  ratio_clip_max: 0.0004
  reference_policy_kl_penalty: 0
  sequence_level_importance_ratios: true
  token_level_loss: false
policy: { model_name: m, train_global_batch_size: 512 }
`;
    it('has the functions of GSPO', () => {
      const objective = fromConfig(GSPO);
      assert.equal(objective.algorithm, 'nemo-rl');
      const { advantages } = ADVANTAGE_FN.create('grpo', { epsilon: 1e-6 }).computeSync(REWARDED);
      const direct = POLICY_LOSS_FN.create('clipped_pg', {
        ratio_clip_min: 0.0003,
        ratio_clip_max: 0.0004,
        reference_policy_kl_penalty: 0,
        sequence_level_importance_ratios: true,
        loss_agg_mode: 'seq-mean-token-mean',
      }).computeSync({ ...REWARDED, advantages });
      assert.equal(objective.computeSync(REWARDED).loss, direct.loss);
    });

    it('has the estimators of advantages that the package has', () => {
      const estimators = [
        [true, false, 'grpo'],
        [false, true, 'rloo'],
        [false, false, 'asymre'],
      ] as const;
      for (const [normalize_rewards, use_leave_one_out_baseline, name] of estimators) {
        const settings = { normalize_rewards, use_leave_one_out_baseline };
        for (const grpo of [settings, { adv_estimator: settings }])
          assert.equal(classOf(fromConfig({ grpo }).advantageFn), ADVANTAGE_FN.get(name));
      }
      assert.throws(
        () => fromConfig({ loss_fn: {} }).computeSync(REWARDED),
        isLossError('ERR_MISSING_INPUT', /grpo\.use_leave_one_out_baseline/),
      );
    });

    it('refuses what NeMo-RL refuses', () => {
      const type = 'truncated_importance_sampling_type';
      const ratio = 'truncated_importance_sampling_ratio';
      const corrected = { use_importance_sampling_correction: true, [ratio]: 2 };
      for (const [loss_fn, named] of [
        [{ [type]: 'tis', [ratio]: 2 }, type],
        [{ ...corrected, [type]: 'tis', [ratio]: null }, ratio],
        [{ ...corrected, [type]: 'icepop' }, `${ratio}_min`],
        [{ ...corrected }, ratio],
        [{ use_cispo: true, token_level_loss: false }, 'token_level_loss'],
        [{ use_cispo: true, ratio_clip_c: 3 }, 'ratio_clip_c'],
        [{ sequence_level_importance_ratios: true }, 'sequence_level_importance_ratios'],
        [{ kl_type: 'mixed' }, 'kl_type'],
      ] as const)
        assert.throws(
          () => fromConfig({ loss_fn }),
          isLossError('ERR_INVALID_OPTION', /NeMo-RL/, new RegExp(`loss_fn\\.${named}\\b`)),
        );
    });
  });

  it('reads the configurations of Trinity-RFT as fromTrinityConfig() does', () => {
    const text =
      'algorithm:\n  algorithm_type: grpo\n  policy_loss_fn_args: { clip_range_high: 0.3 }\nbuffer: {}\n';
    const batch = { ...REWARDED, advantages: BATCH.advantages };
    assertSameObjective(
      fromConfig(text).computeSync(batch as Batch, { grad: true }),
      fromTrinityConfig(text).computeSync(batch as Batch, { grad: true }),
    );
    assert.equal(fromConfig('policy_loss_fn: gspo').algorithm, 'ppo');
    assert.equal(fromConfig({ policyLossFn: 'gspo' }).algorithm, 'ppo');
    assert.equal(fromConfig({}, { framework: 'trinity' }).algorithm, 'ppo');
  });

  it('accepts nested keys, paths, settings of a command line and lists of them', () => {
    const expected = fromConfig({ algorithm: { gamma: 0.5, adv_estimator: 'reinforce_plus_plus' } });
    for (const text of [
      'algorithm.gamma: 0.5\nalgorithm: { adv_estimator: reinforce_plus_plus }',
      'algorithm.gamma=0.5 \\\n  algorithm.adv_estimator=reinforce_plus_plus \\\n trainer.nnodes=1',
      '- algorithm.gamma=0.5\n- +algorithm.adv_estimator="reinforce_plus_plus"\n',
      '{"algorithm": {"gamma": 0.5, "adv_estimator": "reinforce_plus_plus"}}',
    ])
      assertSameObjective(
        fromConfig(text).computeSync(REWARDED, { grad: true }),
        expected.computeSync(REWARDED, { grad: true }),
      );
  });

  it('resolves interpolations', () => {
    const actor = {
      clip_ratio: 0.01,
      clip_ratio_low: '${actor_rollout_ref.actor.clip_ratio}',
      clip_ratio_high: '${oc.select:trainer.high,0.02}',
      entropy_coeff: '${actor_rollout_ref.actor.kl_loss_coef}',
    };
    const objective = fromConfig({ actor_rollout_ref: { actor } });
    assert.equal(objective.entropyLossFn.entropyCoef, 0.001);
    assert.deepEqual(objective.policyLossFn.nativeOptions.clip_ratio_low, 0.01);
    assert.deepEqual(objective.policyLossFn.nativeOptions.clip_ratio_high, 0.02);
    for (const value of [
      '${nowhere.at_all}',
      '${.clip_ratio}',
      '???',
      '${actor_rollout_ref.actor.clip_ratio_low}',
      'a ${b}',
    ])
      assert.throws(
        () => fromConfig({ 'actor_rollout_ref.actor.clip_ratio_low': value }),
        isLossError(
          'ERR_INVALID_OPTION',
          /actor\.clip_ratio_low: expected a value, or the path of another one/,
        ),
      );
  });

  it('refuses configurations that build on files that it does not read', () => {
    const defaults = (value: unknown) => ({ defaults: value, 'algorithm.gamma': 1 });
    for (const value of ['ppo_trainer', ['ppo_trainer', '_self_'], [{ 'actor@x': 'dp_actor' }, '_self_']])
      assert.ok(fromConfig(defaults(value)));
    for (const value of ['dapo', ['ppo_trainer', 'mine']])
      assert.throws(
        () => fromConfig(defaults(value)),
        isLossError('ERR_INVALID_OPTION', /: defaults: expected only/),
      );
    assert.throws(
      () => fromConfig({ defaults: '../dapo-qwen2.5-7b.yaml', loss_fn: {} }),
      isLossError('ERR_INVALID_OPTION', /: defaults: expected only grpo_math_1B\.yaml, got '.*dapo/),
    );
  });

  it('says which keys it found if the framework is not clear', () => {
    const both = { 'algorithm.gamma': 1, num_generations: 8 };
    assert.throws(
      () => fromConfig(both),
      isLossError(
        'ERR_INVALID_OPTION',
        /algorithm\.gamma \(verl\) and num_generations \(TRL's GRPO trainer\)/,
      ),
    );
    assert.equal(fromConfig(both, { framework: 'verl' }).algorithm, 'verl');
    assert.equal(fromConfig(both, { framework: 'trl' }).algorithm, 'trl/grpo');
    assert.throws(
      () => fromConfig({ 'algorithm.gamma': 1 }, { framework: 'nemo-rl' }),
      isLossError(
        'ERR_INVALID_OPTION',
        /expected keys of the framework \(nemo-rl\), got algorithm\.gamma \(verl\)/,
      ),
    );
    assert.throws(
      () => fromConfig('a: { b: 1 }'),
      isLossError('ERR_INVALID_OPTION', /only the unknown a\.b/),
    );
    assert.throws(() => fromConfig({}), isLossError('ERR_INVALID_OPTION', /got no keys$/));
    for (const [config, hint] of [
      [{ algorithm: { adv_estimater: 'grpo' } }, /Did you mean 'algorithm\.adv_estimator'\?$/],
      [{ data_plane: { enabled: true } }, /data_plane\.enabled$/],
      [{ defaults: 'mine.yaml', policy: {} }, /Files that defaults names are not read/],
    ] as const)
      assert.throws(() => fromConfig(config), isLossError('ERR_INVALID_OPTION', hint));
    assert.throws(
      () => fromConfig({}, { framework: 'openrlhf' as 'verl' }),
      isLossError('ERR_UNKNOWN_NAME', /unknown framework: expected one of trinity, verl, trl/),
    );
  });

  it('accepts a backend', () => {
    for (const text of ['algorithm.gamma: 1', 'loss_type: dapo', 'loss_fn: {}', 'algorithm_type: grpo'])
      assert.equal(fromConfig(text, { backend: 'tinker' }).backend, 'tinker');
    assert.throws(
      () => fromConfig('loss_fn: {}', { backend: 'verll' }),
      isLossError('ERR_UNKNOWN_NAME', /verll/),
    );
  });

  it('refuses hostile configurations', () => {
    const either = ['ERR_INVALID_INPUT', 'ERR_INVALID_OPTION'] as const;
    const cyclic: Record<string, unknown> = {};
    cyclic.actor_rollout_ref = cyclic;
    assert.ok(fromConfig(cyclic), 'no key with an effect');
    const throwing = Object.defineProperty({}, 'algorithm', {
      enumerable: true,
      get: () => assert.fail('no'),
    });
    const own = JSON.parse('{"loss_fn": {"__proto__": {"use_cispo": true}}}');
    for (const config of [
      ...[5, true, [], null, undefined, [[]], 'text', '', 'a=1', '- a=1\n- b'],
      ...['['.repeat(20_000), '{a: '.repeat(20_000), `# ${'x'.repeat(MAX_CONFIG_CHARACTERS)}`, 'a: b: c'],
      `algorithm.gamma=${'['.repeat(10_000)}`,
      throwing,
      own,
      { algorithm: { rollout_correction: cyclic } },
      { 'actor_rollout_ref.actor.clip_ratio': Symbol('x') },
      { 'actor_rollout_ref.actor.loss_agg_mode': { toString: () => assert.fail('no') } },
      { loss_type: 'dapo', scale_rewards: Object.create(null) },
      { loss_type: 'dapo', scale_rewards: 'constructor' },
    ])
      assert.throws(() => fromConfig(config as string), isLossError(either));
    const polluted = fromConfig(
      'loss_type: dapo\nconstructor: { prototype: { epsilon: 5 } }\n__proto__: { epsilon: 5 }',
    );
    assert.equal(polluted.policyLossFn.nativeOptions.epsilon, 0.2);
    assert.equal(({} as { epsilon?: number }).epsilon, undefined);
  });
});
