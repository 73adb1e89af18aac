// The KL functions. Each file declares one and registers it; the order of these lines is the registry's order.
// biome-ignore-all assist/source/organizeImports: see above
export * from './dummy.js';
export * from './k1.js';
export * from './k2.js';
export * from './k3.js';
export * from './low-var-kl.js';
export * from './abs.js';
export * from './corrected-k3.js';
export * from './bias-corrected-k3.js';
export * from './k1-plus.js';
export * from './k2-plus.js';
export * from './k3-plus.js';
export * from './low-var-kl-plus.js';
export * from './abs-plus.js';
export {
  KL_FN,
  KLFn,
  type KLMetrics,
  type KLOptions,
  type KlLossOptions,
  type KlLossSyncOptions,
  type KlPenaltyResult,
} from './kl-fn.js';
export type { KLDeclaration } from './kl-fn.js';
