// What the configurations of a training framework consist of, as data: its keys, what each one sets, and its default.
import type { FunctionArgs } from '../config.js';
import type { Settings } from './settings.js';

/** The type of a key's value, or the words that are valid values. */
export type KeyType = 'boolean' | 'number' | 'text' | 'list' | readonly string[];

/** What all keys have. */
interface AnyKey {
  /** The sections and the key, separated by dots. */
  readonly path: string;
  /** The framework's own default; undefined if absent and null mean the same. */
  readonly default?: unknown;
  /** Whether another framework has a key of this path, so that the key does not tell the framework. */
  readonly shared?: true;
}

/** A key that sets the argument of this name of the policy loss. It has no effect on losses without such an argument. */
export interface LossKey extends AnyKey {
  readonly loss: string;
}

/** A key that sets the argument of this name of the advantage function, if the function has such an argument. */
export interface AdvantageKey extends AnyKey {
  readonly advantage: string;
}

/** A key that the framework's plan() reads. */
export interface ReadKey extends AnyKey {
  readonly type: KeyType;
  /** Other spellings of values, as texts. */
  readonly spellings?: Readonly<Record<string, unknown>>;
  /** What the key sets, for the documentation: without a full stop. */
  readonly sets: string;
}

/** A key that has an effect on the loss, and is supported only with values without that effect. */
export interface NeutralKey extends AnyKey {
  readonly neutral: readonly unknown[];
  /** What the effect is, for the documentation: without a full stop. */
  readonly effect: string;
  /** What to do instead, for the error: a sentence without its full stop. */
  readonly hint?: string;
  /** Whether the key only has an effect on advantages, which do not matter if the batch has them. */
  readonly ofAdvantages?: true;
  /** Whether the key has its effect with the other settings; always if absent. */
  readonly matters?: (settings: Settings) => boolean;
}

/** A key that has an effect on the loss. */
export type ConfigKey = LossKey | AdvantageKey | ReadKey | NeutralKey;

/** The functions of the objective that a configuration describes. */
export interface Plan {
  /** The registry name of the policy loss. */
  readonly policyLoss: string;
  /** Arguments of the policy loss in addition to those that keys set. They replace those of the same name. */
  readonly lossArgs?: FunctionArgs;
  /**
   * The advantage function, or the key because of which this package cannot compute the advantages. The batch then must
   * have them. undefined if the policy loss reads none.
   */
  readonly advantage?:
    | { readonly name: string; readonly args?: FunctionArgs }
    | { readonly obstacle: string };
  readonly klLoss?: { readonly name: string; readonly coef: number } | undefined;
  readonly entropyCoef?: number;
  readonly klPenalty?: { readonly name: string; readonly args: FunctionArgs } | undefined;
  /** How the KL loss and the entropy loss are aggregated. */
  readonly lossAggMode?: string;
  readonly lossScaleFactor?: number | undefined;
}

/** A training framework, or one of its trainers. */
export interface Framework {
  /** The name by which fromConfig() and the command line know it. */
  readonly name: string;
  /** The name in messages and in the documentation. */
  readonly title: string;
  /** The release from which keys and defaults were taken. */
  readonly release: string;
  readonly keys: readonly ConfigKey[];
  /** Sections in which every key has an effect. Keys that are not in `keys` are errors there. */
  readonly closed: readonly string[];
  /** Paths in the closed sections that are accepted and have no effect. */
  readonly inert?: readonly string[];
  /** Paths without effect that only configurations of this framework have. */
  readonly marks: readonly string[];
  /** The values of the key `loss_type` that only this framework has. */
  readonly lossTypes?: readonly unknown[];
  /** The base configurations that `defaults` may name, because they hold the framework's defaults. */
  readonly bases: readonly string[];
  plan(settings: Settings): Plan;
}
