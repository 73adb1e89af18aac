// The algorithms: a table with one entry for each algorithm, and the public classes that are made from it.
import { type AlgorithmClass, AlgorithmType, type Schema } from './algorithm-type.js';
import type { AlgorithmConfig } from './config.js';
import { checkDpoConfig, checkSftConfig } from './offline.js';

/** The table entry of one algorithm. A constant that the entry leaves out has its value in USUAL. */
interface AlgorithmRow {
  summary: string;
  source: readonly string[];
  config: AlgorithmConfig;
  useCritic?: boolean;
  useReference?: boolean;
  computeAdvantageInTrainer?: boolean;
  canBalanceBatch?: boolean;
  schema?: Schema;
  useRollout?: boolean;
  /** Replaces AlgorithmType.checkConfig(), which returns the configuration unchanged. */
  checkConfig?: typeof AlgorithmType.checkConfig;
}

const USUAL = {
  useCritic: false,
  useReference: true,
  computeAdvantageInTrainer: false,
  canBalanceBatch: true,
  schema: 'experience',
} as const;

// The KL and entropy functions that most algorithms use by default, and the default way in which a trainer samples.
const WITH_KL_AND_ENTROPY = {
  kl_penalty_fn: 'none',
  kl_loss_fn: 'k2',
  entropy_loss_fn: 'default',
  repeat_times: 2,
  sample_strategy: 'default',
} as const;
const WITHOUT_KL_AND_ENTROPY = {
  ...WITH_KL_AND_ENTROPY,
  kl_loss_fn: 'none',
  entropy_loss_fn: 'none',
} as const;
const WITH_EXPERTS = { entropy_loss_fn: 'mix', repeat_times: 8, sample_strategy: 'mix' } as const;

const ROLLOUTS_AND_EXPERTS = {
  /** Whether the algorithm trains on the policy's rollouts in addition to experts' answers. */
  useRollout: true,
} as const;

const TRINITY = 'Trinity-RFT';

