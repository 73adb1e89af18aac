// A training framework's configurations: the keys with what each one sets, as data, and the settings of a configuration,
// completed with the framework's defaults.
import { describeValue, LossError, type MessageText, unknownOption } from '../../base/errors.js';
import type { FunctionArgs } from '../config.js';
import { type ConfigObject, parseYaml } from './text.js';
import { describeSetting, find, pathsIn } from './values.js';

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

/** The settings of a configuration. */
export class Settings {
  readonly #framework: Pick<Framework, 'title' | 'keys'>;
  readonly #root: ConfigObject;

  constructor(framework: Pick<Framework, 'title' | 'keys'>, root: ConfigObject) {
    this.#framework = framework;
    this.#root = root;
  }

  /** Returns whether the configuration has a value for the path, also if it is null. */
  has(path: string): boolean {
    return find(this.#root, path) !== undefined;
  }

  /**
   * Returns the value of a key, or the framework's default if the configuration has none.
   * @throws LossError `ERR_INVALID_OPTION` for a value of a wrong type, and for an interpolation that cannot be resolved.
   */
  get(path: string): unknown {
    const key = this.#framework.keys.find((each) => each.path === path)!;
    const value = this.#resolved(path, key.default);
    if (!('type' in key) || value === undefined || value === null) return value;
    const text = typeof value === 'object' ? undefined : String(value);
    const isSpelled = text !== undefined && key.spellings && Object.hasOwn(key.spellings, text);
    const spelled = isSpelled ? key.spellings[text] : value;
    this.#check(path, key.type, spelled);
    return spelled;
  }

  /** Returns the value of a key whose type is 'boolean'. null counts as false, as None does in Python. */
  isOn(path: string): boolean {
    return this.get(path) === true;
  }

  /** Returns the value of a key whose type is 'number' and which has a default, which also replaces null. */
  number(path: string): number {
    return (this.get(path) ?? this.#defaultOf(path)) as number;
  }

  /** Returns the value of a key whose type is 'text' or a list of words, and which has a default. */
  text(path: string): string {
    return (this.get(path) ?? this.#defaultOf(path)) as string;
  }

  /** Returns an error about a key. */
  error(path: string, expected: MessageText, hint?: string): LossError {
    return new LossError('ERR_INVALID_OPTION', {
      at: `configuration of ${this.#framework.title}`,
      option: path,
      expected,
      received: describeSetting(this.#resolved(path, undefined)),
      hint,
    });
  }

  /**
   * Refuses keys with an effect that is not supported.
   * @returns the first key that only has an effect on advantages, and prevents that they are computed.
   * @throws LossError `ERR_INVALID_OPTION` for the first key with another effect.
   */
  refuseUnsupported(): string | undefined {
    let obstacle: string | undefined;
    for (const key of this.#framework.keys) {
      if (!('neutral' in key)) continue;
      const value = this.get(key.path) ?? null;
      const isNeutral = value === null || key.neutral.some((each) => isSame(each, value));
      if (isNeutral || key.matters?.(this) === false) continue;
      if (!key.ofAdvantages) {
        const expected = `${key.neutral.map(describeSetting).join(' or ')}, because this package does not support ${key.effect}`;
        throw this.error(key.path, expected, key.hint);
      }
      obstacle ??= key.path;
    }
    return obstacle;
  }

  /**
   * Refuses keys that a closed section does not have.
   * @throws LossError `ERR_INVALID_OPTION` for the first unknown key.
   */
  refuseUnknown({ closed, inert = [] }: Pick<Framework, 'closed' | 'inert'>): void {
    for (const section of closed) {
      const known = [...this.#framework.keys.map(({ path }) => path), ...inert].filter((path) =>
        path.startsWith(`${section}.`),
      );
      for (const path of pathsIn(this.#root, section))
        if (
          !known.some((each) => each === path || path.startsWith(`${each}.`) || each.startsWith(`${path}.`))
        )
          throw unknownOption(`configuration of ${this.#framework.title}`, path, known);
    }
  }

  #defaultOf(path: string): unknown {
    return this.#framework.keys.find((each) => each.path === path)?.default;
  }

  // Returns a value, in which an interpolation of OmegaConf is replaced with the value that it names.
  #resolved(path: string, byDefault: unknown): unknown {
    let value: unknown = find(this.#root, path)?.value;
    for (
      let references = 0;
      typeof value === 'string' && (value.includes('${') || value === '???');
      references++
    ) {
      const [, other, fallback] = INTERPOLATION.exec(value) ?? [];
      const found = other === undefined ? undefined : find(this.#root, other);
      const isKnown = this.#framework.keys.some((each) => each.path === other);
      if (
        other === undefined ||
        references > MAX_REFERENCES ||
        (!found && fallback === undefined && !isKnown)
      )
        throw new LossError('ERR_INVALID_OPTION', {
          at: `configuration of ${this.#framework.title}`,
          option: path,
          expected: 'a value, or the path of another one',
          received: describeValue(value),
          hint: 'Print the composed configuration, and use that',
        });
      value = found
        ? found.value
        : fallback === undefined
          ? this.#defaultOf(other)
          : parseYaml(fallback.trim());
    }
    return value === undefined ? byDefault : value;
  }

  #check(path: string, type: KeyType, value: unknown): void {
    if (typeof type === 'string' ? isOfType(type, value) : type.includes(value as string)) return;
    const words = { boolean: 'true or false', number: 'a number', text: 'a text', list: 'a list' };
    throw this.error(path, typeof type === 'string' ? words[type] : `one of ${type.join(', ')}`);
  }
}

// `${path}` or `${oc.select:path,default}`. Looking up a path takes time that grows with the square of its length.
const INTERPOLATION = /^\$\{(?:oc\.select:\s*)?([A-Za-z_][\w.]{0,199})(?:\s*,([^{}]*))?\}$/;
// The largest number of interpolations that refer to each other.
const MAX_REFERENCES = 16;

function isOfType(type: Exclude<KeyType, readonly string[]>, value: unknown): boolean {
  if (type === 'list') return Array.isArray(value);
  if (type === 'text') return typeof value === 'string';
  return type === 'number' ? Number.isFinite(value) : typeof value === 'boolean';
}

function isSame(a: unknown, b: unknown): boolean {
  if (!Array.isArray(a) || !Array.isArray(b)) return a === b;
  return a.length === b.length && a.every((element, index) => element === b[index]);
}
