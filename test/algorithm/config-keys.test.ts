/** Walks the tables of the keys with an effect: each supported key changes the result, and each other one is refused. */
import assert from 'node:assert/strict';
import { FRAMEWORKS } from '../../lib/algorithm/configurations/frameworks.js';
import { type Batch, type ConfigFramework, fromConfig, LossError } from '../../lib/index.js';
import { isLossError } from '../support/loss-error.js';

type Config = Record<string, unknown>;

/** A value that changes the result, or that is refused. */
interface Probe {
  value: unknown;
  /** The value that it is compared with; by default none, so that the framework's default applies. */
  from?: unknown;
  /** The other settings; the key has no effect without them. */
  with?: Config;
  /** Whether the value only makes the batch need advantages. */
  needsAdvantages?: true;
}

const [ROWS, COLUMNS] = [6, 5];
const wave = (phase: number, size: number, centre = 0) =>
  Float32Array.from({ length: ROWS * COLUMNS }, (_, i) => centre + size * Math.sin(phase + 1.7 * i));
const BATCH: Batch = {
  shape: [ROWS, COLUMNS],
  logprob: wave(0, 0.6, -1.2),
  oldLogprob: wave(0.8, 0.6, -1.15),
  refLogprob: wave(1.5, 0.5, -1.2),
  rolloutLogprob: wave(1, 0.65, -1.3),
  entropy: wave(2, 0.4, 0.9),
  values: wave(3, 0.5),
  actionMask: Uint8Array.from({ length: ROWS * COLUMNS }, (_, i) =>
    Number(i % COLUMNS < [5, 3, 4, 2, 5, 3][Math.floor(i / COLUMNS)]!),
  ),
  rewards: [1, 0, 0.25, 0.7, -0.4, 0.1],
  groupIds: [0, 0, 0, 1, 1, 1],
  first: [1, 0, 0, 1, 0, 0.5],
  second: [0, 0.3, 1, 0, 0.2, 1],
} as Batch;
const GIVEN = { ...BATCH, advantages: [1, -1, 0.5, -0.5, 2, -2] };

const ACTOR = 'actor_rollout_ref.actor';
const LOSS = `${ACTOR}.policy_loss`;
const CORRECTION = 'algorithm.rollout_correction';
const GRPO = { 'algorithm.adv_estimator': 'grpo' };
const GAE = { 'algorithm.adv_estimator': 'gae' };
const mode = (name: string) => ({ ...GRPO, [`${LOSS}.loss_mode`]: name });
const CLIP_COV = { ...mode('clip_cov'), [`${LOSS}.clip_cov_ratio`]: 0.9 };
const KL = { ...GRPO, [`${ACTOR}.use_kl_loss`]: true };
const PENALTY = { ...GAE, 'algorithm.use_kl_in_reward': true };
const ADAPTIVE = {
  ...PENALTY,
  'algorithm.kl_penalty': 'mse',
  'algorithm.kl_ctrl.type': 'adaptive',
  'algorithm.kl_ctrl.horizon': 10,
};
const IS = { ...GRPO, [`${CORRECTION}.rollout_is`]: 'token' };
const BYPASS = { ...GRPO, [`${CORRECTION}.bypass_mode`]: true };
const GDPO = { 'algorithm.adv_estimator': 'gdpo' };

