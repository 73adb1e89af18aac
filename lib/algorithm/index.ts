// The algorithms and their registry.
import { describeValue, LossError, unknownName } from '../core/errors.js';
import type { AlgorithmClass } from './algorithm-type.js';
import { AsymREAlgorithm } from './asymre.js';
import { CISPOAlgorithm } from './cispo.js';
import { DPOAlgorithm } from './dpo.js';
import { GRPOAlgorithm } from './grpo.js';
import { GSPOAlgorithm } from './gspo.js';
import { JSDAlgorithm } from './jsd.js';
import { MIXAlgorithm } from './mix.js';
import { MIXCHORDAlgorithm } from './mix-chord.js';
import { MultiStepGRPOAlgorithm } from './multi-step-grpo.js';
import { OnPolicyDistillAlgorithm } from './on-policy-distill.js';
import { OPMDAlgorithm } from './opmd.js';
import { PPOAlgorithm } from './ppo.js';
import { RAFTAlgorithm } from './raft.js';
import { RECAlgorithm } from './rec.js';
import { ReinforcePlusPlusAlgorithm } from './reinforce-plus-plus.js';
import { RLOOAlgorithm } from './rloo.js';
import { SAPOAlgorithm } from './sapo.js';
import { SFTAlgorithm } from './sft.js';
import { sPPOAlgorithm } from './sppo.js';
import { TOPRAlgorithm } from './topr.js';

/** Algorithms by name. */
export class AlgorithmRegistry {
  readonly #classes: Map<string, AlgorithmClass>;

  constructor(classes: Readonly<Record<string, AlgorithmClass>>) {
    this.#classes = new Map(Object.entries(classes));
  }

  /**
   * The algorithm of that name.
   * @throws LossError `ERR_UNKNOWN_NAME`, with the names there are and the nearest.
   */
  get(name: string): AlgorithmClass {
    const cls = this.#classes.get(name);
    if (!cls) throw unknownName('ERR_UNKNOWN_NAME', 'algorithm', name, this.names());
    return cls;
  }

  /** The names there are. */
  names(): string[] {
    return [...this.#classes.keys()];
  }

  /** Makes an algorithm of one's own known under a name, or replaces the one that has it. */
  register(name: string, cls: AlgorithmClass): void {
    if (typeof name !== 'string' || typeof cls !== 'function')
      throw new LossError(
        'ERR_INVALID_INPUT',
        `register: expected a name and a class, not ${describeValue(name)} and ${describeValue(cls)}`,
      );
    this.#classes.set(name, cls);
  }
}

/** The algorithms by Trinity-RFT's names. */
export const ALGORITHM_TYPE = new AlgorithmRegistry({
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
});
