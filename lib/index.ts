// The package's public face.

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
export type { AlgorithmConfig, FunctionArgs, ObjectiveConfig } from './algorithm/config.js';
export { ALGORITHM_TYPE, AlgorithmRegistry } from './algorithm/index.js';
export {
  Objective,
  type ObjectiveComputeOptions,
  type ObjectiveComputeSyncOptions,
  type ObjectiveResult,
} from './algorithm/objective.js';
export { fromTrinityConfig } from './algorithm/trinity-config.js';
export type { Batch, FloatColumn, HalfColumn, MaskColumn, RowIds, RowNumbers } from './core/batch.js';
export { type Counts, type Normalizer, type RowCounts, sumCounts } from './core/counts.js';
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
export { LossError, type LossErrorCode } from './core/errors.js';
export type { ComputeOptions, ComputeSyncOptions, Metrics, Result } from './core/evaluator.js';
export { KeyMapper } from './core/key-mapper.js';
export type { LossAggMode, TrinityArgs, TrinityValue } from './core/options.js';
export { type RegisteredClass, Registry } from './core/registry.js';
export { type UploadOptions, upload } from './core/upload.js';
export {
  type AdvantageComputeOptions,
  type AdvantageComputeSyncOptions,
  AdvantageFn,
  type AdvantageOptions,
  type AdvantageResult,
} from './functions/advantage/advantage-fn.js';
export { type ASYMREAdvantageOptions, ASYMREGroupAdvantage } from './functions/advantage/asymre.js';
export { type GRPOAdvantageOptions, GRPOGroupedAdvantage } from './functions/advantage/grpo.js';
export { ADVANTAGE_FN } from './functions/advantage/index.js';
export { JSDAdvantage, type JSDAdvantageOptions } from './functions/advantage/jsd.js';
export type { NormalisationOptions, StdCalLevel } from './functions/advantage/normalisation.js';
export {
  OnPolicyDistillAdvantage,
  type OnPolicyDistillAdvantageOptions,
} from './functions/advantage/on-policy-distill.js';
export {
  type OPMDAdvantageOptions,
  type OPMDBaseline,
  OPMDGroupAdvantage,
} from './functions/advantage/opmd.js';
export { PPOAdvantageFn, type PPOAdvantageOptions } from './functions/advantage/ppo.js';
export { type RECAdvantageOptions, RECGroupedAdvantage } from './functions/advantage/rec.js';
export { REINFORCEGroupAdvantage } from './functions/advantage/reinforce.js';
export {
  REINFORCEPLUSPLUSAdvantageFn,
  type REINFORCEPLUSPLUSAdvantageOptions,
} from './functions/advantage/reinforce-plus-plus.js';
export { REMAXAdvantageFn } from './functions/advantage/remax.js';
export { RLOOAdvantageFn } from './functions/advantage/rloo.js';
export {
  StepWiseGRPOAdvantageFn,
  type StepWiseGRPOAdvantageOptions,
} from './functions/advantage/step-wise-grpo.js';
export { DefaultEntropyLossFn } from './functions/entropy/default.js';
export { DummyEntropyLossFn } from './functions/entropy/dummy.js';
export {
  type EntropyComputeOptions,
  type EntropyComputeSyncOptions,
  EntropyLossFn,
  type EntropyLossOptions,
  type EntropyMetrics,
} from './functions/entropy/entropy-loss-fn.js';
export { ENTROPY_LOSS_FN } from './functions/entropy/index.js';
export { MixEntropyLossFn } from './functions/entropy/mix.js';
export { AbsFn } from './functions/kl/abs.js';
export { CorrectedK3Fn } from './functions/kl/corrected-k3.js';
export { DummyKLFn } from './functions/kl/dummy.js';
export { KL_FN } from './functions/kl/index.js';
export { K1Fn } from './functions/kl/k1.js';
export { K2Fn } from './functions/kl/k2.js';
export { K3Fn } from './functions/kl/k3.js';
export {
  KLFn,
  type KLMetrics,
  type KLOptions,
  type KlLossOptions,
  type KlLossSyncOptions,
  type KlPenaltyResult,
} from './functions/kl/kl-fn.js';
export { LowVarKLFn } from './functions/kl/low-var-kl.js';
export {
  type CISPOMetrics,
  CISPOPolicyLossFn,
  type CISPOPolicyLossOptions,
} from './functions/policy-loss/cispo.js';
export type { ClipRangeOptions } from './functions/policy-loss/clip-range.js';
export { DPOLossFn, type DPOLossOptions, type DPOMetrics } from './functions/policy-loss/dpo.js';
export { GSPOLossFn, type GSPOLossOptions, type GSPOMetrics } from './functions/policy-loss/gspo.js';
export {
  ImportanceSamplingLossFn,
  type ImportanceSamplingLossOptions,
  type ImportanceSamplingMetrics,
} from './functions/policy-loss/importance-sampling.js';
export { POLICY_LOSS_FN } from './functions/policy-loss/index.js';
export {
  type MIXMetrics,
  MIXPolicyLossFn,
  type MIXPolicyLossOptions,
  type MixedLossOptions,
} from './functions/policy-loss/mix.js';
export {
  type MIXCHORDMetrics,
  MIXCHORDPolicyLossFn,
  type MIXCHORDPolicyLossOptions,
} from './functions/policy-loss/mix-chord.js';
export {
  type OPMDMetrics,
  OPMDPolicyLossFn,
  type OPMDPolicyLossOptions,
} from './functions/policy-loss/opmd.js';
export {
  type AggregatedLossOptions,
  PolicyLossFn,
  type PolicyLossOptions,
} from './functions/policy-loss/policy-loss-fn.js';
export { type PPOMetrics, PPOPolicyLossFn, type PPOPolicyLossOptions } from './functions/policy-loss/ppo.js';
export { type RECMetrics, RECPolicyLossFn, type RECPolicyLossOptions } from './functions/policy-loss/rec.js';
export {
  type SAPOMetrics,
  SAPOPolicyLossFn,
  type SAPOPolicyLossOptions,
} from './functions/policy-loss/sapo.js';
export { SFTLossFn, type SFTLossOptions, type SFTMetrics } from './functions/policy-loss/sft.js';
export { SFTISLossFn, type SFTISLossOptions, type SFTISMetrics } from './functions/policy-loss/sft-is.js';
export { SFTPhiLossFn, type SFTPhiLossOptions, type SFTPhiMetrics } from './functions/policy-loss/sft-phi.js';
export {
  type SPPOMetrics,
  type SPPOPolicyLossOptions,
  sPPOPolicyLossFn,
} from './functions/policy-loss/sppo.js';
export {
  type TOPRMetrics,
  TOPRPolicyLossFn,
  type TOPRPolicyLossOptions,
} from './functions/policy-loss/topr.js';