/** The table of all algorithms. The keys are the algorithms' names in Trinity-RFT. */
const ALGORITHMS = {
  sft: {
    summary: 'supervised fine-tuning on given answers',
    source: [TRINITY],
    useReference: false,
    schema: 'sft',
    config: {
      policy_loss_fn: 'sft',
      kl_loss_fn: 'none',
      entropy_loss_fn: 'none',
      sample_strategy: 'default',
    },
    checkConfig: checkSftConfig,
  },
  ppo: {
    summary: "PPO with a critic's values",
    source: ['arXiv 1707.06347', TRINITY],
    useCritic: true,
    computeAdvantageInTrainer: true,
    config: { policy_loss_fn: 'ppo', advantage_fn: 'ppo', ...WITH_KL_AND_ENTROPY, repeat_times: 1 },
  },
  grpo: {
    summary: 'PPO on rewards normalised within groups',
    source: ['arXiv 2402.03300', TRINITY],
    config: { policy_loss_fn: 'ppo', advantage_fn: 'grpo', ...WITH_KL_AND_ENTROPY },
  },
  reinforceplusplus: {
    summary: 'PPO on whitened rewards-to-go, without a critic',
    source: ['arXiv 2501.03262', TRINITY],
    computeAdvantageInTrainer: true,
    config: { policy_loss_fn: 'ppo', advantage_fn: 'reinforceplusplus', ...WITH_KL_AND_ENTROPY },
  },
  rloo: {
    summary: "PPO on each reward minus the mean of its group's other rewards",
    source: ['arXiv 2402.14740', TRINITY],
    computeAdvantageInTrainer: true,
    config: { policy_loss_fn: 'ppo', advantage_fn: 'rloo', ...WITH_KL_AND_ENTROPY },
  },
  opmd: {
    summary: 'online policy mirror descent',
    source: ['arXiv 2505.17826', TRINITY],
    config: { policy_loss_fn: 'opmd', advantage_fn: 'opmd', ...WITH_KL_AND_ENTROPY },
  },
  asymre: {
    summary: "OPMD's loss with a lowered baseline",
    source: ['arXiv 2506.20520', TRINITY],
    useReference: false,
    config: { policy_loss_fn: 'opmd', advantage_fn: 'asymre', ...WITHOUT_KL_AND_ENTROPY },
  },
  dpo: {
    summary: 'preferences between pairs of answers',
    source: ['arXiv 2305.18290', TRINITY],
    canBalanceBatch: false,
    schema: 'dpo',
    config: {
      policy_loss_fn: 'dpo',
      kl_loss_fn: 'k2',
      entropy_loss_fn: 'default',
      sample_strategy: 'default',
    },
    checkConfig: checkDpoConfig,
  },
  topr: {
    summary: 'raw rewards as advantages; ratios are truncated where the advantage is not positive',
    source: ['arXiv 2503.14286', TRINITY],
    config: { policy_loss_fn: 'topr', advantage_fn: 'reinforce', ...WITH_KL_AND_ENTROPY },
  },
  cispo: {
    summary: "GRPO's advantages with clipped ratios as constant weights",
    source: ['arXiv 2506.13585', TRINITY],
    config: { policy_loss_fn: 'cispo', advantage_fn: 'grpo', ...WITH_KL_AND_ENTROPY },
  },
  gspo: {
    summary: "GRPO's advantages with one ratio per sequence",
    source: ['arXiv 2507.18071', TRINITY],
    config: { policy_loss_fn: 'gspo', advantage_fn: 'grpo', ...WITH_KL_AND_ENTROPY },
  },
  sapo: {
    summary: "GRPO's advantages with a soft gate instead of clipping",
    source: ['arXiv 2511.20347', TRINITY],
    config: { policy_loss_fn: 'sapo', advantage_fn: 'grpo', ...WITH_KL_AND_ENTROPY },
  },
  mix: {
    summary: "GRPO on the policy's own answers and SFT on experts' answers",
    source: ['arXiv 2505.17826', TRINITY],
    ...ROLLOUTS_AND_EXPERTS,
    config: { policy_loss_fn: 'mix', advantage_fn: 'grpo', ...WITH_EXPERTS },
  },
  mix_chord: {
    summary: "MIX with a schedule for the weight of experts' answers",
    source: ['arXiv 2508.11408', TRINITY],
    ...ROLLOUTS_AND_EXPERTS,
    config: { policy_loss_fn: 'mix_chord', advantage_fn: 'grpo', ...WITH_EXPERTS },
  },
  raft: {
    summary: "SFT on the best of the policy's own answers",
    source: ['arXiv 2304.06767', TRINITY],
    useReference: false,
    config: {
      policy_loss_fn: 'sft',
      kl_loss_fn: 'none',
      entropy_loss_fn: 'none',
      sample_strategy: 'default',
    },
  },
  sppo: {
    summary: "OPMD's advantages times log-ratios that are in range",
    source: [TRINITY],
    useReference: false,
    config: { policy_loss_fn: 'sppo', advantage_fn: 'opmd', ...WITHOUT_KL_AND_ENTROPY },
  },
  rec: {
    summary: 'REINFORCE with clip modes, weights and regularizers',
    source: ['arXiv 2509.24203', TRINITY],
    config: { policy_loss_fn: 'rec', advantage_fn: 'rec', ...WITH_KL_AND_ENTROPY },
  },
  multi_step_grpo: {
    summary: "GRPO on runs of several steps, which share their last step's advantage",
    source: [TRINITY],
    config: {
      policy_loss_fn: 'ppo',
      advantage_fn: 'step_wise_grpo',
      ...WITH_KL_AND_ENTROPY,
      repeat_times: 8,
    },
  },
  on_policy_distill: {
    summary: "a teacher's log-probabilities minus the policy's own as advantages",
    source: ['arXiv 2306.13649', TRINITY],
    useReference: false,
    computeAdvantageInTrainer: true,
    config: {
      policy_loss_fn: 'ppo',
      advantage_fn: 'on_policy_distill',
      ...WITHOUT_KL_AND_ENTROPY,
      repeat_times: 8,
    },
  },
  jsd: {
    summary: 'on-policy distillation with the Jensen-Shannon divergence',
    source: ['arXiv 2306.13649', TRINITY],
    useReference: false,
    computeAdvantageInTrainer: true,
    config: { policy_loss_fn: 'ppo', advantage_fn: 'jsd', ...WITHOUT_KL_AND_ENTROPY, repeat_times: 8 },
  },
} as const satisfies Record<string, AlgorithmRow>;

