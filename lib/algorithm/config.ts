// What an algorithm is made of: Trinity-RFT's configuration keys, under either spelling, checked.
import { describeValue, LossError, unknownName } from '../core/errors.js';
import { toCamelCase, toSnakeCase } from '../core/options.js';

/** Arguments of one of an algorithm's functions, snake_case or camelCase. */
export type FunctionArgs = Readonly<Record<string, unknown>>;

/**
 * What an objective is made of, under Trinity-RFT's names; camelCase is taken too. What is left out (or null) comes from
 * the algorithm's default configuration, and arguments from the function's own defaults.
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
  /** A name of {@link KL_FN}: the loss that is added. */
  kl_loss_fn?: string | null;
  /** The KL loss's arguments. */
  kl_loss_fn_args?: FunctionArgs | null;
  /** A name of {@link KL_FN}: the penalty in the rewards that advantages are made of. */
  kl_penalty_fn?: string | null;
  /** The KL penalty's arguments. */
  kl_penalty_fn_args?: FunctionArgs | null;
  /** A name of {@link ENTROPY_LOSS_FN}. */
  entropy_loss_fn?: string | null;
  /** The entropy loss's arguments. */
  entropy_loss_fn_args?: FunctionArgs | null;
  /** Of the KL and entropy loss, and of the policy loss unless its own arguments name one. */
  loss_agg_mode?: string | null;
  /** Whose names the batch's keys may have, beside Trinity's; 'verl' by default. */
  backend?: string | null;
  [key: string]: unknown;
}

/** An algorithm's default configuration, under Trinity-RFT's names. */
export interface AlgorithmConfig {
  /** A name of {@link POLICY_LOSS_FN}. */
  policy_loss_fn: string;
  /** A name of {@link ADVANTAGE_FN}; absent where the loss reads no advantages. */
  advantage_fn?: string;
  /** A name of {@link KL_FN}, of the penalty in the rewards; absent: none. */
  kl_penalty_fn?: string;
  /** A name of {@link KL_FN}, of the loss that is added; absent: none. */
  kl_loss_fn?: string;
  /** A name of {@link ENTROPY_LOSS_FN}; absent: none. */
  entropy_loss_fn?: string;
  /** Answers for each prompt. */
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
/** The trainer's own keys of the same section: taken, and of no effect on the objective. */
export const TRAINER_KEYS = ['repeat_times', 'optimizer', 'sample_strategy', 'sample_strategy_args'] as const;
const OBJECTIVE_KEYS: readonly string[] = [...FUNCTION_KEYS, ...ARGS_KEYS, 'loss_agg_mode'];

/** A configuration under Trinity's names with what is null left out. */
export type CheckedConfig = {
  [K in (typeof FUNCTION_KEYS)[number]]?: string;
} & { [K in (typeof ARGS_KEYS)[number]]?: FunctionArgs } & { loss_agg_mode?: string; backend?: string };

/**
 * Checks a configuration's keys and types.
 * @param owner whose it is, for messages.
 * @param further keys that are taken beside an objective's own.
 * @throws LossError `ERR_INVALID_OPTION` naming every unknown key, or the value of a wrong type.
 */
export function checkConfigKeys(owner: string, config: unknown, further: readonly string[]): CheckedConfig {
  if (config === null || typeof config !== 'object' || Array.isArray(config))
    throw invalid(`${owner}: expected an object of configuration keys, not ${describeValue(config)}`);
  const known = [...OBJECTIVE_KEYS, ...further];
  const checked: Record<string, unknown> = {};
  const unknown: string[] = [];
  for (const [key, value] of Object.entries(config)) {
    const name = known.find((k) => k === key || toCamelCase(k) === key);
    if (name === undefined) unknown.push(key);
    else if (value !== null && value !== undefined) checked[name] = checkValue(owner, name, value);
  }
  if (unknown.length === 1) throw unknownName('ERR_INVALID_OPTION', `key of ${owner}`, unknown[0]!, known);
  if (unknown.length > 1)
    throw invalid(
      `unknown keys of ${owner}: ${unknown.map((key) => `'${key}'`).join(', ')}; known are ${known.join(', ')}`,
    );
  return checked as CheckedConfig;
}

function checkValue(owner: string, name: string, value: unknown): unknown {
  if (ARGS_KEYS.includes(name as (typeof ARGS_KEYS)[number])) {
    if (typeof value !== 'object' || Array.isArray(value))
      throw invalid(`${owner}: ${name} must be an object of arguments, not ${describeValue(value)}`);
  } else if (OBJECTIVE_KEYS.includes(name) || name === 'backend' || name === 'algorithm_type') {
    if (typeof value !== 'string')
      throw invalid(`${owner}: ${name} must be a name, not ${describeValue(value)}`);
  }
  return value;
}

function invalid(message: string): LossError {
  return new LossError('ERR_INVALID_OPTION', message);
}

/** Whether arguments name something, under either spelling. */
export function names(args: FunctionArgs | undefined, key: string): boolean {
  return Object.keys(args ?? {}).some((name) => toSnakeCase(name) === key);
}
