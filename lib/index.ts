// The package's public interface.
export {
  type AlgorithmClass,
  AlgorithmType,
  type Schema,
  type TrinityConfig,
} from './algorithm/algorithm-type.js';
export { AsymREAlgorithm } from './algorithm/asymre.js';
export { CISPOAlgorithm } from './algorithm/cispo.js';
export type { AlgorithmConfig, FunctionArgs, ObjectiveConfig } from './algorithm/config.js';
export { DPOAlgorithm } from './algorithm/dpo.js';
export { GRPOAlgorithm } from './algorithm/grpo.js';
export { GSPOAlgorithm } from './algorithm/gspo.js';
export { ALGORITHM_TYPE, AlgorithmRegistry } from './algorithm/index.js';
export { JSDAlgorithm } from './algorithm/jsd.js';
export { MIXAlgorithm } from './algorithm/mix.js';
export { MIXCHORDAlgorithm } from './algorithm/mix-chord.js';
export { MultiStepGRPOAlgorithm } from './algorithm/multi-step-grpo.js';
export {
  Objective,
  type ObjectiveComputeOptions,
  type ObjectiveComputeSyncOptions,
  type ObjectiveResult,
} from './algorithm/objective.js';
export { OnPolicyDistillAlgorithm } from './algorithm/on-policy-distill.js';
export { OPMDAlgorithm } from './algorithm/opmd.js';
export { PPOAlgorithm } from './algorithm/ppo.js';
export { RAFTAlgorithm } from './algorithm/raft.js';
export { RECAlgorithm } from './algorithm/rec.js';
export { ReinforcePlusPlusAlgorithm } from './algorithm/reinforce-plus-plus.js';
export { RLOOAlgorithm } from './algorithm/rloo.js';
export { SAPOAlgorithm } from './algorithm/sapo.js';
export { SFTAlgorithm } from './algorithm/sft.js';
export { sPPOAlgorithm } from './algorithm/sppo.js';
export { TOPRAlgorithm } from './algorithm/topr.js';
export { fromTrinityConfig } from './algorithm/trinity-config.js';
export type { Batch, FloatColumn, HalfColumn, MaskColumn, RowIds, RowNumbers } from './core/batch.js';
export { type Counts, type Normalizer, type RowCounts, sumCounts } from './core/counts.js';
export type {
  FunctionDeclaration,
  MetricDeclaration,
  MetricSchema,
  MetricsOf,
  NumericsDeclaration,
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
export { LossError, type LossErrorCode, type LossErrorDetails } from './core/errors.js';
export type { ComputeOptions, ComputeSyncOptions, Metrics, Result } from './core/evaluator.js';
export { KeyMapper } from './core/key-mapper.js';
export type {
  AggregationOption,
  BooleanOption,
  ChoiceOption,
  LossAggMode,
  NumberOption,
  OptionDeclaration,
  OptionSchema,
  OptionsOf,
  TrinityArgs,
  TrinityValue,
} from './core/options.js';
export { type RegisteredClass, Registry } from './core/registry.js';
export { type UploadOptions, upload } from './core/upload.js';
export * from './functions/advantage/index.js';
export * from './functions/entropy/index.js';
export * from './functions/kl/index.js';
export * from './functions/policy-loss/index.js';
