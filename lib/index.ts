// The package's public interface.
export {
  type AlgorithmClass,
  AlgorithmType,
  type Schema,
  type TrinityConfig,
} from './algorithm/algorithm-type.js';
export {
  AsymREAlgorithm,
  CISPOAlgorithm,
  DPOAlgorithm,
  GRPOAlgorithm,
  GSPOAlgorithm,
  JSDAlgorithm,
  MIXAlgorithm,
  MIXCHORDAlgorithm,
  MultiStepGRPOAlgorithm,
  OnPolicyDistillAlgorithm,
  OPMDAlgorithm,
  PPOAlgorithm,
  RAFTAlgorithm,
  RECAlgorithm,
  ReinforcePlusPlusAlgorithm,
  RLOOAlgorithm,
  SAPOAlgorithm,
  SFTAlgorithm,
  sPPOAlgorithm,
  TOPRAlgorithm,
} from './algorithm/algorithms.js';
export type {
  AlgorithmConfig,
  FunctionArgs,
  ObjectiveConfig,
  TrinityObjectiveConfig,
} from './algorithm/config.js';
export {
  type ConfigFramework,
  type ConfigOptions,
  fromConfig,
} from './algorithm/configurations/from-config.js';
export { ALGORITHM_TYPE, AlgorithmRegistry } from './algorithm/index.js';
export {
  Objective,
  type ObjectiveComputeOptions,
  type ObjectiveComputeSyncOptions,
  type ObjectiveFromLogitsOptions,
  type ObjectiveFromLogitsSyncOptions,
} from './algorithm/objective.js';
export type { ObjectiveResult } from './algorithm/objective-result.js';
export { fromTrinityConfig } from './algorithm/trinity-config.js';
export type { AbortSignalLike } from './core/abortable.js';
export type { Float16ArrayLike } from './core/arrays.js';
export type {
  Batch,
  BatchColumns,
  BatchWith,
  FloatColumn,
  HalfColumn,
  MaskColumn,
  RowIds,
  RowNumbers,
  TrinityColumns,
  VerlColumns,
} from './core/batch.js';
export type {
  ComputeOptions,
  ComputeSyncOptions,
  DeviceCallOptions,
  GradientRequest,
  HalfGradientRequest,
  LossComputeOptions,
  LossComputeSyncOptions,
  LossResult,
  Metrics,
  Result,
} from './core/calls.js';
export { type Counts, type Normalizer, type RowCounts, sumCounts } from './core/counts.js';
export type {
  FunctionDeclaration,
  MetricDeclaration,
  MetricSchema,
  MetricValues,
  NumericsDeclaration,
  TokenValues,
} from './core/declaration.js';
export {
  type CpuDevice,
  type CudaDevice,
  type CudaObstacle,
  type Device,
  devices,
  type NoCudaDevice,
  setThreads,
} from './core/device.js';
export { DeviceBatch } from './core/device-batch.js';
export type { DeviceColumn, IpcColumn, OnDevice } from './core/device-column.js';
export { DeviceGradient } from './core/device-gradient.js';
export { LossError, type LossErrorCode, type LossErrorDetails, type MessageText } from './core/errors.js';
export { KeyMapper } from './core/key-mapper.js';
export type {
  AggregationOption,
  AnyOption,
  BooleanOption,
  ChoiceOption,
  ListOption,
  LossAggMode,
  NumberOption,
  OptionDeclaration,
  OptionSchema,
  PassedOptions,
  TextOption,
  TrinityArgs,
  TrinityValue,
} from './core/options.js';
export { allocPinned, freePinned } from './core/pinned.js';
export { type RegisteredClass, Registry } from './core/registry.js';
export { trimDevice } from './core/trim.js';
export type { ColumnUpdate, UpdateOptions } from './core/update.js';
export { type UploadBatch, type UploadOptions, upload } from './core/upload.js';
export * from './define/index.js';
export type { AsyncLogitsBlocks, LogitsBlocks } from './logits/blocks.js';
export type {
  FromLogitsOptions,
  FromLogitsSyncOptions,
  LogitsBatch,
  LogitsBatchSync,
  LogitsColumns,
  LogitsResult,
} from './logits/from-logits.js';
export type { DeviceLogits, Logits, LogitsOptions, LogitsSupport } from './logits/inputs.js';
export {
  type LogprobsBackwardOptions,
  type LogprobsBackwardSyncOptions,
  type LogprobsOptions,
  type LogprobsResult,
  type LogprobsSyncOptions,
  logprobs,
  logprobsBackward,
  logprobsBackwardSync,
  logprobsSync,
} from './logits/logprobs.js';
export * from './losses/index.js';
