// The bench build of the native module. It is the shipped addon with a few functions that only measurements use:
// npm run build:bench.
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
   * Reads the columns that evaluate() would read of a host batch, writes to the call's gradients and computes nothing.
   * It uses the same threads, chunks and tiles, and therefore measures the time that memory alone takes. The result is
   * meaningless.
   */
  traffic(fn: NativeFunction, batch: NativeBatch, call: NativeCall): Promise<number>;
  /**
   * Evaluates a resident batch, computes its gradient and leaves the gradient on the device. `timing` receives two
   * durations on the device in milliseconds: of all passes, and of the token pass alone.
   */
  evaluateOnDevice(
    fn: NativeFunction,
    batch: NativeResident,
    call: NativeCall,
    timing: Float64Array | undefined,
  ): number;
  /** Returns the bytes per second that a device copies within its memory. A copied byte counts as read and as written. */
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
