// The bench build of the native module. It is the shipped addon with a few functions that only measurements use:
// npm run build:bench.
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

/** The native module with its functions for measurements. */
export interface BenchBinding extends NativeBinding {
  /**
   * Reads the columns that evaluate() would read and writes its gradients, on the same threads in the same tiles, but
   * computes nothing. The number that it returns means nothing.
   */
  traffic(fn: NativeFunction, batch: NativeBatch, call: NativeCall): Promise<number>;
  /**
   * Evaluates a resident batch and computes the gradient by logprob, which stays on the device.
   * @param timing receives the device's milliseconds of all passes and of the token pass.
   */
  evaluateOnDevice(
    fn: NativeFunction,
    batch: NativeResident,
    call: NativeCall,
    timing: Float64Array | undefined,
  ): number;
  /** Returns the bytes per second that a device copies in its memory; each byte counts as read and as written. */
  copyBandwidth(device: number, bytes: number): number;
}

const BUILT = fileURLToPath(new URL('../../build/bench/Release/policy_loss.node', import.meta.url));

/**
 * The bench build. It is the package's own module if that is a bench build, which the npm scripts see to. Functions and
 * batches of one module cannot be passed to another.
 */
export const benchNative: BenchBinding =
  'traffic' in native ? (native as BenchBinding) : createRequire(import.meta.url)(BUILT);
