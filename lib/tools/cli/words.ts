// Splits the arguments of a command line ("words") into subjects, such as `--loss ppo`, and the command's own words.
// Each subject keeps the options that follow it. Commander cannot do this: it does not let an option belong to the
// value of another option, or the set of valid options depend on a value.
import { Command, type Option } from 'commander';
import { LossError } from '../../index.js';

/** The flags that name a subject: the loss, expression, algorithm or configuration that a command is about. */
export const CHOICES = ['--loss', '--loss-expr', '--algorithm', '--config'] as const;
export type Choice = (typeof CHOICES)[number];

/** The flags that name a subject, each with a placeholder for its value, for error messages. */
export const CHOICES_WITH_VALUES = '--loss <name>, --loss-expr <text>, --algorithm <name> or --config <file>';

/** A subject as typed: a flag and its value, such as `--loss ppo`, and the words up to the next subject. */
export interface SubjectWords {
  choice: Choice;
  name: string;
  words: readonly string[];
}

/** A command's words, divided by divide() into shared words, subjects and operands. */
export interface DividedWords {
  /** The words before the first subject. Options among them apply to every subject. */
  shared: readonly string[];
  subjects: readonly SubjectWords[];
  /** The words that are not options: `--` and everything after it. */
  operands: readonly string[];
}

/**
 * Divides a command's words into shared words, subjects and operands. A subject's flag that lacks its value stays among
 * the ordinary words, so that commander reports it.
 */
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

/** An option as it was typed on the command line. */
export interface TypedOption {
  option: Option;
  flag: string;
  /** The value that was typed. Absent if the option was typed without one. */
  value?: string;
}

/**
 * Separates the given options from all other words.
 * @param options the options to separate, with their values.
 * @param others other options that the command has. They stay in `rest`, each together with its value.
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

/** Converts options from takeOptions() back to command-line words. */
export function wordsOf(typed: readonly TypedOption[]): string[] {
  return typed.map(({ flag, value }) => (value === undefined ? flag : `${flag}=${value}`));
}

/**
 * Parses words that contain only options. Returns the values of the options that were typed, under the names that
 * commander gives them.
 * @param command the command whose settings for error output are used.
 * @throws CommanderError for a value that commander rejects, and LossError `ERR_INVALID_OPTION` for a switch that was
 * given a value.
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
  // Drops the values that are only defaults. Commander has them for the help texts; the functions apply their own.
  for (const name of Object.keys(values))
    if (parser.getOptionValueSource(name) === 'default') delete values[name];
  return values;
}

/** Returns whether the words contain `--help` or `-h`. */
export function asksForHelp(words: readonly string[]): boolean {
  return words.includes('--help') || words.includes('-h');
}

/** Joins words as in a sentence, such as 'a, b and c'. */
export function listed(words: readonly string[], last: 'and' | 'or'): string {
  return [words.slice(0, -1).join(', '), words.at(-1)].filter(Boolean).join(` ${last} `);
}
