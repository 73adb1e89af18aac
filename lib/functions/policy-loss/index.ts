// The policy losses. Each file declares one and registers it; the order of these lines is the registry's order.
// biome-ignore-all assist/source/organizeImports: see above
export * from './ppo.js';
export * from './gspo.js';
export * from './cispo.js';
export * from './topr.js';
export * from './sapo.js';
export * from './sppo.js';
export * from './rec.js';
export * from './opmd.js';
export * from './sft.js';
export * from './sft-is.js';
export * from './sft-phi.js';
export * from './importance-sampling.js';
export * from './dpo.js';
export * from './mix.js';
export * from './mix-chord.js';
export * from './verl/vanilla.js';
export * from './verl/dppo.js';
export * from './verl/gpg.js';
export * from './verl/dro.js';
export * from './verl/geo-mean.js';
export * from './verl/gspo.js';
export * from './verl/sapo.js';
export * from './verl/cispo.js';
export * from './verl/bypass-mode.js';
export * from './verl/distillation.js';
export * from './verl/flowrl.js';
export * from './verl/self-play-sppo.js';
export * from './verl/clip-cov.js';
export * from './verl/kl-cov.js';
export * from './verl/gvpo.js';
export * from './verl/online-dpo.js';
export * from './trl/grpo.js';
export * from './trl/bnpo.js';
export * from './trl/dr-grpo.js';
export * from './trl/dapo.js';
export * from './trl/cispo.js';
export * from './trl/sapo.js';
export * from './trl/vespo.js';
export * from './trl/luspo.js';
export * from './trl/gspo-token.js';
export * from './trl/gmpo.js';
export * from './trl/async-grpo.js';
export * from './trl/rloo.js';
export * from './trl/a2po.js';
export * from './trl/nash-md.js';
export * from './trl/sdpo-sampled-token.js';
export * from './trl/iw-opd.js';
export * from './others/corrected-ppo.js';
export * from './others/clipped-pg.js';
export * from './others/decoupled-ppo.js';
export * from './others/rollout-is.js';
export * from './others/prime-rl.js';
export * from './others/prime-rl-ipo.js';
export * from './others/ref-kl.js';
export * from './others/ce-gppo.js';
export * from './others/bapo.js';
export * from './others/erc.js';
export * from './others/up.js';
export * from './others/m2po.js';
export * from './others/m2po-clip.js';
export * from './others/aspo.js';
export * from './others/fipo.js';
export * from './others/segment-ppo.js';
export * from './others/real.js';
export type { ClipRangeOptions } from './clip-range.js';
export type { MixedLossOptions } from './mixed.js';
export {
  type AggregatedLossOptions,
  POLICY_LOSS_FN,
  type PolicyLossClass,
  type PolicyLossDeclaration,
  PolicyLossFn,
  type PolicyLossOptions,
} from './policy-loss-fn.js';
