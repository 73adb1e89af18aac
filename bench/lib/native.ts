// Loads the bench build of the native module: the shipped addon plus a few functions that only measurements use. It is
// built by npm run build:bench.
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { fileURLToPath } from 'node:url';
import type {
  NativeBatch,
  NativeBinding,
  NativeCall,
  NativeFunction,
  NativeResident,
} from '../../binding.js';
import { native } from '../../lib/core/native.js';

/** The native module of the bench build. */
export interface NativeBenchBinding extends NativeBinding {
  /**
   * Reads the columns of a host batch that evaluate() would read, and writes to the call's gradients, without
   * computing. It uses the same threads, chunks and tiles, so it measures the time that memory alone takes. The result
   * is meaningless.
   */
  traffic(fn: NativeFunction, batch: NativeBatch, call: NativeCall): Promise<number>;
  /**
   * Evaluates a resident batch, computes its gradient and leaves the gradient on the device. `timing` receives two
   * times in milliseconds, measured on the device: of all passes, and of the token pass alone.
   */
  evaluateOnDevice(
    fn: NativeFunction,
    batch: NativeResident,
    call: NativeCall,
    timing: Float64Array | undefined,
  ): number;
  /**
   * Returns a device's bytes per second for copies within its memory. Each copied byte counts twice: read and written.
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
 * The bench build: the package's own module if it is one, as in the npm scripts, otherwise the one in build/bench.
 * Functions and batches of one module cannot be passed to another.
 */
export const benchNative: NativeBenchBinding = isBenchBuild(native) ? native : loadBenchBuild();
