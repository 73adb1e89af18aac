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
  NativeCompute,
  NativeFunctionSpec,
} from '../../binding.js';
import { native } from '../../lib/base/native.js';
import { takeNow } from '../../lib/base/steps.js';
import type { InputName } from '../../lib/batch/columns.js';
import { KeyMapper } from '../../lib/batch/key-mapper.js';
import { BatchReader } from '../../lib/batch/reader.js';
import { nativeArray, nativeDtypes } from '../../lib/call/gradients.js';
import {
  type Batch,
  type EntropyLossFn,
  KLFn,
  Objective,
  PolicyLossFn,
  RewardLossFn,
  ValueLossFn,
} from '../../lib/index.js';
import { FLOAT_COLUMNS, ROW_INPUTS } from './batch.js';
import { type Contender, contender } from './race.js';
import type { AnyLossFn, Gradients, Work } from './works.js';

/** The interface of the bench build: the addon's own functions and those for benchmarks. */
export interface NativeBenchBinding extends NativeBinding {
  /**
   * Reads the columns of a host batch that evaluate() would read, and writes to the call's gradients, but computes
   * nothing. It uses the same threads, chunks and tiles, so its time is the cost of the memory traffic alone. The
   * value has no meaning.
   */
  traffic: NativeCompute<NativeCall>;
  /**
   * Reads an array and, if `writes` is set, writes the same numbers back, on the threads of the pool. Its value has no
   * meaning.
   */
  memoryTraffic: NativeCompute<{ array: Float32Array | Uint16Array; writes: boolean }>;
  /**
   * Evaluates a batch that is on a device, and leaves the gradient on the device. `timing`, if given, receives two
   * times in milliseconds, which the device measures: the time of all passes (kernels), and the time of the token pass
   * alone.
   */
  evaluateOnDevice: NativeCompute<NativeCall & { timing?: Float64Array }>;
  /**
   * Returns the speed of copies within a device's memory, in bytes per second. Each copied byte counts twice, because
   * it is read and written.
   * @param bytes the size of one copy.
   */
  copyBandwidth(device: number, bytes: number): number;
}

const BUILT = fileURLToPath(new URL('../../build/bench/Release/policy_loss.node', import.meta.url));

function isBenchBuild(binding: object): binding is NativeBenchBinding {
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
export interface NativeReads {
  readonly columns: readonly InputName[];
  readonly rowColumns: readonly InputName[];
  readonly expertMask: boolean;
}

/** A function as native calls describe it. */
export interface NativeForm {
  readonly spec: NativeFunctionSpec;
  readonly reads: NativeReads;
}

/** Returns the form of a function for the batches of makeInputs(), with one value per token. */
export function nativeForm({ fn }: Work): NativeForm {
  if (fn instanceof PolicyLossFn) return policyForm(fn);
  if (fn instanceof ValueLossFn || fn instanceof RewardLossFn)
    return { spec: fn.spec, reads: { ...fn.reads, expertMask: false } };
  if (fn instanceof KLFn) return klForm(fn);
  if (fn instanceof Objective) return objectiveForm(fn);
  return entropyForm(fn);
}

/** The names of the inputs of makeInputs() that are columns or numbers per row. */
const GIVEN: readonly string[] = Object.values({ ...FLOAT_COLUMNS, ...ROW_INPUTS });

function policyForm(fn: AnyLossFn): NativeForm {
  const { columns, rowColumns, optional, expertMask } = fn.reads;
  const isRead = (name: string) => GIVEN.includes(name) || !optional.some((each) => each === name);
  return {
    spec: specOf(fn),
    reads: { columns: columns.filter(isRead), rowColumns: rowColumns.filter(isRead), expertMask },
  };
}

function specOf(fn: AnyLossFn): NativeFunctionSpec {
  const made = fn.withTerms({});
  if (!('spec' in made)) return made;
  const isRead = (name: string) => GIVEN.includes(name) && fn.reads.optional.some((each) => each === name);
  const read = made.optional.map((column, i) => (isRead(column) ? 1 << i : 0));
  return made.spec(read.reduce<number>((form, bit) => form | bit, 0));
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
  return takeNow(reader.read(batch)).native;
}

// The times do not depend on the values of these coefficients. None is 0, because the native code could skip a term
// with a coefficient of 0.
const COEFFICIENTS = { mu: 0.1, klCoef: 0.001, entropyCoef: -0.01 };

/** Returns a call of a function on a batch, with arrays for its results. */
export function callFor(work: Work, batch: NativeCall['batch'], gradients: Gradients): NativeCall {
  const fn = benchNative.createFunction(nativeForm(work).spec);
  return {
    fn,
    batch,
    values: new Float64Array(benchNative.valueNames(fn).length),
    grad: nativeArray(gradients.grad),
    gradEntropy: nativeArray(gradients.gradEntropy),
    gradDtypes: nativeDtypes(gradients),
    ...COEFFICIENTS,
  };
}

/**
 * Returns a contender that runs a function's traffic floor: a loop that reads the function's columns and mask and writes
 * its gradients, without any arithmetic. It uses the same threads, chunks and tiles as the function. If the arrays do not
 * fit in the caches, an implementation on these threads can hardly be faster than this loop.
 */
export function floor(work: Work, batch: Batch, gradients: Gradients): Contender {
  const call = callFor(work, nativeBatch(batch, nativeForm(work).reads), gradients);
  return contender('floor', () => benchNative.traffic({ ...call, later: true }));
}
