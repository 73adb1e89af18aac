// Loads the bench build of the native module: the published addon plus a few functions that only benchmarks use.
// `npm run build:bench` builds it. Also prepares their arguments. Only this file and the files in bench/gpu know how the
// package calls native code.
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { fileURLToPath } from 'node:url';
import type {
  NativeBatch,
  NativeBinding,
  NativeCall,
  NativeFunction,
  NativeFunctionSpec,
  NativeResident,
} from '../../binding.js';
import { BatchReader, type InputName } from '../../lib/core/batch-reader.js';
import { nativeArray, nativeDtypes } from '../../lib/core/gradients.js';
import { KeyMapper } from '../../lib/core/key-mapper.js';
import { native } from '../../lib/core/native.js';
import { finish } from '../../lib/core/slices.js';
import { type Batch, type EntropyLossFn, KLFn, Objective, PolicyLossFn } from '../../lib/index.js';
import { type Contender, contender } from './race.js';
import type { AnyLossFn, Gradients, Work } from './works.js';

/** The interface of the bench build: the addon's own functions and those for benchmarks. */
export interface NativeBenchBinding extends NativeBinding {
  /**
   * Reads the columns of a host batch that evaluate() would read, and writes to the call's gradients, but computes
   * nothing. It uses the same threads, chunks and tiles, so its time is the cost of the memory traffic alone. The
   * number that it resolves to has no meaning.
   */
  traffic(fn: NativeFunction, batch: NativeBatch, call: NativeCall): Promise<number>;
  /**
   * Reads an array and, if `writes` is set, writes the same numbers back, on the threads of the pool. The number that it
   * resolves to has no meaning.
   */
  memoryTraffic(array: Float32Array | Uint16Array, writes: boolean): Promise<number>;
  /**
   * Evaluates a batch that is on a device, and leaves the gradient on the device. `timing`, if given, receives two
   * times in milliseconds, which the device measures: the time of all passes (kernels), and the time of the token pass
   * alone.
   */
  evaluateOnDevice(
    fn: NativeFunction,
    batch: NativeResident,
    call: NativeCall,
    timing: Float64Array | undefined,
  ): number;
  /**
   * Returns the speed of copies within a device's memory, in bytes per second. Each copied byte counts twice, because
   * it is read and written.
   * @param bytes the size of one copy.
   */
  copyBandwidth(device: number, bytes: number): number;
}

const BUILT = fileURLToPath(new URL('../../build/bench/Release/policy_loss.node', import.meta.url));

function isBenchBuild(binding: NativeBinding): binding is NativeBenchBinding {
  return 'traffic' in binding;
}

function loadBenchBuild(): NativeBenchBinding {
  if (!existsSync(BUILT))
    throw new Error(`${BUILT}: expected the bench build, got no file. Run npm run build:bench`);
  return createRequire(import.meta.url)(BUILT);
}

/**
 * The bench build of the native module. If the package itself has loaded a bench build, as it does in the npm scripts,
 * that one is used; otherwise the one in build/bench. Functions and batches of one module cannot be passed to another.
 */
export const benchNative: NativeBenchBinding = isBenchBuild(native) ? native : loadBenchBuild();

/** The inputs of a function that native calls read, in addition to the action mask. */
export type NativeReads = Readonly<Pick<PolicyLossFn['reads'], 'columns' | 'rowColumns' | 'expertMask'>>;

/** A function as native calls describe it. */
export interface NativeForm {
  readonly spec: NativeFunctionSpec;
  readonly reads: NativeReads;
}

/** Returns the form of a function for batches with all columns that it can read, with one value per token. */
export function nativeForm({ fn }: Work): NativeForm {
  if (fn instanceof PolicyLossFn) return { spec: specOf(fn), reads: fn.reads };
  if (fn instanceof KLFn) return klForm(fn);
  if (fn instanceof Objective) return objectiveForm(fn);
  return entropyForm(fn);
}

function specOf(fn: AnyLossFn): NativeFunctionSpec {
  const made = fn.withTerms({});
  return 'spec' in made ? made.spec((1 << made.optional.length) - 1) : made;
}

function klForm(fn: KLFn): NativeForm {
  const columns = [
    'logprob',
    'ref_logprob',
    ...(fn.usesOldLogprob ? (['old_logprob'] as const) : []),
  ] as const;
  return {
    spec: { kl: fn.term('token-mean', true)! },
    reads: { columns: [...columns], rowColumns: [], expertMask: false },
  };
}

function entropyForm(fn: EntropyLossFn): NativeForm {
  return {
    spec: { entropy: fn.term('token-mean')! },
    reads: { columns: ['entropy'], rowColumns: [], expertMask: fn.rows === 'usual' },
  };
}

function objectiveForm({ policyLossFn, klLossFn, entropyLossFn, lossAggMode }: Objective): NativeForm {
  const kl = klLossFn.term(lossAggMode, true);
  const entropy = entropyLossFn.term(lossAggMode);
  return {
    spec: { policyLoss: policyLossFn.policyLoss, ...(kl && { kl }), ...(entropy && { entropy }) },
    reads: { ...policyLossFn.reads, columns: [...policyLossFn.reads.columns, 'ref_logprob', 'entropy'] },
  };
}

/** Converts a batch for native calls. The result has only the given inputs and the action mask. */
export function nativeBatch(batch: Batch, { columns, rowColumns, expertMask }: NativeReads): NativeBatch {
  const masks: InputName[] = expertMask ? ['action_mask', 'expert_mask'] : ['action_mask'];
  const reader = new BatchReader(KeyMapper.get('verl'), { inputs: [...columns, ...rowColumns, ...masks] });
  return finish(reader.readHost(batch)).native;
}

// The times do not depend on the values of these coefficients. None is 0, because the native code could skip a term
// with a coefficient of 0.
const COEFFICIENTS = { mu: 0.1, klCoef: 0.001, entropyCoef: -0.01 };

/** Returns the `call` argument of an evaluation: arrays for its results, and coefficients. */
export function callFor(gradients: Gradients, fn: NativeFunction): NativeCall {
  return {
    values: new Float64Array(benchNative.valueNames(fn).length),
    grad: nativeArray(gradients.grad),
    gradEntropy: nativeArray(gradients.gradEntropy),
    gradDtypes: nativeDtypes(gradients),
    ...COEFFICIENTS,
    abort: undefined,
  };
}

/**
 * Returns a contender that runs a function's traffic floor: a loop that reads the function's columns and mask and writes
 * its gradients, without any arithmetic. It uses the same threads, chunks and tiles as the function. If the arrays do not
 * fit in the caches, an implementation on these threads can hardly be faster than this loop.
 */
export function floor(work: Work, batch: Batch, gradients: Gradients): Contender {
  const { spec, reads } = nativeForm(work);
  const fn = benchNative.createFunction(spec);
  const call = callFor(gradients, fn);
  const input = nativeBatch(batch, reads);
  return contender('floor', () => benchNative.traffic(fn, input, call));
}
