// The corrections. Each file declares and registers its own; the order of these lines is the registry's order.
// biome-ignore-all assist/source/organizeImports: see above
export * from './verl/rollout-correction.js';
export * from './verl/older-rollout-corrections.js';
export type { CorrectionOption, LossCorrectionOptions } from './loss-correction.js';
export type { MaskOptions } from './masks.js';
export {
  CORRECTION_FN,
  type CorrectionClass,
  type CorrectionComputeOptions,
  CorrectionFn,
  type CorrectionFnOptions,
  type CorrectionResult,
} from './correction-fn.js';
