// biome-ignore-all lint/suspicious/noTemplateCurlyInString: interpolations of OmegaConf look like this
/** Tests objectives made from the configurations of TRL, NeMo-RL and Trinity-RFT, and how a configuration's framework is told. */
import assert from 'node:assert/strict';
import { MAX_CONFIG_CHARACTERS } from '../../lib/algorithm/configurations/text.js';
import { ADVANTAGE_FN, type Batch, fromConfig, fromTrinityConfig, POLICY_LOSS_FN } from '../../lib/index.js';
import { BATCH, COLUMNS, classOf, LENGTHS, MASK, REWARDED } from '../support/config-batch.js';
import { isLossError } from '../support/loss-error.js';
import { assertSameObjective } from '../support/objective.js';
import { assertNumber } from '../support/tolerance.js';

describe('fromConfig', () => {
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
    const settings = 'algorithm.algorithm_type=grpo algorithm.kl_loss_fn_args.kl_coef=0.5';
    for (const objective of [fromConfig(settings), fromTrinityConfig(settings)]) {
      assert.equal(objective.algorithm, 'grpo');
      assert.equal(objective.klLossFn.klCoef, 0.5);
    }
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
      ...['__proto__.loss_fn=1', 'loss_fn.__proto__.use_cispo=true', 'loss_fn=1 loss_fn.use_cispo=2'],
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
    assert.throws(
      () =>
        fromConfig('algorithm={} algorithm.__proto__.epsilon=5 __proto__.epsilon=5 loss_fn.__proto__.x=1'),
      isLossError(either),
    );
    const polluted = fromConfig(
      'loss_type: dapo\nconstructor: { prototype: { epsilon: 5 } }\n__proto__: { epsilon: 5 }',
    );
    assert.equal(polluted.policyLossFn.nativeOptions.epsilon, 0.2);
    assert.equal(({} as { epsilon?: number }).epsilon, undefined);
  });
});
