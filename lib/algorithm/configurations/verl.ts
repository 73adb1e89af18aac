// verl's configurations: the keys with an effect on the loss, and the functions that they choose.
import type { ConfigKey, Framework, Plan, Settings } from './framework.js';

const ACTOR = 'actor_rollout_ref.actor';
const POLICY_LOSS = `${ACTOR}.policy_loss`;
const CORRECTION = 'algorithm.rollout_correction';

const LOSS_MODES = [
  'vanilla',
  'dppo_tv',
  'dppo_kl',
  'gspo',
  'sapo',
  'gpg',
  'clip_cov',
  'kl_cov',
  'geo_mean',
  'dro',
  'cispo',
  'bypass_mode',
] as const;

/** The KL functions by verl's names. Its k3 is limited, as low_var_kl is. */
const KL_FUNCTIONS: Readonly<Record<string, string>> = {
  kl: 'k1',
  k1: 'k1',
  abs: 'abs',
  mse: 'k2',
  k2: 'k2',
  low_var_kl: 'low_var_kl',
  k3: 'low_var_kl',
  'kl+': 'k1+',
  'k1+': 'k1+',
  'abs+': 'abs+',
  'mse+': 'k2+',
  'k2+': 'k2+',
  'low_var_kl+': 'low_var_kl+',
  'k3+': 'low_var_kl+',
};

/** An advantage function by verl's name, and what it depends on besides rewards. */
interface Estimator {
  readonly name: string;
  /** Whether verl passes norm_adv_by_std_in_grpo to the function. */
  readonly normalises?: true;
  /** Whether the advantages depend on the mask, which rejection changes before they are computed. */
  readonly readsMask?: true;
  /** Whether the advantages depend on the weights of the rollout correction. */
  readonly readsWeights?: true;
}

const ESTIMATORS: Readonly<Record<string, Estimator>> = {
  gae: { name: 'verl/gae', readsMask: true },
  grpo: { name: 'verl/grpo_vectorized', normalises: true },
  grpo_vectorized: { name: 'verl/grpo_vectorized' },
  grpo_passk: { name: 'verl/grpo_passk', normalises: true },
  gdpo: { name: 'verl/gdpo', readsMask: true },
  reinforce_plus_plus: { name: 'verl/reinforce_plus_plus', readsMask: true },
  reinforce_plus_plus_baseline: { name: 'verl/reinforce_plus_plus_baseline', readsMask: true },
  remax: { name: 'remax', readsMask: true },
  rloo: { name: 'rloo' },
  rloo_vectorized: { name: 'verl/rloo_vectorized' },
  opo: { name: 'verl/opo', readsMask: true },
  gpg: { name: 'verl/gpg' },
  optimal_token_baseline: { name: 'verl/optimal_token_baseline', readsMask: true, readsWeights: true },
  tir_optimal_token_baseline: {
    name: 'verl/tir_optimal_token_baseline',
    readsMask: true,
    readsWeights: true,
  },
};

const OF_OLDER_CORRECTIONS = {
  neutral: [null],
  effect: 'the rollout correction of older releases',
  hint: "Pass the option `correction` with the name 'verl/rollout_correction_v070' or 'verl/rollout_importance_weights_v060' to the policy loss",
} as const;