type Name = keyof typeof ALGORITHMS;
type Row<N extends Name> = (typeof ALGORITHMS)[N];

/** The type of one algorithm's class: AlgorithmType with the exact types of that algorithm's constants. */
type ClassOf<N extends Name> = typeof AlgorithmType & { readonly algorithmName: N } & Omit<
    Row<N>,
    'summary' | 'source' | 'config' | 'checkConfig'
  > &
  Omit<typeof USUAL, keyof Row<N>>;

/**
 * Returns AlgorithmType with the type of one algorithm's class. The loop at the end of this file assigns the constants
 * to the class.
 */
function algorithm<N extends Name>(_name: N): ClassOf<N> {
  return AlgorithmType as ClassOf<N>;
}

/**
 * SFT: supervised fine-tuning on given answers.
 *
 * checkConfig() rejects the modes `both` and `explore`. In mode `train`, it requires the path of an experience buffer.
 * If there is a `synchronizer` section, it sets the section's `sync_method` to `checkpoint`. An `algorithm` section
 * that is passed alone is accepted unchanged.
 *
 * Source: Trinity-RFT's SFTAlgorithm.
 */
export class SFTAlgorithm extends algorithm('sft') {}

/**
 * PPO: generalised advantage estimation with a critic, and PPO's clipped surrogate loss.
 *
 * Source: arXiv 1707.06347; Trinity-RFT's PPOAlgorithm.
 */
export class PPOAlgorithm extends algorithm('ppo') {}

/**
 * GRPO: advantages are rewards normalised within groups of answers to the same prompt. The loss is PPO's clipped
 * surrogate.
 *
 * Source: arXiv 2402.03300; Trinity-RFT's GRPOAlgorithm.
 */
export class GRPOAlgorithm extends algorithm('grpo') {}

/**
 * REINFORCE++: advantages are whitened rewards-to-go. The loss is PPO's clipped surrogate.
 *
 * Source: arXiv 2501.03262; Trinity-RFT's ReinforcePlusPlusAlgorithm.
 */
export class ReinforcePlusPlusAlgorithm extends algorithm('reinforceplusplus') {}

/**
 * RLOO: the advantage is the reward minus the mean of the other rewards in its group. The loss is PPO's clipped
 * surrogate.
 *
 * Source: arXiv 2402.14740; Trinity-RFT's RLOOAlgorithm.
 */
export class RLOOAlgorithm extends algorithm('rloo') {}

/**
 * OPMD: online policy mirror descent.
 *
 * Source: arXiv 2505.17826; Trinity-RFT's OPMDAlgorithm.
 */
export class OPMDAlgorithm extends algorithm('opmd') {}

/**
 * AsymRE: OPMD's loss, with advantages relative to a baseline that is shifted down.
 *
 * Source: arXiv 2506.20520; Trinity-RFT's AsymREAlgorithm.
 */
export class AsymREAlgorithm extends algorithm('asymre') {}

/**
 * DPO: preferences between pairs of answers.
 *
 * checkConfig() sets `repeat_times` to 2, and replaces the KL loss `none` with `k2`. In a whole configuration, it also
 * checks what SFT checks: it rejects the modes `both` and `explore`. In mode `train`, it requires the path of an
 * experience buffer. If there is a `synchronizer` section, it sets the section's `sync_method` to `checkpoint`.
 *
 * Source: arXiv 2305.18290; Trinity-RFT's DPOAlgorithm.
 */
export class DPOAlgorithm extends algorithm('dpo') {}

/**
 * TOPR: advantages are the raw rewards. Ratios are truncated where the advantage is not positive.
 *
 * Source: arXiv 2503.14286; Trinity-RFT's TOPRAlgorithm.
 */
export class TOPRAlgorithm extends algorithm('topr') {}

/**
 * CISPO: GRPO's advantages. The loss uses clipped ratios as constant weights, through which no gradient flows.
 *
 * Source: arXiv 2506.13585; Trinity-RFT's CISPOAlgorithm.
 */
