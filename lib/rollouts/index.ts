// Reads rollout files of any number, format and size into packed batches, and writes gradients next to their rows' ids.
export { columnOfKey, type RolloutColumn } from './columns.js';
export { expandFiles } from './expand.js';
export type { RolloutPart, Rollouts } from './part-builder.js';
export { describePlace, type Place } from './source.js';
export {
  type ReadOptions,
  type ReadProgress,
  readRollouts,
  type StreamOptions,
  streamRollouts,
} from './stream.js';
export { type GradientOptions, type GradientWriter, writeGradients } from './write/gradients.js';
