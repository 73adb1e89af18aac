// The arguments of TRL's GRPO trainer: those with an effect on the loss, and the functions that they choose.
import type { ConfigKey, Framework, Plan, Settings } from './framework.js';

const LOSS_TYPES = ['grpo', 'bnpo', 'dr_grpo', 'dapo', 'cispo', 'sapo', 'vespo', 'luspo'];
// The losses that are divided by the tokens of all processes and accumulation steps.
const OF_ITEMS = ['dapo', 'cispo', 'vespo'];
const LIGER = {
  neutral: [false],
  effect: "Liger's division of dapo, cispo and vespo by the tokens of each process",
  matters: (settings: Settings) => OF_ITEMS.includes(settings.text('loss_type')),
} as const;

const sameName = (path: string, byDefault?: unknown) => ({ path, default: byDefault, loss: path });

const KEYS: readonly ConfigKey[] = [
  {
    path: 'loss_type',
    default: 'dapo',
    type: LOSS_TYPES,
    shared: true,
    sets: 'the policy loss: `trl/<loss_type>`',
  },
  { path: 'beta', default: 0, loss: 'beta', shared: true },
  sameName('epsilon', 0.2),
  sameName('epsilon_high'),
  sameName('delta'),
  {
    path: 'importance_sampling_level',
    default: 'token',
    type: ['token', 'sequence', 'sequence_token'],
    sets: 'this option of the policy loss. With `sequence_token` the policy loss is `trl/gspo_token`',
  },
  sameName('sapo_temperature_pos', 1),
  sameName('sapo_temperature_neg', 1.05),
  sameName('vespo_k_pos', 2),
  sameName('vespo_lambda_pos', 3),
  sameName('vespo_k_neg', 3),
  sameName('vespo_lambda_neg', 2),
  {
    path: 'max_completion_length',
    default: 512,
    type: 'number',
    sets: 'this option of `trl/dr_grpo`, and the length of truncated completions',
  },
  {
    path: 'mask_truncated_completions',
    default: false,
    type: 'boolean',
    sets: 'the mask `overlong_length` of the policy loss, with the value of `max_completion_length`',
  },
  sameName('top_entropy_quantile', 1),
  sameName('off_policy_mask_threshold'),
  sameName('use_bias_correction_kl', false),
  sameName('use_vllm', false),
  sameName('vllm_importance_sampling_correction', true),
  sameName('vllm_importance_sampling_mode', 'sequence_mask'),
  sameName('vllm_importance_sampling_clip_min'),
  {
    path: 'vllm_importance_sampling_clip_max',
    default: 3,
    type: 'number',
    sets: 'this option of the policy loss',
  },
  {
    path: 'vllm_importance_sampling_cap',
    type: 'number',
    sets: '`vllm_importance_sampling_clip_max`, whose older name it is',
  },
  sameName('entropy_coef', 0),
  sameName('use_adaptive_entropy', false),
  sameName('entropy_coef_min', 0),
  sameName('entropy_coef_max', 1),
  sameName('entropy_coef_delta', 0.005),
  sameName('entropy_target', 0.2),
  {
    path: 'scale_rewards',
    default: 'group',
    type: ['group', 'batch', 'none'],
    spellings: { true: 'group', false: 'none' },
    sets: 'the advantage function: `grpo` with the standard deviation of the group or the batch, or, with `none`, `asymre` with a shift of 0. `true` is `group`, and `false` is `none`',
  },
  {
    path: 'multi_objective_aggregation',
    neutral: ['sum_then_normalize'],
    effect: 'rewards that are normalised one by one',
    ofAdvantages: true,
  },
  { path: 'use_liger_kernel', shared: true, ...LIGER },
  { path: 'use_liger_loss', shared: true, ...LIGER },
  {
    path: 'normalize_advantages',
    neutral: [false],
    effect: "TRL's RLOO trainer",
    hint: "Create the policy loss 'trl/rloo'",
  },
  { path: 'reward_clip_range', neutral: [null], effect: "TRL's RLOO trainer" },
];

/** TRL's GRPO trainer. */
export const TRL_GRPO: Framework = {
  name: 'trl/grpo',
  title: "TRL's GRPO trainer",
  release: '1.10.0.dev (commit f2cd577, July 2026)',
  keys: KEYS,
  closed: [],
  marks: [
    'num_generations',
    'num_iterations',
    'reward_weights',
    'steps_per_generation',
    'generation_batch_size',
  ],
  lossTypes: LOSS_TYPES,
  bases: [],
  plan,
};

function plan(settings: Settings): Plan {
  const type = settings.text('loss_type');
  const level = settings.text('importance_sampling_level');
  const isOfTokens = level === 'sequence_token';
  if (isOfTokens && !['grpo', 'bnpo', 'dr_grpo', 'dapo'].includes(type))
    throw settings.error('importance_sampling_level', `token or sequence with the loss_type ${type}`);
  const length = settings.number('max_completion_length');
  const cap = settings.get('vllm_importance_sampling_cap') ?? null;
  return {
    policyLoss: isOfTokens ? 'trl/gspo_token' : `trl/${type}`,
    lossArgs: {
      importance_sampling_level: level,
      ...(isOfTokens && { loss_type: type }),
      ...((isOfTokens || type === 'dr_grpo') && { max_completion_length: length }),
      ...(settings.isOn('mask_truncated_completions') && { masks: { overlong_length: length } }),
      vllm_importance_sampling_clip_max: cap ?? settings.get('vllm_importance_sampling_clip_max'),
    },
    advantage: advantageOf(settings),
  };
}

function advantageOf(settings: Settings): NonNullable<Plan['advantage']> {
  const scale = settings.text('scale_rewards');
  if (scale === 'none') return { name: 'asymre', args: { baseline_shift: 0 } };
  return { name: 'grpo', args: { epsilon: 1e-4, std_cal_level: scale } };
}
