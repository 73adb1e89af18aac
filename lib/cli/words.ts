// Splits the words of a command line into subjects (`--loss ppo`) with their own options, and the words of the command.
// Commander supports neither options that belong to the name before them nor options that depend on a name.
import { Command, type Option } from 'commander';
import { LossError } from '../index.js';

/** The flags that name a subject. */
export const CHOICES = ['--loss', '--algorithm', '--config'] as const;
export type Choice = (typeof CHOICES)[number];

/** A subject as typed: `--loss ppo` and the words up to the next subject. */
export interface SubjectWords {
  choice: Choice;
  name: string;
  words: readonly string[];
}

/** The words of a command, divided by subjects. */
export interface DividedWords {
  /** The words before the first subject. Options among them apply to every subject. */
  shared: readonly string[];
  subjects: readonly SubjectWords[];
  /** The words from `--` on, which are not options. */
  operands: readonly string[];
}

/** Divides words by subjects. A choice without a name stays in `shared`, where commander reports it. */
export function divide(words: readonly string[]): DividedWords {
  const end = words.includes('--') ? words.indexOf('--') : words.length;
  const shared: string[] = [];
  const subjects: SubjectWords[] = [];
  let current = shared;
  for (let i = 0; i < end; i++) {
    const word = words[i]!;
    const choice = CHOICES.find((flag) => word === flag || word.startsWith(`${flag}=`));
    const name = choice && (word === choice ? words[i + 1] : word.slice(choice.length + 1));
    if (!choice || name === undefined) {
      current.push(word);
      continue;
    }
    if (word === choice) i++;
    current = [];
    subjects.push({ choice, name, words: current });
  }
  return { shared, subjects, operands: words.slice(end) };
}

/** An option as typed. */
export interface TypedOption {
  option: Option;
  flag: string;
  /** Absent if the option was typed without a value. */
  value?: string;
}

/**
 * Separates some options from the other words.
 * @param options the options to take.
 * @param others options that stay in `rest` together with their values.
 */
export function takeOptions(
  words: readonly string[],
  options: readonly Option[],
  others: readonly Option[],
): { typed: TypedOption[]; rest: string[] } {
  const typed: TypedOption[] = [];
  const rest: string[] = [];
  for (let i = 0; i < words.length; i++) {
    const word = words[i]!;
    const [flag] = word.split('=', 1) as [string];
    const isOf = (option: Option) => option.long === flag || option.short === flag;
    const option = options.find(isOf);
    const known = option ?? (word.startsWith('-') ? others.find(isOf) : undefined);
    const joined = known !== undefined && flag !== word;
    const next = known?.required && !joined ? words[++i] : undefined;
    if (!option) {
      rest.push(word, ...(next === undefined ? [] : [next]));
      continue;
    }
    const value = joined ? word.slice(flag.length + 1) : next;
    typed.push({ option, flag, ...(value !== undefined && { value }) });
  }
  return { typed, rest };
}

/** Returns typed options as words again. */
export function wordsOf(typed: readonly TypedOption[]): string[] {
  return typed.map(({ flag, value }) => (value === undefined ? flag : `${flag}=${value}`));
}

/**
 * Parses words that contain only options. Returns the values of the options that are present, by commander's names.
 * @param command the command whose settings for errors apply.
 * @throws CommanderError, and LossError `ERR_INVALID_OPTION` for a switch with a value.
 */
export function valuesOf(
  words: readonly string[],
  options: readonly Option[],
  command: Command,
): Record<string, unknown> {
  const parser = new Command().copyInheritedSettings(command);
  for (const option of options) parser.addOption(option);
  const [stranger] = parser.parseOptions([...words]).unknown;
  if (stranger !== undefined)
    throw new LossError('ERR_INVALID_OPTION', {
      expected: `the switch ${stranger.replace(/=.*/s, '')} without a value`,
      received: stranger,
    });
  const values: Record<string, unknown> = parser.opts();
  // Help shows the defaults; the functions themselves apply them.
  for (const name of Object.keys(values))
    if (parser.getOptionValueSource(name) === 'default') delete values[name];
  return values;
}

/** Returns whether the words ask for help. */
export function asksForHelp(words: readonly string[]): boolean {
  return words.includes('--help') || words.includes('-h');
}

/** Joins words as in a sentence: a, b and c. */
export function listed(words: readonly string[], last: 'and' | 'or'): string {
  return [words.slice(0, -1).join(', '), words.at(-1)].filter(Boolean).join(` ${last} `);
}
