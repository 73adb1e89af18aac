// An algorithm's configuration: Trinity-RFT's keys, and their checks.
import { describeValue, LossError, type LossErrorDetails, unknownOption } from '../core/errors.js';
import { toCamelCase, toSnakeCase } from '../core/options.js';

/** Arguments of one function of an algorithm, with names in snake_case or camelCase. */
export type FunctionArgs = Readonly<Record<string, unknown>>;

/**
 * An objective's functions and their arguments, under Trinity-RFT's names or these names in camelCase. A key that is
 * absent or null comes from the algorithm's default configuration, and an argument from its function's defaults.
 */
export interface ObjectiveConfig {
  /** A name of {@link POLICY_LOSS_FN}. */
  policy_loss_fn?: string | null;
  /** The policy loss's arguments. */
  policy_loss_fn_args?: FunctionArgs | null;
  /** A name of {@link ADVANTAGE_FN}. */
  advantage_fn?: string | null;
  /** The advantage function's arguments. */
  advantage_fn_args?: FunctionArgs | null;
  /** A name of {@link KL_FN}, for the KL loss. */
  kl_loss_fn?: string | null;
  /** The KL loss's arguments. */
  kl_loss_fn_args?: FunctionArgs | null;
  /** A name of {@link KL_FN}, for the KL penalty that is subtracted from rewards. */
  kl_penalty_fn?: string | null;
  /** The KL penalty's arguments. */
  kl_penalty_fn_args?: FunctionArgs | null;
  /** A name of {@link ENTROPY_LOSS_FN}. */
  entropy_loss_fn?: string | null;
  /** The entropy loss's arguments. */
  entropy_loss_fn_args?: FunctionArgs | null;
  /** Aggregation of the KL and entropy loss, and of the policy loss if its own arguments do not set one. */
  loss_agg_mode?: string | null;
  /** The training framework whose batch keys are accepted in addition to Trinity's; 'verl' by default. */
  backend?: string | null;
  [key: string]: unknown;
}

/** An algorithm's default configuration, under Trinity-RFT's names. */
export interface AlgorithmConfig {
  /** A name of {@link POLICY_LOSS_FN}. */
  policy_loss_fn: string;
  /** A name of {@link ADVANTAGE_FN}; absent if the loss reads no advantages. */
  advantage_fn?: string;
  /** A name of {@link KL_FN}, for the penalty in the rewards; absent means none. */
  kl_penalty_fn?: string;
  /** A name of {@link KL_FN}, for the KL loss; absent means none. */
  kl_loss_fn?: string;
  /** A name of {@link ENTROPY_LOSS_FN}; absent means none. */
  entropy_loss_fn?: string;
  /** The number of answers to each prompt. */
  repeat_times?: number;
  /** How the trainer samples its batches. */
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
/** The trainer's keys in the same section. They are accepted and do not affect the objective. */
export const TRAINER_KEYS = ['repeat_times', 'optimizer', 'sample_strategy', 'sample_strategy_args'] as const;
const OBJECTIVE_KEYS: readonly string[] = [...FUNCTION_KEYS, ...ARGS_KEYS, 'loss_agg_mode'];
// Keys whose values are names, in addition to the keys of functions.
const NAME_KEYS: readonly string[] = ['backend', 'algorithm_type'];

/** A configuration under Trinity's names, without null values. */
export type CheckedConfig = {
  [K in (typeof FUNCTION_KEYS)[number]]?: string;
} & { [K in (typeof ARGS_KEYS)[number]]?: FunctionArgs } & {
  loss_agg_mode?: string;
  backend?: string;
  algorithm_type?: string;
};

/**
 * Checks a configuration's keys and the types of its values.
 * @param owner names the configuration in messages, such as 'objective of grpo'.
 * @param further keys that are accepted in addition to an objective's.
 * @throws LossError `ERR_INVALID_OPTION` naming every unknown key, or the first value of a wrong type.
 */
export function checkConfigKeys(owner: string, config: unknown, further: readonly string[]): CheckedConfig {
  if (config === null || typeof config !== 'object' || Array.isArray(config))
    throw invalid({
      at: owner,
      expected: 'an object of configuration keys',
      received: describeValue(config),
    });
  const known = [...OBJECTIVE_KEYS, ...further];
  const checked: Record<string, unknown> = {};
  const unknown: string[] = [];
  for (const [key, value] of Object.entries(config)) {
    const name = known.find((k) => k === key || toCamelCase(k) === key);
    if (name === undefined) unknown.push(key);
    else if (value !== null && value !== undefined) checked[name] = checkValue(owner, name, value);
  }
  if (unknown.length === 1) throw unknownOption(owner, unknown[0]!, known);
  if (unknown.length > 1)
    throw invalid({
      at: `${owner}: unknown keys`,
      expected: `keys among ${known.join(', ')}`,
      received: unknown.map(describeValue).join(', '),
    });
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

/** Returns whether arguments contain `key`, in snake_case or camelCase. */
export function names(args: FunctionArgs | undefined, key: string): boolean {
  return Object.keys(args ?? {}).some((name) => toSnakeCase(name) === key);
}
