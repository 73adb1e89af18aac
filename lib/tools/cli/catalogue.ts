// The entries of `policy-loss list`: every function and algorithm, described by its declaration.
import { toSnakeCase } from '../../base/options.js';
import {
  ADVANTAGE_FN,
  ALGORITHM_TYPE,
  CORRECTION_FN,
  ENTROPY_LOSS_FN,
  KL_FN,
  LOGITS_LOSS_FN,
  POLICY_LOSS_FN,
  REWARD_LOSS_FN,
  type RegisteredClass,
  type TrinityValue,
  VALUE_LOSS_FN,
} from '../../index.js';
import { frameworkOf } from '../../losses/frameworks.js';
import { helpOf } from './function-options.js';

/** The kinds of entries in the list: eight kinds of functions, and algorithms. */
export const KINDS = [
  'loss',
  'value',
  'reward',
  'logits',
  'correction',
  'advantage',
  'kl',
  'entropy',
  'algorithm',
] as const;
export type Kind = (typeof KINDS)[number];

/** An entry of the list: one function or algorithm. `--json` prints it in this form. */
export interface CatalogueEntry {
  kind: Kind;
  name: string;
  /** The name of the class that implements it. */
  class: string;
  /** One line that says what it computes. */
  about: string;
  /** The papers and projects that it follows, separated by commas. */
  source: string;
  /** The framework whose arithmetic it has. */
  framework: string;
  /** Further names of the function; absent if there are none. */
  aliases?: readonly string[];
  /** What the function does differently from others of similar names, by their names; absent if there are none. */
  unlike?: Readonly<Record<string, string>>;
  /**
   * For a function: the default of each option, keyed by option name in snake_case; null if the option has no default.
   * For an algorithm: the names of its functions, keyed by configuration key.
   */
  options: Record<string, TrinityValue>;
  /**
   * What each option of the function does, keyed by option name. Algorithm entries have neither this field nor those
   * below.
   */
  help?: Record<string, string>;
  /** Sentences that explain in detail what a function computes; absent if there are none. */
  details?: readonly string[];
  /** The batch keys that a function reads in addition to logprob, or to values, rewards or logits in a loss of these. */
  reads?: readonly string[];
  /**
   * The unit of each metric of the function, keyed by metric name. If a metric is not always present, the text also
   * says when it is.
   */
  metrics?: Record<string, string>;
}

const REGISTRIES = {
  loss: POLICY_LOSS_FN,
  value: VALUE_LOSS_FN,
  reward: REWARD_LOSS_FN,
  logits: LOGITS_LOSS_FN,
  correction: CORRECTION_FN,
  advantage: ADVANTAGE_FN,
  kl: KL_FN,
  entropy: ENTROPY_LOSS_FN,
} as const;

/** Returns the entries of all functions and algorithms, grouped by kind. */
export function catalogue(): CatalogueEntry[] {
  return KINDS.flatMap((kind) =>
    kind === 'algorithm'
      ? ALGORITHM_TYPE.names().map(algorithmEntry)
      : REGISTRIES[kind].names().map((name) => functionEntry(kind, name)),
  );
}

function functionEntry(kind: Exclude<Kind, 'algorithm'>, name: string): CatalogueEntry {
  const cls: RegisteredClass<unknown> = REGISTRIES[kind].get(name);
  const { summary, details, source, unlike, options, reads, metrics } = cls.declaration!;
  const aliases = [...REGISTRIES[kind].aliases()].filter(([, of]) => of === name).map(([alias]) => alias);
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
    framework: frameworkOf(cls.declaration!),
    ...(aliases.length > 0 && { aliases }),
    ...(unlike && { unlike }),
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
  // repeat_times and sample_strategy are settings of the trainer. They do not change the objective.
  const { repeat_times, sample_strategy, ...functions } = cls.defaultConfig();
  return {
    kind: 'algorithm',
    name,
    class: cls.name,
    about: cls.summary,
    source: cls.source.join(', '),
    framework: 'Trinity-RFT',
    options: { ...functions },
  };
}

/** Returns a text for each function of a similar name that says what this one does differently. */
export function differencesOf(unlike: CatalogueEntry['unlike'] = {}): string[] {
  return Object.entries(unlike).map(([name, what]) => `differs from ${name}: ${what}`);
}