const VERL: Record<string, Probe> = {
  [`${LOSS}.loss_mode`]: { value: 'gpg', with: GRPO },
  [`${LOSS}.clip_cov_ratio`]: { value: 0.9, from: 0.1, with: { ...CLIP_COV, [`${LOSS}.clip_cov_lb`]: -9 } },
  [`${LOSS}.clip_cov_lb`]: { value: -9, with: CLIP_COV },
  [`${LOSS}.clip_cov_ub`]: { value: -8, with: { ...CLIP_COV, [`${LOSS}.clip_cov_lb`]: -9 } },
  [`${LOSS}.kl_cov_ratio`]: { value: 0.9, with: mode('kl_cov') },
  [`${LOSS}.ppo_kl_coef`]: { value: 3, with: mode('kl_cov') },
  [`${LOSS}.dro_beta`]: { value: 2, from: 1, with: mode('dro') },
  [`${ACTOR}.clip_ratio`]: {
    value: 0.01,
    with: { ...GRPO, [`${ACTOR}.clip_ratio_low`]: null, [`${ACTOR}.clip_ratio_high`]: null },
  },
  [`${ACTOR}.clip_ratio_low`]: { value: 0.01, with: GRPO },
  [`${ACTOR}.clip_ratio_high`]: { value: 0.01, with: GRPO },
  [`${ACTOR}.clip_ratio_c`]: { value: 1.01, with: GRPO },
  [`${ACTOR}.tau_pos`]: { value: 3, with: mode('sapo') },
  [`${ACTOR}.tau_neg`]: { value: 3, with: mode('sapo') },
  [`${ACTOR}.loss_agg_mode`]: { value: 'seq-mean-token-mean', with: GRPO },
  [`${ACTOR}.loss_scale_factor`]: {
    value: 7,
    with: { ...GRPO, [`${ACTOR}.loss_agg_mode`]: 'seq-mean-token-sum-norm' },
  },
  [`${ACTOR}.entropy_coeff`]: { value: 0.1, with: GRPO },
  [`${ACTOR}.use_kl_loss`]: { value: true, with: GRPO },
  [`${ACTOR}.kl_loss_coef`]: { value: 0.1, with: KL },
  [`${ACTOR}.kl_loss_type`]: { value: 'kl', with: KL },
  [`${ACTOR}.tis_imp_ratio_cap`]: { value: 1.01, with: GRPO },
  'algorithm.adv_estimator': { value: 'rloo', with: { [`${ACTOR}.clip_ratio`]: 0.2 } },
  'algorithm.gamma': { value: 0.5, with: GAE },
  'algorithm.lam': { value: 0.5, with: GAE },
  'algorithm.norm_adv_by_std_in_grpo': { value: false, with: GRPO },
  'algorithm.gdpo_reward_keys': { value: ['first', 'second'], with: GDPO },
  'algorithm.gdpo_reward_weights': {
    value: [1, 3],
    with: { ...GDPO, 'algorithm.gdpo_reward_keys': ['first', 'second'] },
  },
  'algorithm.use_kl_in_reward': { value: true, with: GAE },
  'algorithm.kl_penalty': { value: 'mse', with: PENALTY },
  'algorithm.kl_ctrl.type': { value: 'adaptive', with: { ...PENALTY, 'algorithm.kl_ctrl.horizon': 10 } },
  'algorithm.kl_ctrl.kl_coef': { value: 0.5, with: PENALTY },
  'algorithm.kl_ctrl.horizon': { value: 5, with: ADAPTIVE },
  'algorithm.kl_ctrl.target_kl': { value: 0.001, with: ADAPTIVE },
  'algorithm.use_pf_ppo': { value: true },
  [`${CORRECTION}.rollout_is`]: { value: 'token', with: GRPO },
  [`${CORRECTION}.rollout_is_threshold`]: { value: 1.01, with: IS },
  [`${CORRECTION}.rollout_is_batch_normalize`]: { value: true, with: IS },
  [`${CORRECTION}.rollout_rs`]: {
    value: 'token_k1',
    with: { ...GRPO, [`${CORRECTION}.rollout_rs_threshold`]: '0.9_1.1' },
  },
  [`${CORRECTION}.rollout_rs_threshold`]: {
    value: '0.95_1.01',
    from: 2,
    with: { ...GRPO, [`${CORRECTION}.rollout_rs`]: 'token_k1' },
  },
  [`${CORRECTION}.bypass_mode`]: { value: true, with: GRPO },
  [`${CORRECTION}.loss_type`]: { value: 'reinforce', with: BYPASS },
  [`${CORRECTION}.rollout_rs_threshold_lower`]: { value: 0.5 },
  [`${CORRECTION}.rollout_token_veto_threshold`]: { value: 1e-4 },
  [`${CORRECTION}.use_policy_gradient`]: { value: true },
  'algorithm.rollout_is': { value: true },
  'algorithm.rollout_is_threshold': { value: 2 },
  'distillation.enabled': { value: true },
};

