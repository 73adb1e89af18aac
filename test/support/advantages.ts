/**
 * Helpers for tests of advantage functions: what each function is expected to have, how results are compared, and a
 * batch with rewards.
 */
import assert from 'node:assert/strict';
import {
  ADVANTAGE_FN,
  type AdvantageResult,
  ASYMREGroupAdvantage,
  type Batch,
  GRPOGroupedAdvantage,
  JSDAdvantage,
  MilesOPDAdvantageFn,
  NemoOPDAdvantageFn,
  OnPolicyDistillAdvantage,
  OPMDGroupAdvantage,
  PPOAdvantageFn,
  RECGroupedAdvantage,
  REINFORCEGroupAdvantage,
  REINFORCEPLUSPLUSAdvantageFn,
  REMAXAdvantageFn,
  RLOOAdvantageFn,
  RollOPDAdvantageFn,
  SlimeOPDAdvantageFn,
  StepWiseGRPOAdvantageFn,
  SwiftOPDAdvantageFn,
  TinkerOPDAdvantageFn,
  VerlGAEAdvantageFn,
  VerlGDPOAdvantageFn,
  VerlGPGAdvantageFn,
  VerlGRPOPassKAdvantageFn,
  VerlGRPOVectorizedAdvantageFn,
  VerlOPOAdvantageFn,
  VerlOptimalTokenBaselineAdvantageFn,
  VerlREINFORCEPlusPlusAdvantageFn,
  VerlREINFORCEPlusPlusBaselineAdvantageFn,
  VerlRLOOVectorizedAdvantageFn,
  VerlTIROptimalTokenBaselineAdvantageFn,
} from '../../lib/index.js';
import type { ReferenceAdvantages, RewardedBatch } from '../reference/advantage.js';
import type { Args } from '../reference/index.js';
import type { RewardSpec } from './draw.js';
import { unpack } from './subject.js';
import { assertArray, assertNumber, assertSameArray } from './tolerance.js';

const VERL_ROWS = ['token_level_rewards', 'group_ids'] as const;
const VERL_TOKENS = ['token_level_rewards', 'old_logprob', 'sum_pi_squared', 'group_ids'] as const;
const OPD = ['advantages', 'old_logprob', 'teacher_logprob'] as const;
const VERL_NORMALISED = { epsilon: 1e-6, norm_adv_by_std_in_grpo: true };
const VERL_BASELINE = { handle_zero_tail: true, epsilon: 1e-8 };

/** For every advantage function: its expected class, default arguments, and batch keys except the mask. */
export const FUNCTIONS = {
  ppo: [PPOAdvantageFn, { gamma: 1, lam: 1 }, ['token_level_rewards', 'values']],
  reinforceplusplus: [REINFORCEPLUSPLUSAdvantageFn, { gamma: 1 }, ['token_level_rewards']],
  remax: [REMAXAdvantageFn, {}, ['token_level_rewards', 'reward_baselines']],
  rloo: [RLOOAdvantageFn, {}, ['token_level_rewards', 'group_ids']],
  grpo: [
    GRPOGroupedAdvantage,
    {
      epsilon: 1e-6,
      std_threshold: null,
      duplicate_experiences: false,
      rank_penalty: null,
      std_cal_level: 'group',
    },
    ['rewards', 'group_ids'],
  ],
  step_wise_grpo: [
    StepWiseGRPOAdvantageFn,
    { epsilon: 1e-6, enable_step_norm: false, std_threshold: null, std_cal_level: 'group' },
    ['rewards', 'group_ids', 'run_ids'],
  ],
  reinforce: [REINFORCEGroupAdvantage, {}, ['rewards', 'group_ids']],
  opmd: [OPMDGroupAdvantage, { opmd_baseline: 'mean', tau: 1 }, ['rewards', 'group_ids']],
  asymre: [ASYMREGroupAdvantage, { baseline_shift: -0.1 }, ['rewards', 'group_ids']],
  rec: [RECGroupedAdvantage, { epsilon: 1e-6, std_normalize: false, drop: null }, ['rewards', 'group_ids']],
  on_policy_distill: [OnPolicyDistillAdvantage, { kl_coef: 1 }, ['old_logprob', 'teacher_logprob']],
  jsd: [
    JSDAdvantage,
    { lambda_coef: 0.5, kl_coef: 1, temperature: 1, chunk_size: null },
    ['old_logprob', 'teacher_logprob'],
  ],
  'verl/gae': [VerlGAEAdvantageFn, { gamma: 1, lam: 1 }, ['token_level_rewards', 'values']],
  'verl/reinforce_plus_plus': [VerlREINFORCEPlusPlusAdvantageFn, { gamma: 1 }, ['token_level_rewards']],
  'verl/reinforce_plus_plus_baseline': [VerlREINFORCEPlusPlusBaselineAdvantageFn, {}, VERL_ROWS],
  'verl/grpo_vectorized': [VerlGRPOVectorizedAdvantageFn, VERL_NORMALISED, VERL_ROWS],
  'verl/grpo_passk': [VerlGRPOPassKAdvantageFn, VERL_NORMALISED, VERL_ROWS],
  'verl/rloo_vectorized': [VerlRLOOVectorizedAdvantageFn, {}, VERL_ROWS],
  'verl/opo': [VerlOPOAdvantageFn, {}, VERL_ROWS],
  'verl/gpg': [VerlGPGAdvantageFn, { f_norm: 1 }, VERL_ROWS],
  'verl/gdpo': [
    VerlGDPOAdvantageFn,
    { ...VERL_NORMALISED, gdpo_reward_keys: null, gdpo_reward_weights: null },
    VERL_ROWS,
  ],
  'verl/optimal_token_baseline': [VerlOptimalTokenBaselineAdvantageFn, VERL_BASELINE, VERL_TOKENS],
  'verl/tir_optimal_token_baseline': [VerlTIROptimalTokenBaselineAdvantageFn, VERL_BASELINE, VERL_TOKENS],
  'slime/opd': [SlimeOPDAdvantageFn, { opd_kl_coef: 1, normalize_advantages: false }, OPD],
  'miles/opd': [MilesOPDAdvantageFn, { opd_kl_coef: 1 }, OPD],
  'swift/opd': [SwiftOPDAdvantageFn, { teacher_kl_coef: 1 }, OPD],
  'nemo/opd': [NemoOPDAdvantageFn, {}, ['old_logprob', 'teacher_logprob']],
  'tinker/opd': [TinkerOPDAdvantageFn, { kl_penalty_coef: 1, kl_discount_factor: 0 }, OPD],
  'roll/opd': [
    RollOPDAdvantageFn,
    {
      opd_kl_coef: null,
      kl_penalty: 'kl',
      is_pure_opd: false,
      gamma: 1,
      whiten_advantages: false,
      advantage_clip: null,
    },
    ['token_level_rewards', 'old_logprob', 'teacher_logprob'],
  ],
} as const;
export const NAMES = Object.keys(FUNCTIONS);

