// The entries of `policy-loss list`: every function and algorithm, described by its declaration.
import { toSnakeCase } from '../core/options.js';
import {
  ADVANTAGE_FN,
  ALGORITHM_TYPE,
  ENTROPY_LOSS_FN,
  KL_FN,
  POLICY_LOSS_FN,
  type RegisteredClass,
  type TrinityValue,
} from '../index.js';
import { helpOf } from './function-options.js';

/** The kinds of entries. */
export const KINDS = ['loss', 'advantage', 'kl', 'entropy', 'algorithm'] as const;
export type Kind = (typeof KINDS)[number];

/** One function or algorithm, as `--json` prints it. */
export interface CatalogueEntry {
  kind: Kind;
  name: string;
  /** The name of its class. */
  class: string;
  /** One line about what it computes. */
  about: string;
  /** Papers and projects, separated by commas. */
  source: string;
  /** A function's options in snake_case with their defaults (null if there is none), or an algorithm's functions. */
  options: Record<string, TrinityValue>;
  /** What each option of a function does. Absent for an algorithm, like the fields below. */
  help?: Record<string, string>;
  /** Further sentences about what a function computes. */
  details?: readonly string[];
  /** The batch keys that a function reads in addition to logprob. */
  reads?: readonly string[];
  /** The unit of each metric, and when the metric is present. */
  metrics?: Record<string, string>;
}

const REGISTRIES = {
  loss: POLICY_LOSS_FN,
  advantage: ADVANTAGE_FN,
  kl: KL_FN,
  entropy: ENTROPY_LOSS_FN,
} as const;

/** Returns all functions and algorithms, by kind. */
export function catalogue(): CatalogueEntry[] {
  return KINDS.flatMap((kind) =>
    kind === 'algorithm'
      ? ALGORITHM_TYPE.names().map(algorithmEntry)
      : REGISTRIES[kind].names().map((name) => functionEntry(kind, name)),
  );
}

function functionEntry(kind: Exclude<Kind, 'algorithm'>, name: string): CatalogueEntry {
  const cls: RegisteredClass<unknown> = REGISTRIES[kind].get(name);
  const { summary, details, source, options, reads, metrics } = cls.declaration!;
  const defaults = cls.defaultArgs();
  const settings = Object.entries(options).map(([option, declared]) => {
    const key = toSnakeCase(option);
    const value = defaults[key] ?? declared.default;
    return { key, value: value ?? null, help: helpOf(declared, value !== undefined, toSnakeCase) };
  });
  return {
    kind,
    name,
    class: cls.name,
    about: summary,
    source: source.join(', '),
    options: Object.fromEntries(settings.map(({ key, value }) => [key, value])),
    help: Object.fromEntries(settings.map(({ key, help }) => [key, help])),
    ...(details && { details }),
    reads,
    metrics: Object.fromEntries(
      Object.entries(metrics).map(([metric, { unit, when }]) => [
        metric,
        when === undefined ? unit : `${unit}, ${when}`,
      ]),
    ),
  };
}

function algorithmEntry(name: string): CatalogueEntry {
  const cls = ALGORITHM_TYPE.get(name);
  // These two settings are the trainer's; they do not change the objective.
  const { repeat_times, sample_strategy, ...functions } = cls.defaultConfig();
  return {
    kind: 'algorithm',
    name,
    class: cls.name,
    about: cls.summary,
    source: cls.source.join(', '),
    options: { ...functions },
  };
}
