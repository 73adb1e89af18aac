// The package's public face.
export {
  type AdvantageComputeOptions,
  type AdvantageComputeSyncOptions,
  AdvantageFn,
  type AdvantageOptions,
  type AdvantageResult,
} from './advantage/advantage-fn.js';
export { type ASYMREAdvantageOptions, ASYMREGroupAdvantage } from './advantage/asymre.js';
export { type GRPOAdvantageOptions, GRPOGroupedAdvantage } from './advantage/grpo.js';
export { ADVANTAGE_FN } from './advantage/index.js';
export { JSDAdvantage, type JSDAdvantageOptions } from './advantage/jsd.js';
export type { NormalisationOptions, StdCalLevel } from './advantage/normalisation.js';
export {
  OnPolicyDistillAdvantage,
  type OnPolicyDistillAdvantageOptions,
} from './advantage/on-policy-distill.js';
export { type OPMDAdvantageOptions, type OPMDBaseline, OPMDGroupAdvantage } from './advantage/opmd.js';
export { PPOAdvantageFn, type PPOAdvantageOptions } from './advantage/ppo.js';
export { type RECAdvantageOptions, RECGroupedAdvantage } from './advantage/rec.js';
export { REINFORCEGroupAdvantage } from './advantage/reinforce.js';
export {
  REINFORCEPLUSPLUSAdvantageFn,
  type REINFORCEPLUSPLUSAdvantageOptions,
} from './advantage/reinforce-plus-plus.js';
export { REMAXAdvantageFn } from './advantage/remax.js';
export { RLOOAdvantageFn } from './advantage/rloo.js';
export { StepWiseGRPOAdvantageFn, type StepWiseGRPOAdvantageOptions } from './advantage/step-wise-grpo.js';
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
export type { Batch, FloatColumn, HalfColumn, MaskColumn, RowIds, RowNumbers } from './batch.js';
export { type Counts, type Normalizer, type RowCounts, sumCounts } from './counts.js';
export {
  type CpuDevice,
  type CudaDevice,
  type CudaObstacle,
  type Device,
  devices,
  type NoCudaDevice,
  setThreads,
} from './device.js';
export { DeviceBatch } from './device-batch.js';
export { DefaultEntropyLossFn } from './entropy/default.js';
export { DummyEntropyLossFn } from './entropy/dummy.js';
export {
  type EntropyComputeOptions,
  type EntropyComputeSyncOptions,
  EntropyLossFn,
  type EntropyLossOptions,
  type EntropyMetrics,
} from './entropy/entropy-loss-fn.js';
export { ENTROPY_LOSS_FN } from './entropy/index.js';
export { MixEntropyLossFn } from './entropy/mix.js';
export { LossError, type LossErrorCode } from './errors.js';
export type { ComputeOptions, ComputeSyncOptions, Metrics, Result } from './evaluator.js';
export { KeyMapper } from './key-mapper.js';
export { AbsFn } from './kl/abs.js';
export { CorrectedK3Fn } from './kl/corrected-k3.js';
export { DummyKLFn } from './kl/dummy.js';
export { KL_FN } from './kl/index.js';
export { K1Fn } from './kl/k1.js';
export { K2Fn } from './kl/k2.js';
export { K3Fn } from './kl/k3.js';
export {
  KLFn,
  type KLMetrics,
  type KLOptions,
  type KlLossOptions,
  type KlLossSyncOptions,
  type KlPenaltyResult,
} from './kl/kl-fn.js';
export { LowVarKLFn } from './kl/low-var-kl.js';
export type { LossAggMode, TrinityArgs, TrinityValue } from './options.js';
export { type CISPOMetrics, CISPOPolicyLossFn, type CISPOPolicyLossOptions } from './policy-loss/cispo.js';
export type { ClipRangeOptions } from './policy-loss/clip-range.js';
export { DPOLossFn, type DPOLossOptions, type DPOMetrics } from './policy-loss/dpo.js';
export { GSPOLossFn, type GSPOLossOptions, type GSPOMetrics } from './policy-loss/gspo.js';
export {
  ImportanceSamplingLossFn,
  type ImportanceSamplingLossOptions,
  type ImportanceSamplingMetrics,
} from './policy-loss/importance-sampling.js';
export { POLICY_LOSS_FN } from './policy-loss/index.js';
export {
  type MIXMetrics,
  MIXPolicyLossFn,
  type MIXPolicyLossOptions,
  type MixedLossOptions,
} from './policy-loss/mix.js';
export {
  type MIXCHORDMetrics,
  MIXCHORDPolicyLossFn,
  type MIXCHORDPolicyLossOptions,
} from './policy-loss/mix-chord.js';
export { type OPMDMetrics, OPMDPolicyLossFn, type OPMDPolicyLossOptions } from './policy-loss/opmd.js';
export {
  type AggregatedLossOptions,
  PolicyLossFn,
  type PolicyLossOptions,
} from './policy-loss/policy-loss-fn.js';
export { type PPOMetrics, PPOPolicyLossFn, type PPOPolicyLossOptions } from './policy-loss/ppo.js';
export { type RECMetrics, RECPolicyLossFn, type RECPolicyLossOptions } from './policy-loss/rec.js';
export { type SAPOMetrics, SAPOPolicyLossFn, type SAPOPolicyLossOptions } from './policy-loss/sapo.js';
export { SFTLossFn, type SFTLossOptions, type SFTMetrics } from './policy-loss/sft.js';
export { SFTISLossFn, type SFTISLossOptions, type SFTISMetrics } from './policy-loss/sft-is.js';
export { SFTPhiLossFn, type SFTPhiLossOptions, type SFTPhiMetrics } from './policy-loss/sft-phi.js';
export { type SPPOMetrics, type SPPOPolicyLossOptions, sPPOPolicyLossFn } from './policy-loss/sppo.js';
export { type TOPRMetrics, TOPRPolicyLossFn, type TOPRPolicyLossOptions } from './policy-loss/topr.js';
export { type RegisteredClass, Registry } from './registry.js';
export { type UploadOptions, upload } from './upload.js';
