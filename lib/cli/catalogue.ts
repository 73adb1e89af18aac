// What `policy-loss list` tells of every function and algorithm: what it is and where it is from, which classes do not
// know at run time. Their names, options and defaults they do, and nothing here repeats those.

import { fromTrinityArgs, toCamelCase, toSnakeCase } from '../core/options.js';
import {
  ADVANTAGE_FN,
  ALGORITHM_TYPE,
  type AlgorithmConfig,
  ENTROPY_LOSS_FN,
  KL_FN,
  POLICY_LOSS_FN,
  type RegisteredClass,
  type TrinityValue,
} from '../index.js';

/** The kinds of what there is. */
export const KINDS = ['loss', 'advantage', 'kl', 'entropy', 'algorithm'] as const;
export type Kind = (typeof KINDS)[number];

/** One function or algorithm. */
export interface CatalogueEntry {
  kind: Kind;
  name: string;
  /** The class's name. */
  class: string;
  /** What it is, in a line. */
  about: string;
  /** Papers by their numbers at arXiv, or whose it is. */
  source: string;
  /** Its options, snake_case; null: it has no default, and what there is without it is the function's business. */
  options: Record<string, TrinityValue>;
}

/** ℓ: a token's loss, A: its advantage, r: its ratio exp(logprob − old_logprob), δ: ref_logprob − logprob. */
export const SYMBOLS =
  'ℓ is the loss of a token, A its advantage, R the reward of its row, r = exp(logprob − old_logprob),\n' +
  'δ = ref_logprob − logprob.';

type About = readonly [about: string, source: string];

const TRINITY = 'Trinity-RFT';
const SCHULMAN = 'Schulman 2020';

const ABOUT: Record<Kind, Readonly<Record<string, About>>> = {
  loss: {
    ppo: ['ℓ = max(−A·r, −A·clip(r)), dual clip where A < 0', 'arXiv 1707.06347, 1912.09729'],
    gspo: ["PPO's on the mean ratio of the sequence", 'arXiv 2507.18071'],
    cispo: ['ℓ = −A·clip(r)·logprob, the ratio held constant', 'arXiv 2506.13585'],
    topr: ['ℓ = −α·A·logprob, α truncated to [0, 1] where A ≤ 0', 'arXiv 2503.14286'],
    sapo: ['ℓ = −A·gate(r)·logprob, a sigmoid gate', 'arXiv 2511.20347'],
    sppo: ['ℓ = −A·ln r while r is in range', TRINITY],
    rec: ['ℓ = −A·logprob with clip mode, weight and regularizer', 'arXiv 2509.24203'],
    opmd: ['ℓ = −A·logprob / (1 + τ)', 'arXiv 2505.17826'],
    sft: ['ℓ = −logprob', TRINITY],
    sft_is: ['ℓ = −logprob times p', TRINITY],
    sft_phi: ['ℓ = −logprob times p(1 − p)', 'arXiv 2508.11408'],
    importance_sampling: ['ℓ = −A·r', `${TRINITY}, Tinker`],
    dpo: ['−ln σ(β·margin) of pairs of rows', 'arXiv 2305.18290'],
    mix: ["PPO on the policy's own rows, SFT on experts'", 'arXiv 2505.17826'],
    mix_chord: ["MIX with the experts' share scheduled over steps", 'arXiv 2508.11408'],
  },
  advantage: {
    ppo: ['generalised advantage estimate, whitened', 'arXiv 1506.02438'],
    grpo: ['(R − mean) / std of the group', 'arXiv 2402.03300'],
    rloo: ["R − mean of the group's others", 'arXiv 2402.14740'],
    reinforce: ['R', TRINITY],
    reinforceplusplus: ['discounted reward to go, whitened', 'arXiv 2501.03262'],
    remax: ["reward to go − the greedy answer's", 'arXiv 2310.10505'],
    opmd: ['R − mean or soft maximum of the group', 'arXiv 2505.17826'],
    asymre: ['R − shifted mean of the group', 'arXiv 2506.20520'],
    rec: ['R − mean of the group, surplus negatives dropped if wanted', 'arXiv 2509.24203'],
    step_wise_grpo: ["GRPO's of a run's last reward, for all its steps", TRINITY],
    on_policy_distill: ["the teacher's − the policy's own log-probability", 'arXiv 2306.13649'],
    jsd: ['− generalised Jensen-Shannon divergence from the teacher', 'arXiv 2306.13649'],
  },
  kl: {
    none: ['0', TRINITY],
    k1: ['−δ', SCHULMAN],
    k2: ['δ² / 2', SCHULMAN],
    k3: ['e^δ − 1 − δ', SCHULMAN],
    low_var_kl: ['k3, clipped', 'verl'],
    abs: ['|δ|', 'verl'],
    corrected_k3: ['k3 times the clipped ratio to the old policy', TRINITY],
  },
  entropy: {
    default: ['the entropy of all rows', TRINITY],
    mix: ["the entropy of all but experts' rows", TRINITY],
    none: ['none', TRINITY],
  },
  algorithm: {
    sft: ['supervised fine-tuning on given answers', TRINITY],
    ppo: ["PPO with a critic's values", 'arXiv 1707.06347'],
    grpo: ['PPO on rewards normalised within groups', 'arXiv 2402.03300'],
    reinforceplusplus: ['PPO on whitened rewards to go, without a critic', 'arXiv 2501.03262'],
    rloo: ['PPO on rewards less those of the other answers', 'arXiv 2402.14740'],
    opmd: ['online policy mirror descent', 'arXiv 2505.17826'],
    asymre: ["OPMD's loss with a baseline that is shifted down", 'arXiv 2506.20520'],
    dpo: ['preferences between pairs of answers', 'arXiv 2305.18290'],
    topr: ['rewards as they are, and truncated ratios where they are bad', 'arXiv 2503.14286'],
    cispo: ["GRPO's advantages, and weights that are clipped", 'arXiv 2506.13585'],
    gspo: ["GRPO's advantages, and the ratios of sequences", 'arXiv 2507.18071'],
    sapo: ["GRPO's advantages, and a soft gate for clipping", 'arXiv 2511.20347'],
    mix: ["GRPO on the policy's own answers and SFT on experts'", 'arXiv 2505.17826'],
    mix_chord: ["MIX with the experts' share scheduled over the steps", 'arXiv 2508.11408'],
    raft: ["SFT on the best of the policy's own answers", 'arXiv 2304.06767'],
    sppo: ["OPMD's advantages, and log ratios while they are in range", TRINITY],
    rec: ['REINFORCE with clip modes, weights and regularizers', 'arXiv 2509.24203'],
    multi_step_grpo: ["runs of several steps, each with its last step's advantage", TRINITY],
    on_policy_distill: ["a teacher's log-probabilities less the policy's own", 'arXiv 2306.13649'],
    jsd: ['on-policy distillation by the Jensen-Shannon divergence', 'arXiv 2306.13649'],
  },
};

