// The values of a configuration: finds them by their paths, and describes them for errors.
import { describeValue } from '../../base/errors.js';
import { type ConfigObject, checkElements } from './text.js';

// The largest number of elements of a list that an error shows.
const MAX_SHOWN = 8;

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

/** Returns the paths of the keys in a section, whether nested or joined by dots. */
export function pathsIn(root: ConfigObject, section: string): string[] {
  const nested = find(root, section)?.value;
  const own = isSection(nested) ? Object.keys(nested).map((name) => `${section}.${name}`) : [];
  return [...own, ...Object.keys(root).filter((name) => name.startsWith(`${section}.`))];
}

function isSection(node: unknown): node is ConfigObject {
  return node !== null && typeof node === 'object' && !Array.isArray(node);
}
