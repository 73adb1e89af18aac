// The configuration of an algorithm, which has the same keys as in Trinity-RFT, and the check of such a configuration.
import { describeValue, LossError, type LossErrorDetails, shorten, unknownOption } from '../base/errors.js';
import { type CamelCase, type LossAggMode, toCamelCase, toSnakeCase } from '../base/options.js';
import type { EntropyLossOptions } from '../losses/entropy.js';
import type { Advantages, EntropyLosses, KLFunctions, PolicyLosses } from '../losses/index.js';
import type { KLOptions } from '../losses/kl-fn.js';
import type { ArgsOf, NameIn } from '../losses/statement.js';

/** The arguments of one function, such as a policy loss, by their names in snake_case or camelCase. */
export type FunctionArgs = Readonly<Record<string, unknown>>;

/** The functions of an objective, and their arguments, under Trinity-RFT's names (snake_case). */
export interface TrinityObjectiveConfig {
  /** The name of a policy loss in {@link POLICY_LOSS_FN}. */
  policy_loss_fn?: NameIn<PolicyLosses> | null;
  /** The policy loss's arguments. */
  policy_loss_fn_args?: FunctionArgs | null;
  /** The name of an advantage function in {@link ADVANTAGE_FN}. */
  advantage_fn?: NameIn<Advantages> | null;
  /** The advantage function's arguments. */
  advantage_fn_args?: FunctionArgs | null;
  /** The name, in {@link KL_FN}, of the KL function that computes the KL loss. */
  kl_loss_fn?: NameIn<KLFunctions> | null;
  /** The KL loss's arguments. */
  kl_loss_fn_args?: ArgsOf<Omit<KLOptions, 'backend'>> | null;
  /** The name, in {@link KL_FN}, of the KL function whose penalty is subtracted from the rewards. */
  kl_penalty_fn?: NameIn<KLFunctions> | null;
  /** The KL penalty's arguments. */
  kl_penalty_fn_args?: ArgsOf<Omit<KLOptions, 'backend'>> | null;
  /** The name of an entropy loss in {@link ENTROPY_LOSS_FN}. */
  entropy_loss_fn?: NameIn<EntropyLosses> | null;
  /** The entropy loss's arguments. */
  entropy_loss_fn_args?: ArgsOf<Omit<EntropyLossOptions, 'backend'>> | null;
  /**
   * How the KL loss and the entropy loss are aggregated. A policy loss that has the option loss_agg_mode gets this
   * value too, unless its own arguments set the option.
   */
  loss_agg_mode?: LossAggMode | (string & {}) | null;
  /** The training framework whose batch keys are accepted in addition to Trinity's; 'verl' by default. */
  backend?: string | null;
  /** Only concerns a trainer and does not affect the objective. */
  repeat_times?: number | null;
  /** Only concerns a trainer and does not affect the objective. */
  optimizer?: unknown;
  /** Only concerns a trainer and does not affect the objective. */
  sample_strategy?: string | null;
  /** Only concerns a trainer and does not affect the objective. */
  sample_strategy_args?: FunctionArgs | null;
}

/**
 * The functions of an objective, and their arguments. The keys are Trinity-RFT's names (snake_case) or the same names
 * in camelCase. If a key is absent or null, the algorithm's default configuration applies. If an argument is absent,
 * the function's own default applies.
 */
export interface ObjectiveConfig extends TrinityObjectiveConfig, CamelCased<TrinityObjectiveConfig> {}

type CamelCased<T> = { [K in keyof T & string as CamelCase<K>]?: T[K] };

/** The default configuration of an algorithm, under Trinity-RFT's keys. */
export interface AlgorithmConfig {
  /** The name of a policy loss in {@link POLICY_LOSS_FN}. */
  policy_loss_fn: string;
  /** The name of an advantage function in {@link ADVANTAGE_FN}; absent if the policy loss reads no advantages. */
  advantage_fn?: string;
  /**
   * The name, in {@link KL_FN}, of the KL function whose penalty is subtracted from the rewards; absent if there is no
   * penalty.
   */
  kl_penalty_fn?: string;
  /** The name, in {@link KL_FN}, of the KL function that computes the KL loss; absent if there is no KL loss. */
  kl_loss_fn?: string;
  /** The name of the entropy loss in {@link ENTROPY_LOSS_FN}. Without it, the objective has no entropy loss. */
  entropy_loss_fn?: string;
  /** The number of answers that are sampled for each prompt. */
  repeat_times?: number;
  /** The name of the strategy by which the trainer samples its batches. */
  sample_strategy?: string;
}

