// Loads several builds of the native module into one process and prepares the same calls on each of them.
//
// Calls go through binding.d.ts alone, with fields that every build reads, so that an older build can be compared with
// a newer one. All builds read the same arrays, which excludes differences in memory placement from the comparison.
import { copyFileSync, mkdtempSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import type {
  NativeAdvantageBatch,
  NativeAdvantageSpec,
  NativeBatch,
  NativeBinding,
  NativeFunctionSpec,
} from '../../binding.js';
import { native } from '../../lib/core/native.js';
import { ADVANTAGE_FN } from '../../lib/index.js';
import { callFor } from './native-calls.js';
import type { Gradients } from './works.js';

/** A call whose arguments are prepared. */
export type PreparedCall = () => unknown;

/**
 * Loads a temporary copy of a native module. The system loads a file only once per process, so only a copy allows a
 * comparison of a build with itself.
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

/** Copies the arrays of a batch to other places in memory. */
export function relocated<B extends NativeBatch>(batch: B): B {
  return { ...batch, data: batch.data.map((column) => column?.slice()), mask: batch.mask?.slice() };
}

/** Prepares the evaluation of a loss; without gradients it is the forward pass alone. */
export function lossCall(
  build: NativeBinding,
  spec: NativeFunctionSpec,
  batch: NativeBatch,
  gradients: Gradients,
): PreparedCall {
  const fn = build.createFunction(spec);
  const call = callFor(gradients, build.valueNames(fn).length);
  return () => build.evaluateSync(fn, batch, call);
}

/**
 * Returns the native spec of an advantage function. The class does not expose its spec, so this function records what
 * the constructor passes to the native module.
 */
export function advantageSpec(name: string): NativeAdvantageSpec {
  const { createAdvantage } = native;
  let recorded: NativeAdvantageSpec | undefined;
  native.createAdvantage = (spec) => {
    recorded = spec;
    return createAdvantage(spec);
  };
  try {
    ADVANTAGE_FN.create(name);
  } finally {
    native.createAdvantage = createAdvantage;
  }
  return recorded!;
}

/** Prepares a call of an advantage function, which writes into `advantages`. */
export function advantageCall(
  build: NativeBinding,
  spec: NativeAdvantageSpec,
  batch: NativeAdvantageBatch,
  advantages: Float32Array,
): PreparedCall {
  const fn = build.createAdvantage(spec);
  const call = {
    advantages,
    returns: undefined,
    scores: undefined,
    repeats: undefined,
    values: new Float64Array(build.advantageValueNames(fn).length),
    notFiniteRow: new Float64Array(1),
    seed: 0,
    abort: undefined,
  };
  return () => build.advantagesSync(fn, batch, call);
}