const KEYS: readonly ConfigKey[] = [
  {
    path: `${POLICY_LOSS}.loss_mode`,
    default: 'vanilla',
    type: LOSS_MODES,
    sets: 'the policy loss: `verl/<loss_mode>`',
  },
  { path: `${POLICY_LOSS}.clip_cov_ratio`, default: 2e-4, loss: 'clip_cov_ratio' },
  { path: `${POLICY_LOSS}.clip_cov_lb`, default: 1, loss: 'clip_cov_lb' },
  { path: `${POLICY_LOSS}.clip_cov_ub`, default: 5, loss: 'clip_cov_ub' },
  { path: `${POLICY_LOSS}.kl_cov_ratio`, default: 2e-4, loss: 'kl_cov_ratio' },
  { path: `${POLICY_LOSS}.ppo_kl_coef`, default: 0.1, loss: 'ppo_kl_coef' },
  { path: `${POLICY_LOSS}.dro_beta`, loss: 'dro_beta' },
  { path: `${ACTOR}.clip_ratio`, default: 0.2, loss: 'clip_ratio' },
  { path: `${ACTOR}.clip_ratio_low`, default: 0.2, loss: 'clip_ratio_low' },
  { path: `${ACTOR}.clip_ratio_high`, default: 0.2, loss: 'clip_ratio_high' },
  { path: `${ACTOR}.clip_ratio_c`, default: 3, loss: 'clip_ratio_c' },
  { path: `${ACTOR}.tau_pos`, default: 1, loss: 'tau_pos' },
  { path: `${ACTOR}.tau_neg`, default: 1.05, loss: 'tau_neg' },
  {
    path: `${ACTOR}.loss_agg_mode`,
    default: 'token-mean',
    type: ['token-mean', 'token-sum', 'seq-mean-token-sum', 'seq-mean-token-mean', 'seq-mean-token-sum-norm'],
    sets: 'the option `loss_agg_mode` of the policy loss, if it has one, and the aggregation of the KL loss and the entropy loss',
  },
  {
    path: `${ACTOR}.loss_scale_factor`,
    type: 'number',
    sets: 'the option `loss_scale_factor` of the policy loss, if it has one, and of the aggregation of the KL loss and the entropy loss',
  },
  { path: `${ACTOR}.entropy_coeff`, default: 0, type: 'number', sets: 'the coefficient of the entropy loss' },
  { path: `${ACTOR}.use_kl_loss`, default: false, type: 'boolean', sets: 'whether there is a KL loss' },
  {
    path: `${ACTOR}.kl_loss_coef`,
    default: 0.001,
    type: 'number',
    sets: 'the coefficient of the KL loss',
  },
  {
    path: `${ACTOR}.kl_loss_type`,
    default: 'low_var_kl',
    type: Object.keys(KL_FUNCTIONS),
    sets: 'the KL function of the KL loss. `kl` is `k1`, `mse` is `k2`, and `k3` is `low_var_kl`',
  },
  {
    path: `${ACTOR}.tis_imp_ratio_cap`,
    default: -1,
    type: 'number',
    sets: 'above 0: `rollout_is: token` with this threshold, as in releases before 0.6',
  },
  {
    path: 'algorithm.adv_estimator',
    default: 'gae',
    type: Object.keys(ESTIMATORS),
    sets: 'the advantage function: `verl/<adv_estimator>`, or `rloo` and `remax`. `grpo` is `verl/grpo_vectorized`',
  },
  { path: 'algorithm.gamma', default: 1, advantage: 'gamma' },
  { path: 'algorithm.lam', default: 1, advantage: 'lam' },
  {
    path: 'algorithm.norm_adv_by_std_in_grpo',
    default: true,
    type: 'boolean',
    sets: 'this option of the advantage function, with `grpo` and `grpo_passk` only, as in verl',
  },
  { path: 'algorithm.gdpo_reward_keys', advantage: 'gdpo_reward_keys' },
  { path: 'algorithm.gdpo_reward_weights', advantage: 'gdpo_reward_weights' },
  {
    path: 'algorithm.use_kl_in_reward',
    default: false,
    type: 'boolean',
    sets: 'whether a KL penalty is subtracted from the rewards',
  },
  {
    path: 'algorithm.kl_penalty',
    default: 'kl',
    type: Object.keys(KL_FUNCTIONS),
    sets: 'the KL function of the penalty',
  },
  {
    path: 'algorithm.kl_ctrl.type',
    default: 'fixed',
    type: ['fixed', 'adaptive'],
    sets: 'whether the coefficient of the penalty adapts to the divergence',
  },
  {
    path: 'algorithm.kl_ctrl.kl_coef',
    default: 0.001,
    type: 'number',
    sets: 'the coefficient of the penalty',
  },
  {
    path: 'algorithm.kl_ctrl.horizon',
    default: 10_000,
    type: 'number',
    sets: 'the horizon of an adaptive coefficient',
  },
  {
    path: 'algorithm.kl_ctrl.target_kl',
    default: 0.1,
    type: 'number',
    sets: 'the divergence at which an adaptive coefficient aims',
  },
  { path: 'algorithm.use_pf_ppo', neutral: [false], effect: 'PF-PPO, which resamples rows at random' },
  { path: `${CORRECTION}.rollout_is`, loss: 'rollout_is' },
  { path: `${CORRECTION}.rollout_is_threshold`, default: 2, loss: 'rollout_is_threshold' },
  { path: `${CORRECTION}.rollout_is_batch_normalize`, default: false, loss: 'rollout_is_batch_normalize' },
  { path: `${CORRECTION}.rollout_rs`, loss: 'rollout_rs' },
  { path: `${CORRECTION}.rollout_rs_threshold`, loss: 'rollout_rs_threshold' },
  {
    path: `${CORRECTION}.bypass_mode`,
    default: false,
    type: 'boolean',
    sets: 'whether the policy loss is `verl/bypass_mode` instead of the one that `loss_mode` names',
  },
  { path: `${CORRECTION}.loss_type`, default: 'ppo_clip', loss: 'loss_type' },
  { path: `${CORRECTION}.rollout_rs_threshold_lower`, ...OF_OLDER_CORRECTIONS },
  { path: `${CORRECTION}.rollout_token_veto_threshold`, ...OF_OLDER_CORRECTIONS },
  { path: `${CORRECTION}.use_policy_gradient`, ...OF_OLDER_CORRECTIONS, neutral: [false] },
  { path: 'algorithm.rollout_is', ...OF_OLDER_CORRECTIONS, neutral: [false] },
  { path: 'algorithm.rollout_is_threshold', ...OF_OLDER_CORRECTIONS },
  { path: 'distillation.enabled', neutral: [false], effect: 'distillation' },
];

