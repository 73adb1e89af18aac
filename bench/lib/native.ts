// Loads the bench build of the native module: the published addon plus a few functions that only benchmarks use.
// `npm run build:bench` builds it.
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { fileURLToPath } from 'node:url';
import type { NativeBinding, NativeCall, NativeCompute } from '../../binding.js';
import { native } from '../../lib/core/native.js';

/** The interface of the bench build: the addon's own functions and those for benchmarks. */
export interface NativeBenchBinding extends NativeBinding {
  /**
   * Reads the columns of a host batch that evaluate() would read, and writes to the call's gradients, but computes
   * nothing. It uses the same threads, chunks and tiles, so its time is the cost of the memory traffic alone. The
   * value has no meaning.
   */
  traffic: NativeCompute<NativeCall>;
  /**
   * Reads an array and, if `writes` is set, writes the same numbers back, on the threads of the pool. Its value
   * has no meaning.
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
