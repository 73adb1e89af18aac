// Reads the text of a configuration: YAML, JSON, or a training command with settings of the form path=value.
import { isScalar, Lexer, LineCounter, Parser, parseDocument, visit } from 'yaml';
import { brief, describeValue, LossError, shorten } from '../../base/errors.js';
import { isSetting, type Setting, settingsOf, settingsOfCommand } from './command.js';

/**
 * The maximum length of a configuration's text. Configurations have a few thousand characters.
 */
export const MAX_CONFIG_CHARACTERS = 2 ** 16;
const MAX_LEVELS = 64;
// The maximum number of elements of a list. An object that is not parsed from a text can claim to have 2^32 - 1.
const MAX_ELEMENTS = MAX_CONFIG_CHARACTERS;

/** The keys and values of a configuration. */
export type ConfigObject = Readonly<Record<string, unknown>>;

/**
 * Returns the keys and values of a configuration.
 * @param config the text, or the object that it parses to. A text may also be a training command with settings such as
 * `algorithm.gamma=1`, or only the settings, or a YAML list of them.
 * @throws LossError `ERR_INVALID_INPUT` for text that cannot be parsed or is too long or too deep, and for a value that
 * is not an object.
 */
export function readConfig(config: unknown): ConfigObject {
  if (typeof config === 'string') checkLength(config);
  const command = typeof config === 'string' ? settingsOfCommand(config) : undefined;
  if (command) return nested(command);
  const root = typeof config === 'string' ? parseYaml(config) : config;
  const listed = Array.isArray(root) ? settingsInList(root) : undefined;
  if (listed) return nested(listed);
  if (root === null || typeof root !== 'object' || Array.isArray(root))
    throw invalid('an object of keys', describeValue(root));
  return root as ConfigObject;
}

/**
 * Parses YAML, of which JSON is a part.
 * @throws LossError `ERR_INVALID_INPUT`
 */
export function parseYaml(text: string): unknown {
  checkLength(text);
  checkNesting(text);
  const lineCounter = new LineCounter();
  // With these two options, the parser would take time that grows with the square of the number of errors or keys.
  const document = parseDocument(text, { lineCounter, prettyErrors: false, uniqueKeys: false });
  const placeOf = (index: number) => {
    const { line, col } = lineCounter.linePos(index);
    return ` at line ${line}, column ${col}`;
  };
  const [error] = document.errors;
  if (error) throw notYaml(error.message + placeOf(error.pos[0]), error);
  visit(document, {
    Map(_, { items }) {
      const keys = new Set<unknown>();
      for (const { key } of items) {
        if (!isScalar(key)) continue;
        if (keys.has(key.value))
          throw notYaml(`the key ${brief(String(key.value))} twice${key.range ? placeOf(key.range[0]) : ''}`);
        keys.add(key.value);
      }
    },
  });
  try {
    return document.toJS();
  } catch (error) {
    throw notYaml((error as Error).message, error as Error);
  }
}

function checkLength(text: string): void {
  if (text.length > MAX_CONFIG_CHARACTERS)
    throw invalid(`a text of at most ${MAX_CONFIG_CHARACTERS} characters`, 'more');
}

/**
 * Checks the number of elements of a list.
 * @throws LossError `ERR_INVALID_INPUT`
 */
export function checkElements(list: readonly unknown[]): void {
  if (list.length > MAX_ELEMENTS)
    throw invalid(`lists of at most ${MAX_ELEMENTS} elements`, `${list.length}`);
}

/** Checks how deep the values in a YAML text are nested. The parser would overflow the stack for a deep one. */
function checkNesting(text: string): void {
  const parser = new Parser();
  for (const lexeme of new Lexer().lex(text)) {
    for (const _ of parser.next(lexeme));
    // Each level takes up to two places in the parser's stack.
    if (parser.stack.length > 2 * MAX_LEVELS) throw invalid(`YAML of at most ${MAX_LEVELS} levels`, 'more');
  }
}

/** Returns the settings that a list consists of, or undefined if none of its elements is one. */
function settingsInList(list: readonly unknown[]): Setting[] | undefined {
  checkElements(list);
  // Not map(), which skips the holes of a sparse array.
  const words = Array.from(list, (word) => (typeof word === 'string' ? word : describeValue(word)));
  return words.some(isSetting) ? settingsOf(words) : undefined;
}

/** Returns the keys that settings leave behind, in sections. */
function nested(settings: readonly Setting[]): ConfigObject {
  const root: Section = {};
  for (const { path, value } of settings) {
    const names = path.split('.');
    if (value === undefined) remove(root, names);
    else set(root, names, parsedValue(value));
  }
  return root;
}

type Section = Record<string, unknown>;

function set(root: Section, path: readonly string[], value: unknown): void {
  let node = root;
  for (const name of path.slice(0, -1)) {
    const section: Section = ownSection(node, name) ?? {};
    define(node, name, section);
    node = section;
  }
  define(node, path.at(-1)!, value);
}

function ownSection(node: unknown, name: string): Section | undefined {
  if (node === undefined || !Object.hasOwn(node as Section, name)) return undefined;
  const value = (node as Section)[name];
  return value !== null && typeof value === 'object' && !Array.isArray(value)
    ? (value as Section)
    : undefined;
}

// Defines a property instead of assigning to it, because `__proto__` must be a key like any other.
function define(node: Section, name: string, value: unknown): void {
  Object.defineProperty(node, name, { value, writable: true, enumerable: true, configurable: true });
}

function remove(root: Section, path: readonly string[]): void {
  let node: unknown = root;
  for (const name of path.slice(0, -1)) node = ownSection(node, name);
  if (node !== undefined) delete (node as Section)[path.at(-1)!];
}

/** Returns the value of a setting: a list or an object of Hydra, a number, a truth value, null or a text. */
function parsedValue(text: string): unknown {
  const value = text.trim();
  if (value === 'None' || value === 'NULL') return null;
  // In YAML, a space follows the colon.
  if (value.startsWith('{')) return parseYaml(value.replace(/([{,]\s*[\w.-]+):(?!\s)/g, '$1: '));
  const isYaml = /^\[|^(['"]).*\1$|^[\w.+~-]*$/s.test(value);
  return isYaml ? parseYaml(value) : value;
}

function notYaml(reason: string, error?: Error): LossError {
  return invalid('YAML', `text with an error: ${shorten(reason)}`, error);
}

function invalid(expected: string, received: string, cause?: Error): LossError {
  return new LossError('ERR_INVALID_INPUT', { at: 'configuration', expected, received }, { cause });
}
