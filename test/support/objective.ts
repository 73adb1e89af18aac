/**
 * Helpers for tests of objectives: they make objectives, draw them at random, and compare them with each other and with
 * the reference.
 */

import assert from 'node:assert/strict';
import fc from 'fast-check';
import { LOSS_AGG_MODES } from '../../lib/base/options.js';
import { ALGORITHM_TYPE, type ObjectiveResult, POLICY_LOSS_FN } from '../../lib/index.js';
import type { RewardedBatch } from '../reference/advantage.js';
import type { Args } from '../reference/index.js';
import type { Parts, ReferenceObjective } from '../reference/objective.js';
import { makeRewarded, type RewardSpec } from './draw.js';
import { ARGUMENTS, readsPairs } from './draw-arguments.js';
import { modesOf } from './functions.js';
import { unpack, withState } from './subject.js';
import { assertArray, assertComputed, assertSameArray } from './tolerance.js';

export const objectiveOf = (algorithm: string, config?: Record<string, unknown>) =>
  ALGORITHM_TYPE.get(algorithm).objective(config);

/**
 * Returns the result with both gradients in the padded layout B×T (rows × columns). A missing gradient becomes zeros.
 */
export function completed(batch: RewardedBatch, result: ObjectiveResult) {
  const lay = (grad: Float32Array | undefined) => {
    if (!grad) return new Float32Array(batch.rows * batch.columns);
    return batch.rowLengths ? unpack(batch, grad) : grad;
  };
  return { ...result, grad: lay(result.grad), gradEntropy: lay(result.gradEntropy) };
}

export function assertObjective(
  batch: RewardedBatch,
  actual: ObjectiveResult,
  expected: ReferenceObjective,
): void {
  assert.ok(actual.grad, 'no gradient');
  const result = completed(batch, withState(actual));
  assertComputed(result, expected);
  assertArray(result.gradEntropy, expected.gradEntropy, 'gradEntropy');
}

/** Asserts that two results are equal to the last bit. */
export function assertSameObjective(actual: ObjectiveResult, expected: ObjectiveResult): void {
  assert.deepStrictEqual(
    { loss: actual.loss, metrics: actual.metrics },
    { loss: expected.loss, metrics: expected.metrics },
  );
  for (const key of ['grad', 'gradEntropy'] as const) {
    assert.equal(actual[key] === undefined, expected[key] === undefined, key);
    if (expected[key]) assertSameArray(actual[key]!, expected[key], key);
  }
}

/**
 * Returns the configuration of an objective with these parts.
 * @param mode the objective's loss_agg_mode.
 * @param own whether the policy loss keeps its own argument loss_agg_mode. If not, the objective's mode applies to it.
 */
export const configOf = (
  { policy, kl, entropy }: Parts,
  mode: string,
  own = true,
): Record<string, unknown> => {
  const withoutMode = ({ loss_agg_mode: _, ...rest }: Args) => rest;
  return {
    policy_loss_fn: policy.name,
    policy_loss_fn_args: own ? policy.args : withoutMode(policy.args),
    kl_loss_fn: kl.name,
    kl_loss_fn_args: withoutMode(kl.args),
    entropy_loss_fn: entropy.name,
    entropy_loss_fn_args: withoutMode(entropy.args),
    loss_agg_mode: mode,
  };
};

/** The policy losses of objectives. oat/bnf is none, because it has a gradient by entropy_other. */
export const EVERY_POLICY = Object.keys(ARGUMENTS.policy).filter((name) => name !== 'oat/bnf');
/** The policy losses from which single rows can be dropped, and whose batches can be divided. The rows of some losses are pairs. */
export const POLICIES_BY_ROW = EVERY_POLICY.filter((name) => !readsPairs(name) && !mayReadWholeBatch(name));

function mayReadWholeBatch(name: string): boolean {
  const drawn = fc.sample(ARGUMENTS.policy[name]!, { seed: 7, numRuns: 30 });
  return drawn.some((args) => POLICY_LOSS_FN.create(name, args).readsWholeBatch);
}

/** Draws a policy loss, a KL loss and an entropy loss with arguments, and makes the configuration that names them. */
export const partsOf = (policyNames: readonly string[]) =>
  fc
    .record({
      mode: fc.constantFrom(...LOSS_AGG_MODES),
      own: fc.boolean(),
      policy: fc
        .constantFrom(...policyNames)
        .chain((name) => ARGUMENTS.policy[name]!.map((args) => ({ name, args }))),
      kl: fc
        .constantFrom(...Object.keys(ARGUMENTS.kl))
        .chain((name) => ARGUMENTS.kl[name]!.map((args) => ({ name, args }))),
      entropy: fc
        .constantFrom(...Object.keys(ARGUMENTS.entropy))
        .chain((name) => ARGUMENTS.entropy[name]!.map((args) => ({ name, args }))),
    })
    .map(({ mode, own, policy, kl, entropy }) => {
      const inMode = (args: Args) => ({ ...args, loss_agg_mode: mode });
      const keepsMode = own || !modesOf('policy', policy.name, policy.args).includes(mode);
      const hasMode = 'loss_agg_mode' in policy.args;
      const parts: Parts = {
        policy: { name: policy.name, args: keepsMode || !hasMode ? policy.args : inMode(policy.args) },
        kl: { name: kl.name, args: inMode(kl.args) },
        entropy: { name: entropy.name, args: inMode(entropy.args) },
      };
      return { parts, mode, config: configOf(parts, mode, keepsMode) };
    });

export const REWARDED: RewardSpec = {
  seed: 19,
  rows: 8,
  columns: 21,
  values: 'moderate',
  mask: 'random',
  packed: false,
  groups: 'some',
  rewards: 'normal',
  perToken: false,
};

/** Draws a batch with rewards and without advantages, as a trainer has it before it computes advantages. */
export function unadvised(spec: RewardSpec): RewardedBatch {
  const { advantages: _, ...batch } = makeRewarded(spec);
  return batch;
}
