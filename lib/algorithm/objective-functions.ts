// The functions of an objective, and which of them it can combine.
import { describeValue, LossError } from '../base/errors.js';
import type { AdvantageFn } from '../losses/advantage-fn.js';
import { DummyKLFn, POLICY_LOSS_FN } from '../losses/index.js';
import type { KLFn } from '../losses/kl-fn.js';
import type { PolicyLossFn } from '../losses/policy-loss-fn.js';
import { type CheckedConfig, type FunctionArgs, names } from './config.js';

/** @internal A checked configuration that names a policy loss, as every objective needs one. */
export type ObjectiveFunctions = CheckedConfig & { policy_loss_fn: string };

// The functions that may not fit together.
interface Combined {
  algorithm: string;
  advantageFn: AdvantageFn | undefined;
  klLossFn: KLFn;
  klPenaltyFn: KLFn;
  lossFn: PolicyLossFn<Partial<Record<string, number>>>;
}

/**
 * @internal Checks that the functions of an objective can be combined.
 * @throws LossError `ERR_INVALID_OPTION`
 */
export function checkCombination(
  { algorithm, advantageFn, klLossFn, klPenaltyFn, lossFn }: Combined,
  { policy_loss_fn, advantage_fn, kl_penalty_fn }: ObjectiveFunctions,
): void {
  const at = `objective of ${algorithm}`;
  const hasPenalty = !(klPenaltyFn instanceof DummyKLFn);
  if (hasPenalty && !advantageFn?.definition.inputs.includes('token_level_rewards')) {
    const reason = advantage_fn
      ? `${advantage_fn} reads no token_level_rewards`
      : 'no advantages are computed';
    throw new LossError('ERR_INVALID_OPTION', {
      at,
      option: 'kl_penalty_fn',
      expected: `none, as ${reason}`,
      received: describeValue(kl_penalty_fn),
    });
  }
  if (lossFn.reads.columns.includes('entropy_other'))
    throw new LossError('ERR_INVALID_OPTION', {
      at,
      option: 'policy_loss_fn',
      expected: 'a loss without a gradient by entropy_other, which an objective does not return',
      received: describeValue(policy_loss_fn),
    });
  if (lossFn.correction?.replacesLogprob && !(klLossFn instanceof DummyKLFn))
    throw new LossError('ERR_INVALID_OPTION', {
      at,
      option: 'delta',
      expected: 'no limit of the ratio in an objective with a KL loss, which reads logprob too',
      received: 'one',
    });
  if (lossFn.reads.rowColumns.includes('pair_ids') && advantageFn?.definition.drops)
    throw new LossError('ERR_INVALID_OPTION', {
      at,
      option: 'advantage_fn',
      expected: `a function that keeps all rows, as the rows of ${policy_loss_fn} are pairs`,
      received: `${describeValue(advantage_fn)}, which drops rows`,
    });
}

/**
 * @internal Returns the arguments of the policy loss. They include the loss_agg_mode of the configuration, if the policy
 * loss has this option and its own arguments do not set it.
 */
export function policyLossArgs(config: ObjectiveFunctions): FunctionArgs {
  const args = config.policy_loss_fn_args ?? {};
  const cls = POLICY_LOSS_FN.get(config.policy_loss_fn);
  const aggregates =
    'loss_agg_mode' in cls.defaultArgs() || cls.declaration?.options.lossAggMode !== undefined;
  if (config.loss_agg_mode === undefined || !aggregates || names(args, 'loss_agg_mode')) return args;
  return { ...args, loss_agg_mode: config.loss_agg_mode };
}
