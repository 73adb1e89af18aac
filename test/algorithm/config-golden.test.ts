/** Builds configurations from the golden cases of verl, TRL and NeMo-RL, and compares the objectives with the results. */
import assert from 'node:assert/strict';
import { stringify } from 'yaml';
import { type Batch, fromConfig, type ObjectiveResult } from '../../lib/index.js';
import { reported } from '../reference/verl.js';
import {
  type FrameworkLossCase,
  goldenBatch,
  klLossCases,
  papersCases,
  type Tensor,
  trlCases,
  verlCases,
} from '../support/golden.js';
import { isLossError } from '../support/loss-error.js';
import { assertArray, assertNumber } from '../support/tolerance.js';

type Args = Record<string, unknown>;

const METRIC_RELATIVE = 1e-4;
/** Arguments that describe how a step is divided. A configuration does not have them, and these are their defaults. */
const DIVISION: Args = {
  dp_size: 1,
  batch_num_tokens: null,
  global_batch_size: null,
  num_items_in_batch: null,
  num_processes: 1,
  gradient_accumulation_steps: 1,
};

const isWhole = ({ args }: { args: Args }) =>
  Object.entries(DIVISION).every(([name, value]) => !(name in args) || args[name] === value);

const without = (args: Args, ...names: string[]) =>
  Object.fromEntries(Object.entries(args).filter(([name]) => !names.includes(name)));

const pick = (args: Args, ...names: string[]) =>
  Object.fromEntries(names.flatMap((name) => (name in args ? [[name, args[name]]] : [])));

function verlConfig(mode: string, args: Args, algorithm: Args = {}): Args {
  const ofCorrection = pick(
    args,
    'rollout_is',
    'rollout_is_threshold',
    'rollout_is_batch_normalize',
    'rollout_rs',
    'rollout_rs_threshold',
    'loss_type',
  );
  const ofPolicyLoss = pick(
    args,
    'clip_cov_ratio',
    'clip_cov_lb',
    'clip_cov_ub',
    'kl_cov_ratio',
    'ppo_kl_coef',
    'dro_beta',
  );
  const placed = [...Object.keys(ofCorrection), ...Object.keys(ofPolicyLoss), ...Object.keys(DIVISION)];
  const bypass = mode === 'bypass_mode';
  return {
    actor_rollout_ref: {
      actor: {
        ...without(args, ...placed),
        policy_loss: { ...ofPolicyLoss, ...(!bypass && { loss_mode: mode }) },
      },
    },
    algorithm: { ...algorithm, rollout_correction: { ...ofCorrection, bypass_mode: bypass } },
  };
}

function assertCase(
  result: ObjectiveResult,
  expected: { loss: number; metrics: Record<string, number>; grad_logprob: Tensor; grad_entropy?: Tensor },
): void {
  assertNumber(result.loss, expected.loss, 'loss');
  assertArray(result.grad!, expected.grad_logprob.data, 'grad');
  if (expected.grad_entropy) assertArray(result.gradEntropy!, expected.grad_entropy.data, 'gradEntropy');
  for (const [name, value] of Object.entries(expected.metrics))
    assertNumber(result.metrics[name], value, name, Math.abs(value) * 20, METRIC_RELATIVE);
}

const compute = (config: Args, inputs: Record<string, Tensor>, further: Partial<Batch> = {}) =>
  fromConfig(stringify(config)).computeSync(
    { ...goldenBatch(inputs), ...further },
    { grad: true, gradEntropy: true },
  );

