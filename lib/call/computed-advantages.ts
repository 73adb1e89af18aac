// Advantages that are computed from other inputs of a batch, before a loss or in the same native call.
import type { NativeFusedAdvantage } from '../../binding.js';
import type { LossError } from '../base/errors.js';

/** Advantages that were computed from other inputs of a batch, and that replace the column `advantages`. */
export interface ComputedAdvantages {
  /** The advantages: one per row if `perRow` is true, otherwise one per token. */
  column: Float32Array;
  perRow: boolean;
  /** Shape [B]: how often each row counts, 0 if it is dropped. Undefined if every row counts once. */
  repeats: Uint32Array | undefined;
}

/**
 * An advantage function that native code runs on the device as part of a loss's call; see NativeCall.advantage in
 * binding.d.ts.
 */
export interface FusedAdvantage {
  advantage: NativeFusedAdvantage;
  /** Whether the loss gets one advantage per row. */
  perRow: boolean;
  /**
   * Returns the error for an input that is not finite.
   * @param input the number by which native code refers to the input; see NativeEngine.advantages in binding.d.ts.
   */
  notFinite: (input: number) => LossError;
}

/**
 * Throws if native code found an input that is not finite while it computed the advantages. In that case it returned
 * −1 − k, where k is the number of the input, instead of the bit mask of the values that are present.
 * @throws LossError `ERR_INVALID_INPUT`
 */
export function checkFinite(present: number, fused: FusedAdvantage | undefined): void {
  if (fused && present < -1) throw fused.notFinite(-1 - present);
}
