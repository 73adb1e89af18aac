// Rollout files, of any number, format and size: to packed batches, and gradients back beside their rows.
export { columnOfKey, type RolloutColumn } from './columns.js';
export { expandFiles } from './expand.js';
export type { RolloutPart, Rollouts } from './part-builder.js';
export type { Place } from './source.js';
export {
  type ReadOptions,
  type ReadProgress,
  readRollouts,
  type StreamOptions,
  streamRollouts,
} from './stream.js';
export { type GradientOptions, type GradientWriter, writeGradients } from './write/gradients.js';