const REGISTRIES = {
  loss: POLICY_LOSS_FN,
  advantage: ADVANTAGE_FN,
  kl: KL_FN,
  entropy: ENTROPY_LOSS_FN,
} as const;

/** All that there is, kind by kind. */
export function catalogue(): CatalogueEntry[] {
  return KINDS.flatMap((kind) =>
    (kind === 'algorithm' ? ALGORITHM_TYPE : REGISTRIES[kind]).names().map((name): CatalogueEntry => {
      const [about, source] = ABOUT[kind][name] ?? ['', ''];
      const cls = kind === 'algorithm' ? ALGORITHM_TYPE.get(name) : REGISTRIES[kind].get(name);
      const options =
        kind === 'algorithm'
          ? functionsOf(ALGORITHM_TYPE.get(name).defaultConfig())
          : optionsOf(REGISTRIES[kind].get(name));
      return { kind, name, class: cls.name, about, source, options };
    }),
  );
}

// What a trainer does is no option here.
function functionsOf({
  repeat_times,
  sample_strategy,
  ...functions
}: AlgorithmConfig): Record<string, string> {
  return functions;
}

// A class asks for its options one by one: whoever is asked learns which there are, those without a default included.
function optionsOf(cls: RegisteredClass<unknown>): Record<string, TrinityValue> {
  const defaults = cls.defaultArgs();
  const asked = new Set<string>(Object.keys(defaults).map(toCamelCase));
  const options = new Proxy(fromTrinityArgs(defaults), {
    get(target, key) {
      if (typeof key === 'string') asked.add(key);
      return Reflect.get(target, key);
    },
  });
  new cls(options);
  asked.delete('backend');
  return Object.fromEntries(
    [...asked].map((key) => {
      const name = toSnakeCase(key);
      return [name, defaults[name] ?? null];
    }),
  );
}
