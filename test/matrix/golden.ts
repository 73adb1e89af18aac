/** The golden cases of all families in one form: what a framework computed, and how far results may be from it. */
import type { Args } from '../reference/index.js';
import { reported } from '../reference/verl.js';
import {
  advantageCases,
  algorithmCases,
  entropyLossCases,
  expressionCases,
  type FrameworkLossCase,
  familyCases,
  klLossCases,
  logprobCases,
  papersCases,
  policyLossCases,
  type Tensor,
  trlCases,
  verlCases,
} from '../support/golden.js';
import { GROUP_RELATIVE } from '../support/tolerance.js';
import type { AnyFamily } from './tested.js';

export interface Golden {
  id: string;
  family: AnyFamily;
  /** The registered name, that of an algorithm, or the text of an expression. */
  name: string;
  args: Args;
  inputs: Record<string, Tensor>;
  expected: {
    loss?: number;
    metrics: Record<string, number>;
    tokens: Record<string, number[] | 'zeros'>;
    rows: Record<string, number[] | 'zeros'>;
  };
  /** The metrics that the framework does not report for a loss that it shares with another one. */
  unreported?: readonly string[];
  /** The bounds of errors, relative to the expected values. */
  metricRelative?: number;
  tokenRelative?: number;
  /** How many times 1e-9 the reference may differ from the framework. */
  slack?: number;
  /** The keys that Trinity-RFT's function selects from a batch of verl. */
  selectKeys?: readonly string[];
  /** The estimates of a KL function, with those of masked tokens. */
  kl?: number[];
}

const UNREPORTED: Readonly<Record<string, readonly string[]>> = {
  'RLinf decoupled_ppo': [
    'importance_weight',
    'clip_ratio',
    'dual_clip_ratio',
    'behave_imp_weight',
    'behave_approx_kl',
  ],
  'AReaL ref_kl': ['ref_kl', 'masked_mismatch_kl', 'unmasked_mismatch_kl', 'is_masked'],
};

/**
 * The functions whose frameworks add 1e-8 to other counts than Trinity-RFT does. Dividing by a small count, of rows or
 * of a row's tokens, they differ from the reference by up to 1e-8.
 */
const OTHER_EPSILONS = ['corrected_ppo', 'clipped_pg', 'decoupled_ppo', 'rollout_is', 'segment_ppo'];
/**
 * In one row of this case, the teacher and the sampler agree on every token. TRL computed both log-probabilities anew,
 * and their rounding errors, divided by iw_opd_epsilon = 1e-8, move its metric mean_weight by 4e-9.
 */
const ROUNDED = 'golden/trl/iw_opd/iw_opd/2/2x8/onpolicy/holes';
/** The advantage functions of rewards per row, whose golden cases Trinity-RFT computed in float32. */
const OF_ROW_REWARDS = ['grpo', 'step_wise_grpo', 'reinforce', 'opmd', 'asymre', 'rec'];

const isPolicyLoss = (each: { kind?: string }): each is FrameworkLossCase => each.kind === 'policy_loss';

function policyGolden(
  { id, args, inputs, expected }: Pick<FrameworkLossCase, 'id' | 'args' | 'inputs' | 'expected'>,
  name: string,
  more: Partial<Golden> = {},
): Golden {
  const { loss, metrics, grad_logprob, grad_entropy, grad_log_z } = expected;
  const tokens = { grad: grad_logprob.data, gradEntropy: grad_entropy?.data ?? ('zeros' as const) };
  const rows = { gradLogZ: grad_log_z?.data ?? ('zeros' as const) };
  return { id, family: 'policy', name, args, inputs, expected: { loss, metrics, tokens, rows }, ...more };
}

/** The registered name of one of verl's policy losses. */
const nameOf = (fn: string) => `verl/${fn.replace(/^verl_/, '')}`;
const METRIC_RELATIVE = 1e-4;

