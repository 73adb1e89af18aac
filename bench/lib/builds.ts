// Loads several builds of the native module into one process and prepares the same calls on each of them.
//
// Calls go through binding.d.ts alone, with fields that every build reads, so that an older build can be compared with
// a newer one. All builds read the same arrays, which excludes differences in memory placement from the comparison.
import { copyFileSync, mkdtempSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import type { NativeAdvantageSpec, NativeBatch, NativeBinding, NativeFunctionSpec } from '../../binding.js';
import type { Inputs } from './batch.js';
import type { Gradients } from './works.js';

/** A call whose arguments are prepared. */
export type PreparedCall = () => unknown;

/**
 * Loads a temporary copy of a native module. The system loads a file only once per process, so a copy is what allows
 * the same build to be compared with itself.
 */
export function loadCopy(path: string): NativeBinding {
  const folder = mkdtempSync(join(tmpdir(), 'policy-loss-build-'));
  const copy = join(folder, 'policy_loss.node');
  try {
    copyFileSync(resolve(path), copy);
    return createRequire(import.meta.url)(copy) as NativeBinding;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

/** Prepares the evaluation of a loss; without gradients it is the forward pass alone. */
export function lossCall(
  build: NativeBinding,
  spec: NativeFunctionSpec,
  batch: NativeBatch,
  gradients: Gradients,
): PreparedCall {
  const fn = build.createFunction(spec);
  const call = {
    values: new Float64Array(build.valueNames(fn).length),
    grad: gradients.grad,
    gradEntropy: gradients.gradEntropy,
    mu: undefined,
    klCoef: undefined,
    entropyCoef: undefined,
    abort: undefined,
  };
  return () => build.evaluateSync(fn, batch, call);
}

/** Prepares an advantage function that reads these inputs (Trinity-RFT's names) and writes into `advantages`. */
export function advantageCall(
  build: NativeBinding,
  spec: NativeAdvantageSpec,
  inputs: Inputs,
  reads: readonly string[],
  advantages: Float32Array,
): PreparedCall {
  const fn = build.createAdvantage(spec);
  const [rows, columns] = inputs.shape;
  const has = (name: string) => reads.includes(name);
  const batch = {
    rows,
    columns,
    offsets: undefined,
    data: [
      has('token_level_rewards') ? inputs.tokenLevelRewards : undefined,
      has('old_logprob') ? inputs.oldLogprob : undefined,
      has('teacher_logprob') ? inputs.teacherLogprob : undefined,
      has('values') ? inputs.values : undefined,
      undefined,
    ],
    dtypes: [0, 0, 0, 0, 0],
    mask: inputs.actionMask,
    expert: undefined,
    rewards: has('rewards') ? inputs.rewards : undefined,
    baselines: has('reward_baselines') ? inputs.rewardBaselines : undefined,
    groups: has('group_ids') ? inputs.groupIds : undefined,
    runs: has('run_ids') ? inputs.runIds : undefined,
  };
  const call = {
    advantages,
    returns: undefined,
    scores: undefined,
    copies: undefined,
    values: new Float64Array(build.advantageValueNames(fn).length),
    notFiniteRow: new Float64Array(1),
    seed: 0,
    abort: undefined,
  };
  return () => build.advantagesSync(fn, batch, call);
}