describe('configurations of golden cases', () => {
  const MODES = new Set(
    'vanilla dppo_tv dppo_kl gspo sapo gpg clip_cov kl_cov geo_mean dro cispo bypass_mode'.split(' '),
  );
  const losses = verlCases.filter((each): each is FrameworkLossCase => each.kind === 'policy_loss');
  const modeOf = ({ fn }: { fn: string }) => fn.replace(/^verl_/, '');
  const reachable = losses.filter((each) => MODES.has(modeOf(each)) && isWhole(each));

  it('reach most cases of verl, of every mode', () => {
    assert.deepEqual(new Set(reachable.map(modeOf)), MODES);
    assert.ok(reachable.length >= 70, `${reachable.length}`);
  });

  for (const each of reachable)
    it(`verl: ${each.id}`, () => {
      const { args, inputs, expected } = each;
      const metrics = reported(expected.metrics, args);
      assertCase(compute(verlConfig(modeOf(each), args), inputs), { ...expected, metrics });
    });

  // The loss of gpg is 0 where the advantages are 0, so that the KL loss is left.
  const klCases = [
    ...verlCases.flatMap((each) => (each.kind === 'kl_loss' ? [each] : [])),
    ...klLossCases.filter(({ fn }) => ['k1', 'k2', 'abs', 'low_var_kl'].includes(fn)),
  ].filter(({ args }) => args.loss_agg_mode !== 'seq-mean-token-sum-norm');
  const hasEmptyRow = ({ shape, data }: Tensor) => {
    const [rows, columns] = shape as [number, number];
    return Array.from({ length: rows }, (_, b) => data.slice(b * columns, (b + 1) * columns)).some(
      (row) => !row.includes(1),
    );
  };
  for (const { id, fn, args, inputs, expected } of klCases) {
    // verl does not count rows without tokens, and Trinity-RFT does.
    if (args.loss_agg_mode !== 'token-mean' && hasEmptyRow(inputs.action_mask!)) continue;
    it(`verl, KL loss: ${id}`, () => {
      const terms = { use_kl_loss: true, kl_loss_type: fn, kl_loss_coef: args.kl_coef };
      const config = verlConfig('gpg', { ...terms, loss_agg_mode: args.loss_agg_mode });
      const advantages = new Float32Array(inputs.action_mask!.data.length);
      assertCase(compute(config, inputs, { advantages } as Partial<Batch>), {
        ...expected,
        metrics: pick(expected.metrics, 'kl_loss', 'kl_coef') as Record<string, number>,
      });
    });
  }

  const FIXED: Args = { epsilon: 1e-6, f_norm: 1, handle_zero_tail: true };
  const isDefault = ([name, value]: [string, unknown]) =>
    !(name in FIXED) || FIXED[name] === value || (name === 'epsilon' && value === 1e-8);
  for (const each of verlCases) {
    if (each.kind !== 'advantage' || !Object.entries(each.args).every(isDefault)) continue;
    const { id, fn, args, inputs, expected } = each;
    if (fn === 'gdpo' && args.norm_adv_by_std_in_grpo === false) continue;
    it(`verl, advantages: ${id}`, () => {
      // verl passes norm_adv_by_std_in_grpo to grpo, and not to grpo_vectorized, which computes the same.
      const estimator = fn === 'grpo_vectorized' ? 'grpo' : fn;
      const config = verlConfig(
        'gpg',
        {},
        { ...without(args, ...Object.keys(FIXED)), adv_estimator: estimator },
      );
      const { advantages } = fromConfig(stringify(config)).advantageFn!.computeSync(goldenBatch(inputs));
      assertArray(advantages, expected.advantages.data, 'advantages', 2e-4);
    });
  }

  const ofTrl = trlCases.filter((each): each is FrameworkLossCase => {
    const { trainer, args } = each as FrameworkLossCase & { trainer: string };
    const isOfConfig =
      trainer === 'grpo' || (trainer === 'gspo_token' && args.importance_sampling_level === 'sequence_token');
    return (
      isOfConfig && isWhole({ args }) && !('last_world_entropy' in args && args.last_world_entropy !== null)
    );
  });

  it('reach most cases of TRL', () => assert.ok(ofTrl.length > 80, `${ofTrl.length}`));

  for (const { id, fn, args, inputs, expected } of ofTrl)
    it(`TRL: ${id}`, () => {
      const config = { loss_type: fn, ...without(args, ...Object.keys(DIVISION), 'last_world_entropy') };
      assertCase(compute(config, inputs), expected);
    });

  interface PreferenceCase {
    id: string;
    fn: string;
    trainer: string;
    args: Args;
    inputs: Record<string, Tensor>;
    expected: { loss: number; grad_logprob: Tensor };
  }
  const preferences = (trlCases as unknown as PreferenceCase[]).filter(({ trainer }) => trainer === 'dpo');
  const NEUTRAL: Record<string, readonly unknown[]> = {
    label_smoothing: [0],
    f_divergence_type: ['reverse_kl'],
    ld_alpha: [null, 1],
    use_weighting: [false],
  };
  for (const { id, fn, args, inputs, expected } of preferences) {
    const config = { ...args, loss_type: args.loss_type ?? fn };
    const stranger = [
      ...(fn === 'sigmoid' ? [] : ['loss_type']),
      ...Object.keys(NEUTRAL).filter((name) => !NEUTRAL[name]!.includes(args[name] ?? null)),
    ];
    it(`TRL's DPO: ${id}`, () => {
      if (stranger.length > 0) {
        const named = new RegExp(`: (${stranger.join('|')}|loss_weights): expected`);
        assert.throws(() => fromConfig(stringify(config)), isLossError('ERR_INVALID_OPTION', named));
      } else assertCase(compute(config, inputs), { ...expected, metrics: {} });
    });
  }

  for (const { id, fn, args, inputs, expected } of papersCases) {
    if (fn !== 'clipped_pg') continue;
    it(`NeMo-RL: ${id}`, () => {
      const loss_fn = {
        ...without(args, 'loss_agg_mode'),
        token_level_loss: args.loss_agg_mode === 'token-mean',
      };
      assertCase(compute({ loss_fn }, inputs), expected);
      assertCase(compute(loss_fn, inputs), expected);
    });
  }
});
