/** The constants and default functions that every algorithm is expected to have. */
import {
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
} from '../../lib/index.js';

/**
 * Every algorithm's class and, as in Trinity-RFT, its constants useCritic, useReference, computeAdvantageInTrainer,
 * canBalanceBatch and schema.
 */
export const ALGORITHMS = {
  sft: [SFTAlgorithm, false, false, false, true, 'sft'],
  ppo: [PPOAlgorithm, true, true, true, true, 'experience'],
  grpo: [GRPOAlgorithm, false, true, false, true, 'experience'],
  reinforceplusplus: [ReinforcePlusPlusAlgorithm, false, true, true, true, 'experience'],
  rloo: [RLOOAlgorithm, false, true, true, true, 'experience'],
  opmd: [OPMDAlgorithm, false, true, false, true, 'experience'],
  asymre: [AsymREAlgorithm, false, false, false, true, 'experience'],
  dpo: [DPOAlgorithm, false, true, false, false, 'dpo'],
  topr: [TOPRAlgorithm, false, true, false, true, 'experience'],
  cispo: [CISPOAlgorithm, false, true, false, true, 'experience'],
  gspo: [GSPOAlgorithm, false, true, false, true, 'experience'],
  sapo: [SAPOAlgorithm, false, true, false, true, 'experience'],
  mix: [MIXAlgorithm, false, true, false, true, 'experience'],
  mix_chord: [MIXCHORDAlgorithm, false, true, false, true, 'experience'],
  raft: [RAFTAlgorithm, false, false, false, true, 'experience'],
  sppo: [sPPOAlgorithm, false, false, false, true, 'experience'],
  rec: [RECAlgorithm, false, true, false, true, 'experience'],
  multi_step_grpo: [MultiStepGRPOAlgorithm, false, true, false, true, 'experience'],
  on_policy_distill: [OnPolicyDistillAlgorithm, false, false, true, true, 'experience'],
  jsd: [JSDAlgorithm, false, false, true, true, 'experience'],
} as const;

/** Every algorithm's default policy loss, advantage function, KL loss, entropy loss and repeat_times. */
export const DEFAULTS: Record<
  string,
  [string, string | undefined, string | undefined, string, number | undefined]
> = {
  sft: ['sft', undefined, 'none', 'none', undefined],
  ppo: ['ppo', 'ppo', 'k2', 'default', 1],
  grpo: ['ppo', 'grpo', 'k2', 'default', 2],
  reinforceplusplus: ['ppo', 'reinforceplusplus', 'k2', 'default', 2],
  rloo: ['ppo', 'rloo', 'k2', 'default', 2],
  opmd: ['opmd', 'opmd', 'k2', 'default', 2],
  asymre: ['opmd', 'asymre', 'none', 'none', 2],
  dpo: ['dpo', undefined, 'k2', 'default', undefined],
  topr: ['topr', 'reinforce', 'k2', 'default', 2],
  cispo: ['cispo', 'grpo', 'k2', 'default', 2],
  gspo: ['gspo', 'grpo', 'k2', 'default', 2],
  sapo: ['sapo', 'grpo', 'k2', 'default', 2],
  mix: ['mix', 'grpo', undefined, 'mix', 8],
  mix_chord: ['mix_chord', 'grpo', undefined, 'mix', 8],
  raft: ['sft', undefined, 'none', 'none', undefined],
  sppo: ['sppo', 'opmd', 'none', 'none', 2],
  rec: ['rec', 'rec', 'k2', 'default', 2],
  multi_step_grpo: ['ppo', 'step_wise_grpo', 'k2', 'default', 8],
  on_policy_distill: ['ppo', 'on_policy_distill', 'none', 'none', 8],
  jsd: ['ppo', 'jsd', 'none', 'none', 8],
};
