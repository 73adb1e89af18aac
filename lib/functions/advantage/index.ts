// The advantage functions. Each file declares one and registers it; the order of these lines is the registry's order.
// biome-ignore-all assist/source/organizeImports: see above
export * from './ppo.js';
export * from './grpo.js';
export * from './rloo.js';
export * from './reinforce.js';
export * from './reinforce-plus-plus.js';
export * from './remax.js';
export * from './opmd.js';
export * from './asymre.js';
export * from './rec.js';
export * from './step-wise-grpo.js';
export * from './on-policy-distill.js';
export * from './jsd.js';
export * from './verl/gae.js';
export * from './verl/reinforce-plus-plus.js';
export * from './verl/reinforce-plus-plus-baseline.js';
export * from './verl/grpo-vectorized.js';
export * from './verl/grpo-passk.js';
export * from './verl/rloo-vectorized.js';
export * from './verl/opo.js';
export * from './verl/gpg.js';
export * from './verl/gdpo.js';
export * from './verl/optimal-token-baseline.js';
export * from './verl/tir-optimal-token-baseline.js';
export type { NormalisationOptions, StdCalLevel } from './normalisation.js';
export {
  ADVANTAGE_FN,
  type AdvantageComputeOptions,
  type AdvantageComputeSyncOptions,
  AdvantageFn,
  type AdvantageOptions,
  type AdvantageResult,
} from './advantage-fn.js';
export type { AdvantageDeclaration } from './advantage-fn.js';
export type { AdvantageOutputs } from './outputs.js';