/**
 * The advantage functions by what they read: token-level rewards, a reward per row, or the log-probabilities of two
 * policies.
 */
const OF_VERL = NAMES.filter((name) => name.startsWith('verl/'));
export const OF_TOKEN_REWARDS = ['ppo', 'reinforceplusplus', 'remax', 'rloo', ...OF_VERL];
export const OF_ROW_REWARDS = ['grpo', 'step_wise_grpo', 'reinforce', 'opmd', 'asymre', 'rec'];
export const OF_TWO_POLICIES = ['on_policy_distill', 'jsd'];
const readsGroups = (name: string) =>
  (FUNCTIONS[name as keyof typeof FUNCTIONS][2] as readonly string[]).includes('group_ids');
export const OF_GROUPS = NAMES.filter(readsGroups);
/** The advantage functions whose returns differ from their advantages. */
export const WITH_RETURNS = [
  'ppo',
  'reinforceplusplus',
  'remax',
  'verl/gae',
  'verl/reinforce_plus_plus',
  'verl/optimal_token_baseline',
  'verl/tir_optimal_token_baseline',
  'roll/opd',
];

export const create = (name: string, args: Args = {}) => ADVANTAGE_FN.create(name, args);
export const computed = (name: string, args: Args, batch: Batch) => create(name, args).computeSync(batch);

/** Returns a result in the padded layout B×T (rows × columns), even if the batch is packed. */
export function laidOut(batch: RewardedBatch, result: AdvantageResult): AdvantageResult {
  if (!batch.rowLengths) return result;
  return {
    ...result,
    advantages: unpack(batch, result.advantages),
    returns: unpack(batch, result.returns),
  };
}

export function assertAdvantages(
  actual: AdvantageResult,
  expected: ReferenceAdvantages,
  relative?: number,
): void {
  assert.deepEqual(Object.keys(actual.metrics).sort(), Object.keys(expected.metrics).sort());
  for (const [name, value] of Object.entries(expected.metrics))
    assertNumber(actual.metrics[name], value, name, expected.magnitude[name], relative);
  // If all expected values are 0, float64 terms that cancel still leave small errors. The magnitude 1e-6 makes the
  // bound large enough for them.
  assertArray(actual.advantages, expected.advantages, 'advantages', relative, 1e-6);
  assertArray(actual.returns, expected.returns, 'returns', relative, 1e-6);
  assert.deepEqual(
    Array.from(actual.keptRows),
    expected.kept.map((is) => (is ? 1 : 0)),
  );
}

/** Asserts that two results are equal to the last bit. */
export function assertSameAdvantages(actual: AdvantageResult, expected: AdvantageResult): void {
  assertSameArray(actual.advantages, expected.advantages, 'advantages');
  assertSameArray(actual.returns, expected.returns, 'returns');
  assert.deepStrictEqual(actual.keptRows, expected.keptRows);
  assert.deepStrictEqual(actual.copies, expected.copies);
  assert.deepStrictEqual(actual.metrics, expected.metrics);
}

export function assertFinite(result: AdvantageResult): void {
  for (const [name, value] of Object.entries(result.metrics))
    assert.ok(Number.isFinite(value), `${name} is ${value}`);
  const notFinite = [...result.advantages, ...result.returns].findIndex((x) => !Number.isFinite(x));
  assert.equal(notFinite, -1, 'an advantage or return is not finite');
}

export const REWARDED_TOKENS: RewardSpec = {
  seed: 41,
  rows: 8,
  columns: 23,
  values: 'moderate',
  mask: 'random',
  packed: false,
  groups: 'some',
  rewards: 'normal',
  perToken: true,
};