export class CISPOAlgorithm extends algorithm('cispo') {}

/**
 * GSPO: GRPO's advantages. The loss uses one ratio per sequence instead of one per token.
 *
 * Source: arXiv 2507.18071; Trinity-RFT's GSPOAlgorithm.
 */
export class GSPOAlgorithm extends algorithm('gspo') {}

/**
 * SAPO: GRPO's advantages. The loss has a soft gate instead of clipping.
 *
 * Source: arXiv 2511.20347; Trinity-RFT's SAPOAlgorithm.
 */
export class SAPOAlgorithm extends algorithm('sapo') {}

/**
 * MIX: GRPO on the policy's own answers, and SFT on experts' answers.
 *
 * Source: arXiv 2505.17826; Trinity-RFT's MIXAlgorithm.
 */
export class MIXAlgorithm extends algorithm('mix') {}

/**
 * MIX-CHORD: MIX, but the weight of the experts' answers follows a schedule.
 *
 * Source: arXiv 2508.11408; Trinity-RFT's MIXCHORDAlgorithm.
 */
export class MIXCHORDAlgorithm extends algorithm('mix_chord') {}

/**
 * RAFT: SFT on the best of the policy's own answers.
 *
 * Source: arXiv 2304.06767; Trinity-RFT's RAFTAlgorithm.
 */
export class RAFTAlgorithm extends algorithm('raft') {}

/**
 * sPPO: OPMD's advantages. The loss is −advantage times log-ratio, for tokens whose log-ratio is within a range.
 *
 * Source: Trinity-RFT's sPPOAlgorithm.
 */
export class sPPOAlgorithm extends algorithm('sppo') {}

/**
 * REC: REINFORCE with a choice of clip modes, weights and regularizers.
 *
 * Source: arXiv 2509.24203; Trinity-RFT's RECAlgorithm.
 */
export class RECAlgorithm extends algorithm('rec') {}

/**
 * Multi-step GRPO: GRPO on runs of several steps. Every step of a run has the advantage of the run's last step.
 *
 * Source: Trinity-RFT's MultiStepGRPOAlgorithm.
 */
export class MultiStepGRPOAlgorithm extends algorithm('multi_step_grpo') {}

/**
 * On-policy distillation: the advantage is a teacher's log-probability minus the policy's own.
 *
 * Source: arXiv 2306.13649; Trinity-RFT's OnPolicyDistillAlgorithm.
 */
export class OnPolicyDistillAlgorithm extends algorithm('on_policy_distill') {}

/**
 * JSD: on-policy distillation with the generalised Jensen-Shannon divergence.
 *
 * Source: arXiv 2306.13649; Trinity-RFT.
 */
export class JSDAlgorithm extends algorithm('jsd') {}

/** The classes of the algorithms, by the algorithms' names in Trinity-RFT. */
export const ALGORITHM_CLASSES = {
  sft: SFTAlgorithm,
  ppo: PPOAlgorithm,
  grpo: GRPOAlgorithm,
  reinforceplusplus: ReinforcePlusPlusAlgorithm,
  rloo: RLOOAlgorithm,
  opmd: OPMDAlgorithm,
  asymre: AsymREAlgorithm,
  dpo: DPOAlgorithm,
  topr: TOPRAlgorithm,
  cispo: CISPOAlgorithm,
  gspo: GSPOAlgorithm,
  sapo: SAPOAlgorithm,
  mix: MIXAlgorithm,
  mix_chord: MIXCHORDAlgorithm,
  raft: RAFTAlgorithm,
  sppo: sPPOAlgorithm,
  rec: RECAlgorithm,
  multi_step_grpo: MultiStepGRPOAlgorithm,
  on_policy_distill: OnPolicyDistillAlgorithm,
  jsd: JSDAlgorithm,
} satisfies { [N in Name]: AlgorithmClass };

for (const [name, row] of Object.entries(ALGORITHMS)) {
  const { config, ...constants }: AlgorithmRow = row;
  const cls = ALGORITHM_CLASSES[name as Name];
  Object.assign(cls, { algorithmName: name, ...USUAL, ...constants, defaults: Object.freeze({ ...config }) });
  Object.freeze(cls);
}