const FUNCTION_KEYS = [
  'policy_loss_fn',
  'advantage_fn',
  'kl_loss_fn',
  'kl_penalty_fn',
  'entropy_loss_fn',
] as const;
const ARGS_KEYS = FUNCTION_KEYS.map((key) => `${key}_args` as const);
/** Keys of the `algorithm` section that only concern a trainer. They are accepted, but do not affect the objective. */
export const TRAINER_KEYS = ['repeat_times', 'optimizer', 'sample_strategy', 'sample_strategy_args'] as const;
/** Keys of the `algorithm` section that describe the objective. */
export const OBJECTIVE_KEYS: readonly string[] = [...FUNCTION_KEYS, ...ARGS_KEYS, 'loss_agg_mode'];
// Keys outside OBJECTIVE_KEYS whose values must be names, that is, strings.
const NAME_KEYS: readonly string[] = ['backend', 'algorithm_type'];

/** A configuration as checkConfigKeys() returns it: under Trinity-RFT's keys (snake_case), and without null values. */
export type CheckedConfig = {
  [K in (typeof FUNCTION_KEYS)[number]]?: string;
} & { [K in (typeof ARGS_KEYS)[number]]?: FunctionArgs } & {
  loss_agg_mode?: string;
  backend?: string;
  algorithm_type?: string;
};

/**
 * Checks the keys of a configuration and the types of its values. Returns it under Trinity-RFT's keys (snake_case),
 * without null values.
 * @param owner what the configuration is for, such as 'objective of grpo'. Error messages name it.
 * @param further keys that are accepted in addition to the keys of an objective.
 * @throws LossError `ERR_INVALID_OPTION` for a configuration that is not an object, for unknown keys (the message names
 * all of them), or for the first value of a wrong type.
 */
export function checkConfigKeys(owner: string, config: unknown, further: readonly string[]): CheckedConfig {
  if (config === null || typeof config !== 'object' || Array.isArray(config))
    throw invalid({
      at: owner,
      expected: 'an object of configuration keys',
      received: describeValue(config),
    });
  const known = [...OBJECTIVE_KEYS, ...further];
  const given = Object.entries(config).map(
    ([key, value]) => [known.find((k) => k === key || toCamelCase(k) === key), value, key] as const,
  );
  const unknown = given.flatMap(([name, , key]) => (name === undefined ? key : []));
  if (unknown.length === 1) throw unknownOption(owner, unknown[0]!, known);
  if (unknown.length > 1)
    throw invalid({
      at: `${owner}: unknown keys`,
      expected: `keys among ${known.join(', ')}`,
      received: shorten(unknown.map(describeValue).join(', ')),
    });
  const checked: Record<string, unknown> = {};
  for (const [name, value] of given)
    if (value !== null && value !== undefined) checked[name!] = checkValue(owner, name!, value);
  return checked as CheckedConfig;
}

function checkValue(owner: string, name: string, value: unknown): unknown {
  const isArgs = ARGS_KEYS.includes(name as (typeof ARGS_KEYS)[number]);
  const isName = !isArgs && (OBJECTIVE_KEYS.includes(name) || NAME_KEYS.includes(name));
  const wrong = isArgs
    ? typeof value !== 'object' || Array.isArray(value)
    : isName && typeof value !== 'string';
  if (wrong)
    throw invalid({
      at: owner,
      option: name,
      expected: isArgs ? 'an object of arguments' : 'a name',
      received: describeValue(value),
    });
  return value;
}

function invalid(details: LossErrorDetails): LossError {
  return new LossError('ERR_INVALID_OPTION', details);
}

/**
 * Returns whether the arguments contain `key`. `key` is in snake_case, the arguments may be in snake_case or camelCase.
 */
export function names(args: FunctionArgs | undefined, key: string): boolean {
  return Object.keys(args ?? {}).some((name) => toSnakeCase(name) === key);
}
