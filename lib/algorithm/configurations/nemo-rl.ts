// NeMo-RL's configurations of GRPO: the keys with an effect on the loss, and the functions that they choose.
import type { ConfigKey, Framework, Plan, Settings } from './framework.js';

const LOSS = 'loss_fn';
const ESTIMATOR = 'grpo.adv_estimator';
const TRUNCATION = 'truncated_importance_sampling';

const sameName = (name: string, byDefault?: unknown) => ({
  path: `${LOSS}.${name}`,
  default: byDefault,
  loss: name,
});

const OVERWRITES = {
  neutral: [null],
  effect: 'advantages that are overwritten',
  ofAdvantages: true,
} as const;

const KEYS: readonly ConfigKey[] = [
  sameName('ratio_clip_min', 0.2),
  sameName('ratio_clip_max', 0.2),
  sameName('ratio_clip_c'),
  sameName('disable_ppo_ratio', false),
  sameName('force_on_policy_ratio', false),
  {
    path: `${LOSS}.use_cispo`,
    default: false,
    type: 'boolean',
    sets: 'this option of the policy loss. It needs `token_level_loss`',
  },
  sameName('sequence_level_importance_ratios', false),
  {
    path: `${LOSS}.token_level_loss`,
    default: true,
    type: 'boolean',
    sets: 'the option `loss_agg_mode` of the policy loss: `token-mean` or, if false, `seq-mean-token-mean`',
  },
  {
    path: `${LOSS}.reference_policy_kl_penalty`,
    default: 0.01,
    type: 'number',
    sets: 'this option of the policy loss, unless `use_kl_in_reward` is true',
  },
  sameName('reference_policy_kl_type', 'k3'),
  sameName('kl_input_clamp_value', 20),
  sameName('kl_output_clamp_value', 10),
  {
    path: `${LOSS}.use_kl_in_reward`,
    default: false,
    type: 'boolean',
    sets: 'whether the policy loss has no KL term, because the estimator of advantages has it',
  },
  sameName('use_on_policy_kl_approximation', false),
  sameName('use_importance_sampling_correction', false),
  {
    path: `${LOSS}.${TRUNCATION}_type`,
    type: ['tis', 'icepop', 'seq-mask-tis'],
    sets: 'this option of the policy loss. It needs `use_importance_sampling_correction` and bounds',
  },
  {
    path: `${LOSS}.${TRUNCATION}_ratio`,
    type: 'number',
    sets: `this option of the policy loss. It needs \`${TRUNCATION}_type\``,
  },
  sameName(`${TRUNCATION}_ratio_min`),
  sameName('positive_example_nll_weight', 0),
  {
    path: `${ESTIMATOR}.name`,
    default: 'grpo',
    type: 'text',
    sets: 'the advantage function. The batch must have advantages unless it is `grpo`',
  },
  {
    path: 'grpo.normalize_rewards',
    default: true,
    type: 'boolean',
    sets: `\`${ESTIMATOR}.normalize_rewards\`, if that is absent`,
  },
  {
    path: 'grpo.use_leave_one_out_baseline',
    default: true,
    type: 'boolean',
    sets: `\`${ESTIMATOR}.use_leave_one_out_baseline\`, if that is absent`,
  },
  {
    path: `${ESTIMATOR}.normalize_rewards`,
    type: 'boolean',
    sets: 'the advantage function: `grpo`, or without normalisation `rloo` or `asymre` with a shift of 0',
  },
  {
    path: `${ESTIMATOR}.use_leave_one_out_baseline`,
    type: 'boolean',
    sets: 'the advantage function: `rloo`. The batch must have advantages if they are also normalised',
  },
  { path: 'ppo', neutral: [null], effect: "the advantages of NeMo-RL's PPO", ofAdvantages: true },
  { path: 'grpo.advantage_clip_low', ...OVERWRITES, effect: 'clipped advantages' },
  { path: 'grpo.advantage_clip_high', ...OVERWRITES, effect: 'clipped advantages' },
  { path: 'grpo.invalid_tool_call_advantage', ...OVERWRITES },
  { path: 'grpo.malformed_thinking_advantage', ...OVERWRITES },
  {
    path: 'grpo.overlong_filtering',
    neutral: [false],
    effect: 'truncated rows that are left out',
    hint: 'Mask the tokens of these rows in the batch',
  },
  {
    path: 'grpo.seq_logprob_error_threshold',
    neutral: [null],
    effect: 'rows that are left out for a large error of their log-probabilities',
    hint: 'Mask the tokens of these rows in the batch',
  },
];

