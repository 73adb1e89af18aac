// The options of an objective's calls.
import type {
  DeviceRequest,
  GradientOf,
  GradientRequest,
  LossComputeOptions,
  LossComputeSyncOptions,
  RequestOf,
} from '../call/calls.js';
import type { FromHiddenOptions, FromHiddenSyncOptions } from '../logits/from-hidden.js';
import type { FromLogitsOptions, FromLogitsSyncOptions } from '../logits/from-logits.js';

/** Options of Objective.computeSync(). */
export interface ObjectiveComputeSyncOptions extends LossComputeSyncOptions {
  /**
   * An array that receives ∂loss/∂entropy: B×T values for a batch of B rows with T tokens each. Without this array, the
   * gradient is returned in a new one if `grad` is given, of the same dtype. With `grad` on a device, it is there too, as
   * `deviceGradEntropy`, unless the objective does not depend on entropies.
   */
  gradEntropy?: GradientRequest;
  /** The seed for the advantage function's random choices, instead of the function's default seed. */
  seed?: number;
}

/** Options of Objective.compute(). */
export interface ObjectiveComputeOptions extends LossComputeOptions, ObjectiveComputeSyncOptions {}

/** Options of Objective.fromLogitsSync(). */
export interface ObjectiveFromLogitsSyncOptions extends FromLogitsSyncOptions {
  /** As in {@link ObjectiveComputeSyncOptions}. */
  seed?: number;
}

/** Options of Objective.fromLogits(). */
export interface ObjectiveFromLogitsOptions extends FromLogitsOptions {
  /** As in {@link ObjectiveComputeSyncOptions}. */
  seed?: number;
}

/** Options of Objective.fromHiddenSync(). */
export interface ObjectiveFromHiddenSyncOptions extends FromHiddenSyncOptions {
  /** As in {@link ObjectiveComputeSyncOptions}. */
  seed?: number;
}

/** Options of Objective.fromHidden(). */
export interface ObjectiveFromHiddenOptions extends FromHiddenOptions {
  /** As in {@link ObjectiveComputeSyncOptions}. */
  seed?: number;
}

/** The gradient with respect to the entropies, which a result has if `grad` is requested in host memory and `gradEntropy` is not given. */
export type WithEntropies<R> = 'gradEntropy' extends keyof R ? unknown : OnHost<RequestOf<R, 'grad'>>;
type OnHost<G> = [G] extends [DeviceRequest] ? unknown : GradientOf<'gradEntropy', G>;