const VLLM = { use_vllm: true };
const BONUS = { entropy_coef: 0.1, use_adaptive_entropy: true };
const TRL_GRPO: Record<string, Probe> = {
  loss_type: { value: 'grpo' },
  beta: { value: 0.1 },
  epsilon: { value: 0.01 },
  epsilon_high: { value: 0.01 },
  delta: { value: 1.01 },
  importance_sampling_level: { value: 'sequence' },
  sapo_temperature_pos: { value: 3, with: { loss_type: 'sapo' } },
  sapo_temperature_neg: { value: 3, with: { loss_type: 'sapo' } },
  vespo_k_pos: { value: 1, with: { loss_type: 'vespo' } },
  vespo_lambda_pos: { value: 1, with: { loss_type: 'vespo' } },
  vespo_k_neg: { value: 1, with: { loss_type: 'vespo' } },
  vespo_lambda_neg: { value: 1, with: { loss_type: 'vespo' } },
  max_completion_length: { value: 7, with: { loss_type: 'dr_grpo' } },
  mask_truncated_completions: { value: true, with: { max_completion_length: 4 } },
  top_entropy_quantile: { value: 0.3 },
  off_policy_mask_threshold: { value: 1e-3 },
  use_bias_correction_kl: { value: true, with: { beta: 0.1 } },
  use_vllm: { value: true },
  vllm_importance_sampling_correction: { value: false, with: VLLM },
  vllm_importance_sampling_mode: { value: 'token_truncate', with: VLLM },
  vllm_importance_sampling_clip_min: {
    value: 1.15,
    with: { ...VLLM, vllm_importance_sampling_mode: 'token_truncate' },
  },
  vllm_importance_sampling_clip_max: { value: 1, with: VLLM },
  vllm_importance_sampling_cap: { value: 1, with: VLLM },
  entropy_coef: { value: 0.1 },
  use_adaptive_entropy: { value: true, with: { entropy_coef: 0.1 } },
  entropy_coef_min: { value: 0.2, with: BONUS },
  entropy_coef_max: { value: 0.01, with: { ...BONUS, entropy_target: 100 } },
  entropy_coef_delta: { value: 0.05, with: BONUS },
  entropy_target: { value: 100, with: BONUS },
  scale_rewards: { value: 'none' },
  multi_objective_aggregation: { value: 'normalize_then_sum', needsAdvantages: true },
  use_liger_kernel: { value: true },
  use_liger_loss: { value: true },
  normalize_advantages: { value: true },
  reward_clip_range: { value: [0, 1] },
};

const TRL_DPO: Record<string, Probe> = {
  loss_type: { value: 'hinge' },
  beta: { value: 0.5 },
  label_smoothing: { value: 0.1 },
  loss_weights: { value: [2] },
  ld_alpha: { value: 0.5 },
  f_divergence_type: { value: 'forward_kl' },
  use_weighting: { value: true },
  rpo_alpha: { value: 1 },
  reference_free: { value: true },
};

const ALONE = { 'grpo.use_leave_one_out_baseline': false };
const loss = (settings: Config) => ({
  ...ALONE,
  ...Object.fromEntries(Object.entries(settings).map(([name, value]) => [`loss_fn.${name}`, value])),
});
const WEIGHTED = { use_importance_sampling_correction: true };
const TIS = {
  ...WEIGHTED,
  truncated_importance_sampling_type: 'tis',
  truncated_importance_sampling_ratio: 1.2,
};
const NEMO_RL: Record<string, Probe> = {
  'loss_fn.ratio_clip_min': { value: 0.01, with: ALONE },
  'loss_fn.ratio_clip_max': { value: 0.01, with: ALONE },
  'loss_fn.ratio_clip_c': { value: 1.01, with: ALONE },
  'loss_fn.disable_ppo_ratio': { value: true, with: ALONE },
  'loss_fn.force_on_policy_ratio': { value: true, with: ALONE },
  'loss_fn.use_cispo': { value: true, with: ALONE },
  'loss_fn.sequence_level_importance_ratios': { value: true, with: loss({ token_level_loss: false }) },
  'loss_fn.token_level_loss': { value: false, with: ALONE },
  'loss_fn.reference_policy_kl_penalty': { value: 0.1, with: ALONE },
  'loss_fn.reference_policy_kl_type': { value: 'k1', with: ALONE },
  'loss_fn.kl_input_clamp_value': { value: 0.01, with: ALONE },
  'loss_fn.kl_output_clamp_value': { value: 0.001, with: ALONE },
  'loss_fn.use_kl_in_reward': { value: true, with: ALONE },
  'loss_fn.use_on_policy_kl_approximation': { value: true, with: ALONE },
  'loss_fn.use_importance_sampling_correction': { value: true, with: ALONE },
  'loss_fn.truncated_importance_sampling_type': {
    value: 'icepop',
    from: 'tis',
    with: loss({ ...TIS, truncated_importance_sampling_ratio_min: 0.98 }),
  },
  'loss_fn.truncated_importance_sampling_ratio': { value: 1.01, from: 2, with: loss(TIS) },
  'loss_fn.truncated_importance_sampling_ratio_min': { value: 1.1, with: loss(TIS) },
  'loss_fn.positive_example_nll_weight': { value: 0.1, with: ALONE },
  'grpo.adv_estimator.name': { value: 'gdpo', needsAdvantages: true },
  'grpo.normalize_rewards': { value: false, with: ALONE },
  'grpo.use_leave_one_out_baseline': { value: false, from: true, with: { 'grpo.normalize_rewards': false } },
  'grpo.adv_estimator.normalize_rewards': { value: false, with: ALONE },
  'grpo.adv_estimator.use_leave_one_out_baseline': {
    value: false,
    from: true,
    with: { 'grpo.normalize_rewards': false },
  },
  ppo: { value: { max_num_steps: 1 }, with: ALONE, needsAdvantages: true },
  'grpo.advantage_clip_low': { value: -1, with: ALONE, needsAdvantages: true },
  'grpo.advantage_clip_high': { value: 1, with: ALONE, needsAdvantages: true },
  'grpo.invalid_tool_call_advantage': { value: -5, with: ALONE, needsAdvantages: true },
  'grpo.malformed_thinking_advantage': { value: -5, with: ALONE, needsAdvantages: true },
  'grpo.overlong_filtering': { value: true },
  'grpo.seq_logprob_error_threshold': { value: 2 },
};