/** NeMo-RL's GRPO. */
export const NEMO_RL: Framework = {
  name: 'nemo-rl',
  title: 'NeMo-RL',
  release: 'commit 7ea279ab, August 2026',
  keys: KEYS,
  closed: [LOSS],
  marks: [LOSS, 'grpo'],
  bases: ['grpo_math_1B.yaml'],
  plan,
};

function plan(settings: Settings): Plan {
  const isOfTokens = settings.get(`${LOSS}.token_level_loss`) !== false;
  const useCispo = settings.isOn(`${LOSS}.use_cispo`);
  if (useCispo && !isOfTokens)
    throw settings.error(`${LOSS}.token_level_loss`, `true with ${LOSS}.use_cispo`);
  checkTruncation(settings);
  const penalty = settings.number(`${LOSS}.reference_policy_kl_penalty`);
  return {
    policyLoss: 'clipped_pg',
    lossArgs: {
      use_cispo: useCispo,
      loss_agg_mode: isOfTokens ? 'token-mean' : 'seq-mean-token-mean',
      reference_policy_kl_penalty: settings.isOn(`${LOSS}.use_kl_in_reward`) ? 0 : penalty,
      truncated_importance_sampling_type: settings.get(`${LOSS}.${TRUNCATION}_type`),
      truncated_importance_sampling_ratio: settings.get(`${LOSS}.${TRUNCATION}_ratio`),
    },
    advantage: advantageOf(settings),
  };
}

// Older releases truncate if there is a ratio, and newer ones if there is a type.
function checkTruncation(settings: Settings): void {
  const at = (name: string) => `${LOSS}.${TRUNCATION}_${name}`;
  const isSet = (path: string) => (settings.get(path) ?? null) !== null;
  if (!isSet(at('type'))) {
    if (isSet(at('ratio'))) throw settings.error(at('ratio'), `null without ${at('type')}`);
    return;
  }
  const type = settings.get(at('type'));
  if (!settings.isOn(`${LOSS}.use_importance_sampling_correction`))
    throw settings.error(at('type'), `null without ${LOSS}.use_importance_sampling_correction`);
  if (!isSet(at('ratio'))) throw settings.error(at('ratio'), `a number with the type ${type}`);
  if (type !== 'tis' && !isSet(at('ratio_min')))
    throw settings.error(at('ratio_min'), `a number with the type ${type}`);
  if (type === 'seq-mask-tis' && settings.get(`${LOSS}.sequence_level_importance_ratios`) === true)
    throw settings.error(`${LOSS}.sequence_level_importance_ratios`, `false with the type ${type}`);
}

function advantageOf(settings: Settings): NonNullable<Plan['advantage']> {
  if (settings.text(`${ESTIMATOR}.name`) !== 'grpo') return { obstacle: `${ESTIMATOR}.name` };
  const option = (name: string) => {
    const own = settings.get(`${ESTIMATOR}.${name}`) ?? settings.get(`grpo.${name}`);
    return own === true || own === null;
  };
  const isNormalised = option('normalize_rewards');
  if (!option('use_leave_one_out_baseline'))
    return isNormalised
      ? { name: 'grpo', args: { epsilon: 1e-6 } }
      : { name: 'asymre', args: { baseline_shift: 0 } };
  return isNormalised ? { obstacle: 'grpo.use_leave_one_out_baseline' } : { name: 'rloo' };
}
