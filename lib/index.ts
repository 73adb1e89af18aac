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
export type { ConfigFramework } from './algorithm/configurations/frameworks.js';
export { type ConfigOptions, fromConfig } from './algorithm/configurations/from-config.js';
export { ALGORITHM_TYPE, AlgorithmRegistry } from './algorithm/index.js';
export { Objective } from './algorithm/objective.js';
export type {
  ObjectiveComputeOptions,
  ObjectiveComputeSyncOptions,
  ObjectiveFromHiddenOptions,
  ObjectiveFromHiddenSyncOptions,
  ObjectiveFromLogitsOptions,
  ObjectiveFromLogitsSyncOptions,
} from './algorithm/objective-options.js';
export type { ObjectiveResult } from './algorithm/objective-result.js';
export { fromTrinityConfig } from './algorithm/trinity-config.js';
export type { AbortSignalLike } from './base/abortable.js';
export type { Float16ArrayLike } from './base/arrays.js';
export type {
  FunctionDeclaration,
  MetricDeclaration,
  MetricSchema,
  MetricValues,
  NumericsDeclaration,
  TokenValues,
} from './base/declaration.js';
export { LossError, type LossErrorCode, type LossErrorDetails, type MessageText } from './base/errors.js';
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
} from './base/options.js';
export { type RegisteredClass, Registry } from './base/registry.js';
export type { Batch, BatchColumns, BatchWith, TrinityColumns, VerlColumns } from './batch/batch.js';
export { type Counts, type Normalizer, type RowCounts, sumCounts } from './batch/counts.js';
export { KeyMapper } from './batch/key-mapper.js';
export type { FloatColumn, HalfColumn, MaskColumn, RowIds, RowNumbers } from './batch/values.js';
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
  Requested,
  Requesting,
  Requests,
  Result,
  ResultOf,
} from './call/calls.js';
export * from './define/index.js';
export {
  type CpuDevice,
  type CudaDevice,
  type CudaObstacle,
  type Device,
  devices,
  type NoCudaDevice,
  setThreads,
} from './device/device.js';
export { DeviceBatch } from './device/device-batch.js';
export type { DeviceColumn, IpcColumn, OnDevice } from './device/device-column.js';
export { DeviceGradient } from './device/device-gradient.js';
export { allocPinned, freePinned } from './device/pinned.js';
export { trimDevice } from './device/trim.js';
export type { ColumnUpdate, UpdateOptions } from './device/update.js';
export { type UploadBatch, type UploadOptions, upload } from './device/upload.js';
export type { AsyncLogitsBlocks, LogitsBlocks } from './logits/blocks.js';
export type {
  FromHiddenOptions,
  FromHiddenSyncOptions,
  HiddenBatch,
  HiddenResult,
  ModelNumbers,
} from './logits/from-hidden.js';
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
