// Reads any number of rollout files, of any supported format and size, into packed batches. Also writes files with each
// row's gradient next to the row's ids.
export { COLUMNS, columnOfKey, type RolloutColumn } from './columns.js';
export { expandFiles } from './expand.js';
export { MAX_ROW_TOKENS, MAX_ROWS } from './limits.js';
export type { PresentColumns, RolloutPart, Rollouts } from './part-builder.js';
export { type CutFile, checkPiece, cutFile, type HashedPiece } from './pieces.js';
export { type PackedRows, rowsFrom } from './rows-from.js';
export { describePlace, type FilePiece, type Place } from './source.js';
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
