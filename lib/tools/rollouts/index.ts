// Reads any number of rollout files, of any supported format and size, into packed batches. Also writes files with each
// row's gradient next to the row's ids.
export { COLUMNS, columnOfKey, type RolloutColumn } from './columns.js';
export { type CutFile, checkRange, cutFile, type HashedRange } from './cut.js';
export { expandFiles } from './expand.js';
export { MAX_ROW_TOKENS, MAX_ROWS } from './limits.js';
export type { PresentColumns, RolloutPart, Rollouts } from './part-builder.js';
export { type PackedRows, rowsFrom } from './rows-from.js';
export { describePlace, type FileRange, type Place } from './source.js';
export {
  type ReadOptions,
  type ReadProgress,
  readRollouts,
  type StreamOptions,
  streamRollouts,
} from './stream.js';
export {
  checkGradientDtype,
  GRADIENT_DTYPES,
  type GradientOptions,
  type GradientWriter,
  writeGradients,
} from './write/gradients.js';
export { jsonText } from './write/json.js';
export type { GradientDtype } from './write/staging.js';
