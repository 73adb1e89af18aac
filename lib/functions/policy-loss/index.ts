// The policy losses. Each file declares one and registers it; the order of these lines is the registry's order.
// biome-ignore-all assist/source/organizeImports: see above
export * from './ppo.js';
export * from './gspo.js';
export * from './cispo.js';
export * from './topr.js';
export * from './sapo.js';
export * from './sppo.js';
export * from './rec.js';
export * from './opmd.js';
export * from './sft.js';
export * from './sft-is.js';
export * from './sft-phi.js';
export * from './importance-sampling.js';
export * from './dpo.js';
export * from './mix.js';
export * from './mix-chord.js';
export type { ClipRangeOptions } from './clip-range.js';
export type { MixedLossOptions } from './mixed.js';
export {
  type AggregatedLossOptions,
  POLICY_LOSS_FN,
  type PolicyLossClass,
  type PolicyLossDeclaration,
  PolicyLossFn,
  type PolicyLossOptions,
} from './policy-loss-fn.js';
