// The bench build of the native module, which has functions that only measurements use. Make it with
// `npm run build:bench`, and have POLICY_LOSS_NATIVE name build/bench/Release/policy_loss.node.
import type {
  NativeBatch,
  NativeBinding,
  NativeCall,
  NativeFunction,
  NativeResident,
} from '../../binding.js';
import { native as loaded } from '../../lib/core/native.js';

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

function isBenchBuild(binding: NativeBinding): binding is NativeBenchBinding {
  return 'traffic' in binding;
}

function benchBuild(): NativeBenchBinding {
  if (isBenchBuild(loaded)) return loaded;
  throw new Error(
    'native module: expected the bench build, got the shipped one. Run npm run build:bench and set POLICY_LOSS_NATIVE',
  );
}

export const native = benchBuild();
