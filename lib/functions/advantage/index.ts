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