/** verl. */
export const VERL: Framework = {
  name: 'verl',
  title: 'verl',
  release: 'after 0.9.0 (commit 1dda039b, August 2026)',
  keys: KEYS,
  closed: [POLICY_LOSS, CORRECTION, 'algorithm.kl_ctrl'],
  // The trainer overwrites the correction of the actor, and `_target_` is the class of the section.
  inert: [
    `${POLICY_LOSS}.rollout_correction`,
    ...[POLICY_LOSS, CORRECTION, 'algorithm.kl_ctrl'].map((section) => `${section}._target_`),
  ],
  marks: ['actor_rollout_ref', 'algorithm.filter_groups', 'algorithm.pf_ppo', 'algorithm._target_'],
  bases: ['ppo_trainer', 'ppo_megatron_trainer', '_self_'],
  plan,
};

function plan(settings: Settings): Plan {
  const klCoef = settings.isOn(`${ACTOR}.use_kl_loss`) ? settings.number(`${ACTOR}.kl_loss_coef`) : 0;
  const advantage = advantageOf(settings);
  const scale = settings.get(`${ACTOR}.loss_scale_factor`) as number | null | undefined;
  return {
    ...lossOf(settings),
    advantage,
    klLoss:
      klCoef === 0
        ? undefined
        : { name: KL_FUNCTIONS[settings.text(`${ACTOR}.kl_loss_type`)]!, coef: klCoef },
    entropyCoef: settings.number(`${ACTOR}.entropy_coeff`),
    klPenalty: 'name' in advantage ? penaltyOf(settings) : undefined,
    lossAggMode: settings.text(`${ACTOR}.loss_agg_mode`),
    lossScaleFactor: scale ?? undefined,
  };
}

function lossOf(settings: Settings): Pick<Plan, 'policyLoss' | 'lossArgs'> {
  const lossArgs = {
    loss_agg_mode: settings.text(`${ACTOR}.loss_agg_mode`),
    loss_scale_factor: settings.get(`${ACTOR}.loss_scale_factor`),
  };
  if (settings.isOn(`${CORRECTION}.bypass_mode`)) return { policyLoss: 'verl/bypass_mode', lossArgs };
  const mode = settings.text(`${POLICY_LOSS}.loss_mode`);
  if (mode === 'bypass_mode')
    throw settings.error(`${POLICY_LOSS}.loss_mode`, `${CORRECTION}.bypass_mode to be true with it`);
  const policyLoss = `verl/${mode}`;
  const cap = settings.number(`${ACTOR}.tis_imp_ratio_cap`);
  if (cap <= 0) return { policyLoss, lossArgs };
  if ((settings.get(`${CORRECTION}.rollout_is`) ?? null) !== null)
    throw settings.error(`${ACTOR}.tis_imp_ratio_cap`, `no value above 0 with ${CORRECTION}.rollout_is`);
  return { policyLoss, lossArgs: { ...lossArgs, rollout_is: 'token', rollout_is_threshold: cap } };
}

function advantageOf(settings: Settings): NonNullable<Plan['advantage']> {
  const { name, normalises, readsMask, readsWeights } = ESTIMATORS[settings.text('algorithm.adv_estimator')]!;
  const isDecoupled = !settings.isOn(`${CORRECTION}.bypass_mode`);
  const isSet = (path: string) => isDecoupled && (settings.get(path) ?? null) !== null;
  if (readsMask && isSet(`${CORRECTION}.rollout_rs`)) return { obstacle: `${CORRECTION}.rollout_rs` };
  if (readsWeights && isSet(`${CORRECTION}.rollout_is`)) return { obstacle: `${CORRECTION}.rollout_is` };
  if (!normalises) return { name };
  const path = 'algorithm.norm_adv_by_std_in_grpo';
  return { name, args: { norm_adv_by_std_in_grpo: settings.get(path) === null || settings.isOn(path) } };
}

function penaltyOf(settings: Settings): Plan['klPenalty'] {
  // GDPO with keys of its own does not read the rewards from which the penalty is subtracted.
  const isGdpo = settings.text('algorithm.adv_estimator') === 'gdpo';
  const readsOthers = isGdpo && (settings.get('algorithm.gdpo_reward_keys') ?? null) !== null;
  if (!settings.isOn('algorithm.use_kl_in_reward') || readsOthers) return undefined;
  const isAdaptive = settings.text('algorithm.kl_ctrl.type') === 'adaptive';
  return {
    name: KL_FUNCTIONS[settings.text('algorithm.kl_penalty')]!,
    args: {
      kl_coef: settings.number('algorithm.kl_ctrl.kl_coef'),
      ...(isAdaptive && {
        adaptive: true,
        horizon: settings.number('algorithm.kl_ctrl.horizon'),
        target_kl: settings.number('algorithm.kl_ctrl.target_kl'),
      }),
    },
  };
}
