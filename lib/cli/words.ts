// The words of a command line that say what to evaluate: subjects, each with options of its own, among the command's
// words. Commander knows neither options that belong to the name before them nor options that depend on names.
import { Command, type Option } from 'commander';
import { LossError } from '../index.js';

/** What says what is evaluated. */
export const CHOICES = ['--loss', '--algorithm', '--config'] as const;
export type Choice = (typeof CHOICES)[number];

/** A subject as it was typed: `--loss ppo`, and the words up to the next one. */
export interface SubjectWords {
  choice: Choice;
  name: string;
  words: readonly string[];
}

/** The words of a command, divided at the subjects. */
export interface DividedWords {
  /** Those before the first subject. Options among them are every subject's. */
  shared: readonly string[];
  subjects: readonly SubjectWords[];
  /** Those from `--` on, which are no options. */
  operands: readonly string[];
}

/** Divides words at the subjects in them. A choice without a name stays a word, for commander to complain of. */
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

/** An option as it was typed. */
export interface TypedOption {
  option: Option;
  flag: string;
  /** Absent: none followed. */
  value?: string;
}

/**
 * Takes options out of words.
 * @param options those to take.
 * @param others those that stay, each with its value.
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

/** Typed options as words. */
export function wordsOf(typed: readonly TypedOption[]): string[] {
  return typed.map(({ flag, value }) => (value === undefined ? flag : `${flag}=${value}`));
}

/**
 * The values of words that are nothing but options, by commander's names of them; those alone that were given.
 * @param command whose way of complaining is taken.
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
    throw new LossError(
      'ERR_INVALID_OPTION',
      `${stranger}: expected ${stranger.replace(/=.*/s, '')} without a value, as it is a switch`,
    );
  const values: Record<string, unknown> = parser.opts();
  // Defaults are shown in the help, and are the functions' own business.
  for (const name of Object.keys(values))
    if (parser.getOptionValueSource(name) === 'default') delete values[name];
  return values;
}

/** Whether help is asked for. */
export function asksForHelp(words: readonly string[]): boolean {
  return words.includes('--help') || words.includes('-h');
}

/** Words as a sentence lists them: a, b and c. */
export function listed(words: readonly string[], last: 'and' | 'or'): string {
  return [words.slice(0, -1).join(', '), words.at(-1)].filter(Boolean).join(` ${last} `);
}
