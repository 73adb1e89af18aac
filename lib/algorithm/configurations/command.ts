// Finds the settings in a training command as people paste it: a line of a shell script with its program, comments,
// quotes and variables. Nothing is executed.
import { describeValue, LossError } from '../../base/errors.js';

/** A setting of a command: the path of a key with its value as text, or without one if the command deletes the key. */
export interface Setting {
  readonly path: string;
  readonly value?: string;
}

// `path=value` as Hydra takes it, with a sign that adds or deletes the path, and `group@path=file`.
const SETTING = /^(?:\+{0,2}([A-Za-z_][\w.-]*)(?:@([\w.]*))?=(.*)|~([A-Za-z_][\w.@/-]*)(?:=.*)?)$/s;
const FLAG = /^--([A-Za-z][\w.-]*)(?:=(.*))?$/s;
const ASSIGNMENT = /^([A-Za-z_]\w*)\+?=/;
// What a shell passes on from its own caller, and variables that the text does not set.
const PASSED_ON = /^\$(?:[@*]|\w+)$/;
// The first line of YAML and JSON: a key, a list, an object, or the beginning of a document.
const YAML = /^(?:[^\s=]+\s*:(?:\s|$)|-\s|---|[[{%])/;

/**
 * Returns the settings in the text of a training command, or undefined if the text has none and is something else, such
 * as YAML.
 * @throws LossError `ERR_INVALID_INPUT` for a word that cannot be read.
 */
export function settingsOfCommand(text: string): Setting[] | undefined {
  const first = text.split('\n').find((line) => /^\s*[^\s#]/.test(line)) ?? '';
  if (YAML.test(first.trim())) return undefined;
  const commands = new ShellText(text).commands();
  const parts = commands.map(divide);
  const isTraining = ({ program, words }: DividedCommand) => program.length > 0 && hasSettings(words);
  // Other commands of a script prepare the training or convert its result.
  const training =
    parts.findLast((each) => isTraining(each) && each.words.some(isSetting)) ?? parts.findLast(isTraining);
  // Words without a program are settings, except that a script sets variables in this form.
  const used = parts.filter(
    (each) =>
      each === training ||
      (each.program.length === 0 && !(training && each.words.every((word) => ASSIGNMENT.test(word)))),
  );
  const words = used.flatMap((each) => each.words);
  return hasSettings(words) ? settingsOf(words) : undefined;
}

function hasSettings(words: readonly string[]): boolean {
  return words.some((word) => isSetting(word) || FLAG.test(word));
}

/** Returns whether a word is a setting of the form `path=value`, or deletes a key. */
export function isSetting(word: string): boolean {
  return SETTING.test(word);
}

/**
 * Returns the settings that words state: `path=value`, `~path` and `--flag value`.
 * @throws LossError `ERR_INVALID_INPUT` for the first other word.
 */
export function settingsOf(words: readonly string[]): Setting[] {
  const settings: Setting[] = [];
  for (let i = 0; i < words.length; i++) {
    const word = words[i]!;
    if (PASSED_ON.test(word)) continue;
    const [, name, joined] = FLAG.exec(word) ?? [];
    if (name === undefined) {
      settings.push(...settingsOfWord(word));
      continue;
    }
    const values = joined === undefined ? [] : [joined];
    while (joined === undefined && isValue(words[i + 1])) values.push(words[++i]!);
    settings.push(settingOfFlag(name, values));
  }
  return settings;
}

function isValue(word: string | undefined): word is string {
  return word !== undefined && !/^-{1,2}[A-Za-z]/.test(word) && !isSetting(word) && !PASSED_ON.test(word);
}

function settingsOfWord(word: string): Setting[] {
  const [, path, at, value = '', deleted] = SETTING.exec(word) ?? [];
  if (deleted !== undefined) return [{ path: deleted.replace(/^.*@/, '') }];
  if (path === undefined) throw unreadable('settings such as path=value', word);
  if (at === undefined) return [{ path, value }];
  // A framework's files for its machinery are named after their group: `actor@actor_rollout_ref.actor=megatron_actor`.
  // They leave the keys that count at their defaults.
  if (value === path || value.endsWith(`_${path}`)) return [];
  throw unreadable(`a file of the framework, such as dp_${path}, because no other file is read`, word);
}

function settingOfFlag(name: string, values: readonly string[]): Setting {
  const path = name.replaceAll('-', '_');
  const [value = 'true'] = values;
  // A configuration that the command names holds the defaults.
  if (path === 'config_name' || path === 'config') return { path: 'defaults', value };
  return { path, value: values.length > 1 ? `[${values.join(',')}]` : value };
}

interface DividedCommand {
  /** The words before the first setting, such as `python3 -m verl.trainer.main_ppo`. */
  readonly program: readonly string[];
  readonly words: readonly string[];
}

function divide(command: readonly string[]): DividedCommand {
  const isArgument = (word: string) => isSetting(word) || FLAG.test(word) || PASSED_ON.test(word);
  const first = command.findIndex((word) => !ASSIGNMENT.test(word));
  if (first < 0 || isArgument(command[first]!)) return { program: [], words: command };
  // The words before a module or a script start it, and have flags of their own.
  const script = command.findIndex(
    (word, i) => i >= first && (word.endsWith('.py') || (command[i - 1] === '-m' && !LAUNCHER.test(word))),
  );
  const isKnown = script >= 0 || command[first] === 'trl';
  const begins = (word: string, i: number) => i > first && (isKnown ? isArgument(word) : isSetting(word));
  const start = script >= 0 ? script + 1 : command.findIndex(begins);
  if (start < 0 || command[first] === 'export') return { program: command, words: [] };
  return { program: command.slice(0, start), words: command.slice(start) };
}

const LAUNCHER = /^(?:torch\.distributed|accelerate|deepspeed)\b/;

// The maximum number of characters that the variables of a script add to its words.
const MAX_EXPANDED = 2 ** 16;

/** Reads the words of a shell script. */
class ShellText {
  readonly #text: string;
  /** The words of each variable; undefined if the script gives it different ones. */
  readonly #variables = new Map<string, readonly string[] | undefined>();
  #at = 0;
  // The characters that variables may still add to the words, because each can repeat others.
  #room = MAX_EXPANDED;

  constructor(text: string) {
    this.#text = text;
  }

  /** Returns the words of each command, without quotes, comments and redirections. */
  commands(): string[][] {
    const commands: string[][] = [];
    let words: string[] = [];
    const end = () => {
      if (words.length > 0) commands.push(words);
      const assigned = words[0] === 'export' ? words.slice(1) : words;
      if (assigned.every((word) => ASSIGNMENT.test(word)))
        for (const word of assigned) {
          const [before, name] = ASSIGNMENT.exec(word)!;
          this.#assign(name!, [word.slice(before.length)]);
        }
      words = [];
    };
    while (this.#at < this.#text.length) {
      if (this.#skipsBlank() || this.#match(/\d?&?>{1,2}(?:&\d|[^\S\n]*[^\s;&|]+)/y)) continue;
      const [, name, adds] = this.#match(/([A-Za-z_]\w*)(\+?)=\(/y) ?? [];
      if (name !== undefined) this.#readArray(name, adds === '+');
      else if (this.#match(/[\n;&|()]+/y)) end();
      else words.push(...this.#word());
    }
    end();
    return commands;
  }

  /** Skips spaces, continued lines and comments, whose own last character continues nothing. */
  #skipsBlank(): boolean {
    return this.#match(/(?:[^\S\n]|\\[^\S\n]*\n)+|#[^\n]*/y) !== null;
  }

  #readArray(name: string, adds: boolean): void {
    const words = adds ? [...(this.#variables.get(name) ?? [])] : [];
    while (this.#at < this.#text.length && !this.#match(/\)/y))
      if (!this.#skipsBlank() && !this.#match(/[\n;&|]+/y)) words.push(...this.#word());
    this.#paid(words);
    this.#variables.set(name, words);
  }

  // The script may choose between two values. Which one it chooses is not known.
  #assign(name: string, words: readonly string[]): void {
    const isOther = this.#variables.has(name) && this.#variables.get(name)?.join(' ') !== words.join(' ');
    this.#variables.set(name, isOther ? undefined : words);
  }

  /** Reads one word. A variable that stands alone can have several. */
  #word(): readonly string[] {
    const [, quote, braced, isArray, bare] =
      this.#match(/("?)\$(?:\{(\w+)(\[[@*]\])?\}|([A-Za-z_]\w*))\1(?=[\s;&|)\\]|$)/y) ?? [];
    const name = braced ?? bare;
    if (name !== undefined) {
      const words = this.#variables.get(name);
      if (!words) return [`$${name}`];
      return this.#paid(quote === '"' || isArray ? words : words.join(' ').split(/\s+/).filter(Boolean));
    }
    if (this.#match(/"?\$(?:[@*]|\{[@*][^}\n]{0,99}\})"?/y)) return ['$@'];
    let word = '';
    for (;;) {
      const [all, single, escaped] = this.#match(/[^\s'"\\$`;&|)]+|'([^']*)'|\\(?![^\S\n]*\n)(\S| )/y) ?? [];
      if (all !== undefined) word += single ?? escaped ?? all;
      else if (this.#match(/"/y)) word += this.#quoted();
      else if (this.#match(/(?=[$`])/y)) word += this.#variable();
      else break;
    }
    // A quote or a backslash that nothing follows.
    const [stray] = this.#match(/'|\\(?![^\S\n]*\n)/y) ?? [];
    if (stray === "'") throw unreadable('a closing quote', `'${this.#text.slice(this.#at)}`);
    return [word];
  }

  /** Reads the rest of a text in double quotes. */
  #quoted(): string {
    const start = this.#at - 1;
    let text = '';
    while (!this.#match(/"/y)) {
      const [all, escaped] = this.#match(/[^"\\$`]+|\\\n|\\(["\\$`])|\\/y) ?? [];
      if (all !== undefined) text += all === '\\\n' ? '' : (escaped ?? all);
      else if (this.#at < this.#text.length) text += this.#variable();
      else throw unreadable('a closing quote', this.#text.slice(start));
    }
    return text;
  }

  /** Reads a variable or another expansion. One without a known value stays, with its dollar sign. */
  #variable(): string {
    const [all, braced, byDefault, bare] =
      this.#match(/\$(?:\{(\w+)(?::?[-=]([^}\n]{0,999}))?\}|([A-Za-z_]\w*))/y) ??
      this.#match(/\$\((?:[^()]|\([^()]*\))*\)|`[^`]*`|[$`]/y)!;
    const name = braced ?? bare;
    if (name === undefined) return all.startsWith('`') ? `$(${all.slice(1, -1)})` : all;
    const value = this.#variables.get(name)?.join(' ') ?? byDefault;
    // Not `${name}`, which a configuration would take for a reference to a key.
    return value === undefined ? `$${name}` : this.#paid([value])[0]!;
  }

  #paid(words: readonly string[]): readonly string[] {
    this.#room -= words.reduce((sum, { length }) => sum + length + 1, 0);
    if (this.#room < 0)
      throw new LossError('ERR_INVALID_INPUT', {
        at: 'configuration',
        expected: `variables of at most ${MAX_EXPANDED} characters`,
        received: 'more',
      });
    return words;
  }

  #match(pattern: RegExp): RegExpExecArray | null {
    pattern.lastIndex = this.#at;
    const match = pattern.exec(this.#text);
    if (match) this.#at = pattern.lastIndex;
    return match;
  }
}

function unreadable(expected: string, word: string): LossError {
  return new LossError('ERR_INVALID_INPUT', {
    at: 'configuration',
    expected,
    received: `the word ${describeValue(word)}`,
  });
}
