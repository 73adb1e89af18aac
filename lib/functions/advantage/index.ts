// The advantage functions and their registry.
import { Registry } from '../../core/registry.js';
import type { AdvantageFn } from './advantage-fn.js';
import { ASYMREGroupAdvantage } from './asymre.js';
import { GRPOGroupedAdvantage } from './grpo.js';
import { JSDAdvantage } from './jsd.js';
import { OnPolicyDistillAdvantage } from './on-policy-distill.js';
import { OPMDGroupAdvantage } from './opmd.js';
import { PPOAdvantageFn } from './ppo.js';
import { RECGroupedAdvantage } from './rec.js';
import { REINFORCEGroupAdvantage } from './reinforce.js';
import { REINFORCEPLUSPLUSAdvantageFn } from './reinforce-plus-plus.js';
import { REMAXAdvantageFn } from './remax.js';
import { RLOOAdvantageFn } from './rloo.js';
import { StepWiseGRPOAdvantageFn } from './step-wise-grpo.js';

/** The advantage functions by Trinity-RFT's names. */
export const ADVANTAGE_FN = new Registry<AdvantageFn>('advantage function', {
  ppo: PPOAdvantageFn,
  grpo: GRPOGroupedAdvantage,
  rloo: RLOOAdvantageFn,
  reinforce: REINFORCEGroupAdvantage,
  reinforceplusplus: REINFORCEPLUSPLUSAdvantageFn,
  remax: REMAXAdvantageFn,
  opmd: OPMDGroupAdvantage,
  asymre: ASYMREGroupAdvantage,
  rec: RECGroupedAdvantage,
  step_wise_grpo: StepWiseGRPOAdvantageFn,
  on_policy_distill: OnPolicyDistillAdvantage,
  jsd: JSDAdvantage,
});
