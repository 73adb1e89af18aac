// The entropy losses. Each file declares one and registers it; the order of these lines is the registry's order.
// biome-ignore-all assist/source/organizeImports: see above
export * from './default.js';
export * from './mix.js';
export * from './dummy.js';
export {
  ENTROPY_LOSS_FN,
  type EntropyComputeOptions,
  type EntropyComputeSyncOptions,
  EntropyLossFn,
  type EntropyLossOptions,
  type EntropyMetrics,
} from './entropy-loss-fn.js';
export type { EntropyLossDeclaration } from './entropy-loss-fn.js';
