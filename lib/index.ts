// The package's public face.
export type { Batch, FloatColumn, HalfColumn, MaskColumn } from './batch.js';
export {
  type CpuDevice,
  type CudaDevice,
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
