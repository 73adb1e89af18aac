// Evaluates losses and algorithms on files of any size, which are read and computed part by part.

export { evaluateFiles, type FilesEvaluation, mergeResults } from './evaluate-files.js';
export type { EvaluationProgress, EvaluationSettings, OnNonFinite } from './evaluation.js';
export {
  type LogitsFileOptions,
  type LogprobsBlock,
  type LogprobsLayout,
  logprobsOfFile,
} from './logits-file.js';
export {
  BATCH_BYTES,
  LOGITS_FILE_INPUTS,
  type LogitsGradient,
  type LogitsLossEvaluation,
  type LogitsLossFileOptions,
  logitsLossOfFiles,
} from './logits-loss-file.js';
export { compareMicroBatches, type MicroBatchComparison, type Weighing } from './micro-batches.js';
export type { NonFiniteRow } from './non-finite.js';
export type { PartResult, PartWatcher } from './part-computer.js';
export { checkColumns } from './part-computer.js';
export type { OnCollected } from './part-file.js';
export {
  cutIntoShards,
  GRADIENT_ENDINGS,
  makePlan,
  PHASES,
  type Phase,
  type Plan,
  type PlannedConfiguration,
  type PlannedFunction,
  readPlan,
  writePlan,
} from './plan.js';
export { gradientsFiles, mergePlan, PlanRun, type ShardRun } from './run-plan.js';
export { type Collector, logprobsOf } from './shard.js';
export {
  type AlgorithmFunctions,
  checkComparable,
  gradientOffsets,
  lossSubject,
  objectiveSubject,
  type Subject,
  subjectOfLoss,
} from './subject.js';
export type { SubjectEvaluation } from './subject-result.js';