const PROBES: Record<string, Record<string, Probe>> = {
  verl: VERL,
  'trl/grpo': TRL_GRPO,
  'trl/dpo': TRL_DPO,
  'nemo-rl': NEMO_RL,
};

/** Returns what an objective computes in two steps, because an adaptive coefficient changes after the first one. */
function resultsOf(config: Config, framework: string, batch: Batch = BATCH) {
  const objective = fromConfig(config, { framework: framework as ConfigFramework });
  return [1, 2].map(() => {
    const { loss, metrics, grad } = objective.computeSync(batch, { grad: true });
    return { loss, metrics, grad: [...grad!] };
  });
}

const escaped = (path: string) => path.replaceAll('.', '\\.');

for (const { name, title, keys } of FRAMEWORKS)
  describe(`keys of ${title}`, () => {
    const probes = PROBES[name]!;
    it('all have a probe', () =>
      assert.deepEqual(Object.keys(probes).sort(), keys.map(({ path }) => path).sort()));

    for (const key of keys) {
      const { value, from, with: others = {}, needsAdvantages } = probes[key.path]!;
      const before = { ...others, ...(from !== undefined && { [key.path]: from }) };
      const after = { ...others, [key.path]: value };
      const naming = new RegExp(`${escaped(key.path)}`);

      if (needsAdvantages)
        it(`${key.path}: the batch must have advantages`, () => {
          assert.throws(() => resultsOf(after, name), isLossError('ERR_MISSING_INPUT', naming));
          assert.ok(resultsOf(after, name, GIVEN).every(({ loss }) => Number.isFinite(loss)));
        });
      else if ('neutral' in key)
        it(`${key.path}: refused unless it has no effect`, () => {
          assert.throws(() => resultsOf(after, name, GIVEN), isLossError('ERR_INVALID_OPTION', naming));
          for (const neutral of [null, ...key.neutral])
            assert.deepEqual(
              resultsOf({ ...others, [key.path]: neutral }, name, GIVEN),
              resultsOf(others, name, GIVEN),
            );
        });
      else
        it(`${key.path}: changes the result`, () =>
          assert.notDeepEqual(resultsOf(after, name), resultsOf(before, name)));

      if ('default' in key && key.default !== undefined && !needsAdvantages)
        it(`${key.path}: has the framework's default`, () =>
          assert.deepEqual(
            resultsOf({ ...others, [key.path]: key.default }, name, GIVEN),
            resultsOf(
              Object.fromEntries(Object.entries(others).filter(([path]) => path !== key.path)),
              name,
              GIVEN,
            ),
          ));

      it(`${key.path}: names itself in an error about its value`, () => {
        const wrong = 'neutral' in key ? after : { ...others, [key.path]: { wrong: true } };
        if (needsAdvantages || (name === 'nemo-rl' && key.path === 'ppo')) return;
        assert.throws(
          () => resultsOf(wrong, name),
          (error) => error instanceof LossError && naming.test(error.message),
        );
      });

      it(`${key.path}: refuses an array that claims to have 2^32 - 1 elements`, () => {
        const huge = new Array(2 ** 32 - 1);
        assert.throws(() => resultsOf({ ...others, [key.path]: huge }, name), LossError);
        assert.throws(() => resultsOf({ ...others, [key.path]: [huge] }, name), LossError);
      });
    }

    it('has bases, which cannot be an array that claims to have 2^32 - 1 elements', () =>
      assert.throws(
        () => resultsOf({ defaults: new Array(2 ** 32 - 1) }, name),
        isLossError('ERR_INVALID_INPUT', /lists of at most/),
      ));
  });

describe('keys without an effect', () => {
  it('does not refuse the division by processes with losses that divide by rows', () => {
    for (const key of ['use_liger_kernel', 'use_liger_loss'])
      assert.ok(fromConfig({ loss_type: 'grpo', [key]: true }));
  });
});
