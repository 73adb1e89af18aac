// The values of a configuration, found by their paths and completed with the framework's defaults.
import { describeValue, LossError, type MessageText, unknownOption } from '../../base/errors.js';
import type { Framework, KeyType } from './framework.js';
import { type ConfigObject, checkElements, parseYaml } from './text.js';

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
    for (let steps = 0; typeof value === 'string' && (value.includes('${') || value === '???'); steps++) {
      const [, other, fallback] = INTERPOLATION.exec(value) ?? [];
      const found = other === undefined ? undefined : find(this.#root, other);
      const isKnown = this.#framework.keys.some((each) => each.path === other);
      if (other === undefined || steps > MAX_STEPS || (!found && fallback === undefined && !isKnown))
        throw new LossError('ERR_INVALID_OPTION', {
          at: `configuration of ${this.#framework.title}`,
          option: path,
          expected: 'a value, or the path of another one',
          received: describeValue(value),
          hint: 'Print the composed configuration, and use that',
        });
      value = found ? found.value : fallback === undefined ? this.#defaultOf(other) : parseYaml(fallback);
    }
    return value === undefined ? byDefault : value;
  }

  #check(path: string, type: KeyType, value: unknown): void {
    if (typeof type === 'string' ? isOfType(type, value) : type.includes(value as string)) return;
    const words = { boolean: 'true or false', number: 'a number', text: 'a text', list: 'a list' };
    throw this.error(path, typeof type === 'string' ? words[type] : `one of ${type.join(', ')}`);
  }
}

// `${path}` or `${oc.select:path,default}`.
const INTERPOLATION = /^\$\{(?:oc\.select:\s*)?([A-Za-z_][\w.]*)(?:\s*,\s*([^{}]*))?\}$/;
// The largest number of interpolations that refer to each other.
const MAX_STEPS = 16;
// The largest number of elements of a list that an error shows.
const MAX_SHOWN = 8;

function isOfType(type: Exclude<KeyType, readonly string[]>, value: unknown): boolean {
  if (type === 'list') return Array.isArray(value);
  if (type === 'text') return typeof value === 'string';
  return type === 'number' ? Number.isFinite(value) : typeof value === 'boolean';
}

function isSame(a: unknown, b: unknown): boolean {
  if (!Array.isArray(a) || !Array.isArray(b)) return a === b;
  return a.length === b.length && a.every((element, index) => element === b[index]);
}

/** Describes a value as a configuration file spells it. */
export function describeSetting(value: unknown): string {
  if (value === undefined) return 'nothing';
  if (value === null || typeof value === 'boolean' || typeof value === 'number') return String(value);
  const isShort =
    Array.isArray(value) && value.length <= MAX_SHOWN && value.every((each) => typeof each !== 'object');
  return isShort ? `[${value.map(describeSetting).join(', ')}]` : describeValue(value);
}

/**
 * Returns the value at a path, whose sections may be nested objects or joined by dots; undefined if there is none.
 * @throws LossError `ERR_INVALID_INPUT` for a list that is too long.
 */
export function find(node: unknown, path: string): { readonly value: unknown } | undefined {
  if (!isSection(node)) return undefined;
  if (Object.hasOwn(node, path)) {
    const value = node[path];
    if (Array.isArray(value)) checkElements(value);
    return { value };
  }
  for (let dot = path.indexOf('.'); dot > 0; dot = path.indexOf('.', dot + 1)) {
    const section = path.slice(0, dot);
    const found = Object.hasOwn(node, section) ? find(node[section], path.slice(dot + 1)) : undefined;
    if (found) return found;
  }
  return undefined;
}

// Returns the paths of the keys in a section, whether nested or joined by dots.
function pathsIn(root: ConfigObject, section: string): string[] {
  const nested = find(root, section)?.value;
  const own = isSection(nested) ? Object.keys(nested).map((name) => `${section}.${name}`) : [];
  return [...own, ...Object.keys(root).filter((name) => name.startsWith(`${section}.`))];
}

function isSection(node: unknown): node is ConfigObject {
  return node !== null && typeof node === 'object' && !Array.isArray(node);
}
