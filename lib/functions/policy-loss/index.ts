// The policy losses and their registry.
import { Registry } from '../../core/registry.js';
import { CISPOPolicyLossFn } from './cispo.js';
import { DPOLossFn } from './dpo.js';
import { GSPOLossFn } from './gspo.js';
import { ImportanceSamplingLossFn } from './importance-sampling.js';
import { MIXPolicyLossFn } from './mix.js';
import { MIXCHORDPolicyLossFn } from './mix-chord.js';
import { OPMDPolicyLossFn } from './opmd.js';
import type { PolicyLossFn } from './policy-loss-fn.js';
import { PPOPolicyLossFn } from './ppo.js';
import { RECPolicyLossFn } from './rec.js';
import { SAPOPolicyLossFn } from './sapo.js';
import { SFTLossFn } from './sft.js';
import { SFTISLossFn } from './sft-is.js';
import { SFTPhiLossFn } from './sft-phi.js';
import { sPPOPolicyLossFn } from './sppo.js';
import { TOPRPolicyLossFn } from './topr.js';

/** The policy losses by Trinity-RFT's names. */
export const POLICY_LOSS_FN = new Registry<PolicyLossFn<Partial<Record<string, number>>>>('policy loss', {
  ppo: PPOPolicyLossFn,
  gspo: GSPOLossFn,
  cispo: CISPOPolicyLossFn,
  topr: TOPRPolicyLossFn,
  sapo: SAPOPolicyLossFn,
  sppo: sPPOPolicyLossFn,
  rec: RECPolicyLossFn,
  opmd: OPMDPolicyLossFn,
  sft: SFTLossFn,
  sft_is: SFTISLossFn,
  sft_phi: SFTPhiLossFn,
  importance_sampling: ImportanceSamplingLossFn,
  dpo: DPOLossFn,
  mix: MIXPolicyLossFn,
  mix_chord: MIXCHORDPolicyLossFn,
});