export const golden: readonly Golden[] = [
  ...policyLossCases.map((each) => policyGolden(each, each.fn, { selectKeys: each.select_keys_verl })),
  ...verlCases.filter(isPolicyLoss).map(({ fn, expected, ...each }) => {
    const metrics = reported(expected.metrics, each.args);
    return policyGolden({ ...each, expected: { ...expected, metrics } }, nameOf(fn));
  }),
  ...trlCases.filter(isPolicyLoss).map((each) =>
    policyGolden(each, `trl/${each.fn}`, {
      metricRelative: METRIC_RELATIVE,
      slack: each.id === ROUNDED ? 4 : 1,
    }),
  ),
  ...papersCases.map((each) =>
    policyGolden(each, each.fn, {
      unreported: UNREPORTED[`${each.source} ${each.fn}`] ?? [],
      metricRelative: METRIC_RELATIVE,
      slack: OTHER_EPSILONS.includes(each.fn) ? 10 : 1,
    }),
  ),
  ...logprobCases.flatMap((each) => (each.kind === 'advantage' ? [] : [policyGolden(each, each.fn)])),
  ...familyCases.map(({ id, kind, fn, args, inputs, expected }): Golden => {
    const { loss, metrics, grad_values, grad_rewards } = expected;
    const compared = Object.entries(metrics).filter(
      (metric): metric is [string, number] => metric[1] !== null,
    );
    return {
      id,
      family: kind === 'value_loss' ? 'value' : 'reward',
      name: fn,
      args,
      inputs,
      expected: {
        loss,
        metrics: Object.fromEntries(compared),
        tokens: grad_values ? { grad: grad_values.data } : {},
        rows: grad_rewards ? { grad: grad_rewards.data } : {},
      },
      unreported: Object.keys(metrics).filter((metric) => metrics[metric] === null),
    };
  }),
  ...[...klLossCases, ...verlCases.filter((each) => each.kind === 'kl_loss')].map(
    ({ id, fn, args, inputs, expected }): Golden => ({
      id,
      family: 'kl',
      name: fn,
      args: { ...args },
      inputs,
      expected: { ...expected, tokens: { grad: expected.grad_logprob.data }, rows: {} },
      kl: expected.kl.data,
    }),
  ),
  ...entropyLossCases.map(
    ({ id, fn, args, inputs, expected }): Golden => ({
      id,
      family: 'entropy',
      name: fn,
      args: { ...args },
      inputs,
      expected: { ...expected, tokens: { grad: expected.grad_entropy.data }, rows: {} },
    }),
  ),
  ...advantageCases.map(({ id, fn, args, inputs, expected }): Golden => {
    const { advantages, returns, kept_rows, metrics } = expected;
    const relative = OF_ROW_REWARDS.includes(fn) ? GROUP_RELATIVE : undefined;
    return {
      id,
      family: 'advantage',
      name: fn,
      args,
      inputs,
      expected: {
        metrics,
        tokens: { advantages: advantages.data, returns: returns.data },
        rows: { keptRows: kept_rows.map(Number) },
      },
      ...(relative && { metricRelative: relative, tokenRelative: relative }),
    };
  }),
  ...verlCases
    .filter((each) => each.kind === 'rollout_correction')
    .map(({ id, fn, args, inputs, expected }): Golden => {
      const { weights, kept_mask, metrics } = expected;
      return {
        id,
        family: 'correction',
        name: `verl/${fn}`,
        args,
        inputs,
        expected: {
          metrics: reported(metrics, args),
          tokens: { ...(weights && { weights: weights.data }), keptMask: kept_mask.data },
          rows: {},
        },
        tokenRelative: 5e-5,
      };
    }),
  ...expressionCases.map(
    ({ id, expression, args, loss_agg_mode, inputs, expected }): Golden => ({
      id,
      family: 'expression',
      name: expression,
      args: { options: args, lossAggMode: loss_agg_mode },
      inputs,
      expected: { loss: expected.loss, metrics: {}, tokens: { grad: expected.grad_logprob.data }, rows: {} },
    }),
  ),
  ...algorithmCases.map((each): Golden => {
    const { id, algorithm, kl_coef, entropy_coef, inputs, expected } = each;
    const { policy_loss_fn, policy_loss_fn_args, kl_loss_fn, entropy_loss_fn, loss_agg_mode } = each;
    const config = { policy_loss_fn, policy_loss_fn_args, kl_loss_fn, entropy_loss_fn, loss_agg_mode };
    const { loss, metrics, grad_logprob, grad_entropy } = expected;
    const coefficients = { kl_loss_fn_args: { kl_coef }, entropy_loss_fn_args: { entropy_coef } };
    const tokens = { grad: grad_logprob.data, gradEntropy: grad_entropy.data };
    const args = { ...config, ...coefficients };
    return {
      id,
      family: 'objective',
      name: algorithm,
      args,
      inputs,
      expected: { loss, metrics, tokens, rows: {} },
    };
  }),
];
