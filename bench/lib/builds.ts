// Loads several builds of the native module into one process, and prepares the same call on each of them.
//
// Calls use only the interface in binding.d.ts, and only fields that every build reads, so that an older build can be
// compared with a newer one. All builds read the same arrays, so the place of the arrays in memory cannot favour one of
// them.
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
import { ADVANTAGE_FN, type HalfColumn } from '../../lib/index.js';
import { callFor } from './native-calls.js';
import type { Gradients } from './works.js';

/** A build of the time before calls had descriptors. */
type OlderBuild = NativeBinding &
  Partial<Record<'evaluateSync' | 'advantagesSync', (fn: object, batch: object, call: object) => number>>;

/** A call to a native function whose arguments are already prepared. */
export type PreparedCall = () => unknown;

/**
 * Loads a native module from a temporary copy of its file. The operating system loads a file only once per process.
 * Copies allow a build to be loaded several times, for example to compare it with itself.
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

/** Returns a batch whose columns and mask are copied to other places in memory. */
export function relocated<B extends NativeBatch>(batch: B): B {
  return { ...batch, data: batch.data.map((column) => column?.slice()), mask: batch.mask?.slice() };
}

/** Prepares a call that evaluates a loss on one build. Without gradients, the call computes the forward pass alone. */
export function lossCall(
  build: NativeBinding,
  spec: NativeFunctionSpec,
  batch: NativeBatch,
  gradients: Gradients<Float32Array | HalfColumn>,
): PreparedCall {
  const fn = build.createFunction(spec);
  const call = callFor(build, fn, batch, gradients);
  const { evaluateSync } = build as OlderBuild;
  return evaluateSync ? () => evaluateSync(fn, batch, call) : () => build.evaluate(call);
}

/**
 * Returns the specification that an advantage function passes to the native module. The class does not expose it, so
 * this function intercepts the call that the constructor makes.
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

/** Prepares a call of an advantage function on one build. The call writes its results into `advantages`. */
export function advantageCall(
  build: NativeBinding,
  spec: NativeAdvantageSpec,
  batch: NativeAdvantageBatch,
  advantages: Float32Array,
): PreparedCall {
  const fn = build.createAdvantage(spec);
  const call = {
    fn,
    batch,
    advantages,
    returns: undefined,
    scores: undefined,
    repeats: undefined,
    values: new Float64Array(build.advantageValueNames(fn).length),
    notFiniteRow: new Float64Array(1),
    seed: 0,
  };
  const { advantagesSync } = build as OlderBuild;
  return advantagesSync ? () => advantagesSync(fn, batch, call) : () => build.advantages(call);
}
