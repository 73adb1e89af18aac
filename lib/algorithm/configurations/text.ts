// Reads the text of a configuration: YAML, JSON, or settings of the form path=value as on a trainer's command line.
import { isScalar, Lexer, LineCounter, Parser, parseDocument, visit } from 'yaml';
import { brief, describeValue, LossError, shorten } from '../../base/errors.js';

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
 * @param config the text, or the object that it parses to. A text may also consist of words such as
 * `algorithm.gamma=1`, or of a YAML list of them.
 * @throws LossError `ERR_INVALID_INPUT` for text that cannot be parsed or is too long or too deep, and for a value that
 * is not an object.
 */
export function readConfig(config: unknown): ConfigObject {
  const root = typeof config === 'string' ? parseYaml(config) : config;
  const nested = asOverrides(root) ?? root;
  if (nested === null || typeof nested !== 'object' || Array.isArray(nested))
    throw invalid('an object of keys', describeValue(nested));
  return nested as ConfigObject;
}

/**
 * Parses YAML, of which JSON is a part.
 * @throws LossError `ERR_INVALID_INPUT`
 */
export function parseYaml(text: string): unknown {
  if (text.length > MAX_CONFIG_CHARACTERS)
    throw invalid(`YAML of at most ${MAX_CONFIG_CHARACTERS} characters`, 'more');
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

// A setting as Hydra takes it: `path=value`, or with a sign that adds the path.
const OVERRIDE = /^\+{0,2}([A-Za-z_][\w.]*)=(.*)$/s;

/** Returns the keys that the settings of a command line set, or undefined if the value does not consist of settings. */
function asOverrides(root: unknown): ConfigObject | undefined {
  const words =
    typeof root === 'string' ? root.split(/\s+/).filter((word) => !['', '\\'].includes(word)) : root;
  if (!Array.isArray(words) || words.length === 0) return undefined;
  checkElements(words);
  // Not map(), which skips the holes of a sparse array.
  const settings = Array.from(words, (word) => (typeof word === 'string' ? OVERRIDE.exec(word) : null));
  if (settings.includes(null)) return undefined;
  const nested: Section = {};
  for (const match of settings) set(nested, match![1]!.split('.'), scalar(match![2]!));
  return nested;
}

type Section = Record<string, unknown>;

function set(root: Section, path: readonly string[], value: unknown): void {
  let node = root;
  for (const name of path.slice(0, -1)) {
    const before = Object.hasOwn(node, name) ? node[name] : undefined;
    const isSection = before !== null && typeof before === 'object' && !Array.isArray(before);
    const section = isSection ? (before as Section) : {};
    define(node, name, section);
    node = section;
  }
  define(node, path.at(-1)!, value);
}

// Defines a property instead of assigning to it, because `__proto__` must be a key like any other.
function define(node: Section, name: string, value: unknown): void {
  Object.defineProperty(node, name, { value, writable: true, enumerable: true, configurable: true });
}

function scalar(text: string): unknown {
  return parseYaml(text.replace(/^(['"])(.*)\1$/s, '$2'));
}

function notYaml(reason: string, error?: Error): LossError {
  return invalid('YAML', `text with an error: ${shorten(reason)}`, error);
}

function invalid(expected: string, received: string, cause?: Error): LossError {
  return new LossError('ERR_INVALID_INPUT', { at: 'configuration', expected, received }, { cause });
}
