// The subjects of a command line: the losses and algorithms that it names, each with its options.
import { readFile } from 'node:fs/promises';
import type { Command, Option } from 'commander';
import { unknownName } from '../core/errors.js';
import { toSnakeCase } from '../core/options.js';
import { ALGORITHM_TYPE, fromTrinityConfig, LossError } from '../index.js';
import { lossSubject, objectiveSubject, type Subject } from '../parts/index.js';
import { describeFailure, errorAt } from '../rollouts/source.js';
import { algorithmArguments, algorithmOptions } from './algorithm-options.js';
import { flagsIn } from './flags.js';
import { lossOptions } from './function-options.js';
import {
  asksForHelp,
  CHOICES,
  type Choice,
  divide,
  listed,
  type SubjectWords,
  type TypedOption,
  takeOptions,
  valuesOf,
  wordsOf,
} from './words.js';

/** A subject that is named on the command line. */
export interface TitledSubject extends Subject {
  /** Its name and options, as on a command line. */
  readonly title: string;
  /** The values of its options, by their flags without dashes. */
  readonly given: Readonly<Record<string, unknown>>;
}

/** A subject as typed, and its options. */
export interface TypedSubject {
  choice: Choice;
  name: string;
  /** The options that it accepts. */
  options: readonly Option[];
  /** The options that the command line sets. */
  typed: readonly TypedOption[];
}

/** The subjects in a command's words, and the words that remain for the command. */
export interface TypedSubjects {
  subjects: TypedSubject[];
  rest: string[];
}

/**
 * Separates the subjects from a command's words.
 * @param words the words after the command's name.
 * @param several whether the command accepts more than one subject.
 * @param oneOf returns one value of a word that lists several, for commands that accept such lists.
 * @throws LossError for unknown names and options, and if the words name no subject, or too many.
 */
export function typedSubjects(
  command: Command,
  words: readonly string[],
  several: boolean,
  oneOf: (word: string) => string = (word) => word,
): TypedSubjects {
  const { shared, subjects, operands } = divide(words);
  if (!several && subjects.length > 1)
    throw new LossError('ERR_INVALID_OPTION', {
      expected: `exactly one of ${listed(CHOICES, 'or')}`,
      received: listed(
        subjects.map(({ choice }) => choice),
        'and',
      ),
      hint: "Use 'policy-loss compare' for several",
    });
  // Commander reports a choice without a name, and prints the help.
  const unnamed = shared.some((word) => CHOICES.includes(word as Choice));
  if (subjects.length === 0) {
    if (unnamed || asksForHelp(words)) return { subjects: [], rest: [...words] };
    throw new LossError('ERR_INVALID_OPTION', {
      expected: `${several ? 'two or more' : 'exactly one'} of --loss <name>, --algorithm <name> or --config <file>`,
      received: 'none',
      hint: `'policy-loss ${command.name()} --help' shows examples`,
    });
  }
  const own = command.options;
  const all = subjects.map((subject) => {
    const words = [...shared, ...subject.words];
    const options = optionsOf(subject, words.map(oneOf), command);
    return { ...subject, options, typed: takeOptions(words, options, own).typed };
  });
  const rest = takeOptions(shared, all[0]!.options, own).rest;
  for (const { words, options } of all) rest.push(...takeOptions(words, options, own).rest);
  return {
    subjects: all.map(({ choice, name, options, typed }) => ({ choice, name, options, typed })),
    rest: [...rest, ...operands],
  };
}

/**
 * Separates the subject from the words of a command that accepts exactly one.
 * @param words the words of the command line, including the command's name.
 * @returns the subject (undefined if the words ask for help), and the words that remain for commander.
 */
export function typedSubject(
  command: Command,
  words: readonly string[],
  oneOf?: (word: string) => string,
): { typed: TypedSubject | undefined; left: string[] } {
  const { subjects, rest } = typedSubjects(command, words.slice(1), false, oneOf);
  return { typed: subjects[0], left: [command.name(), ...rest] };
}

/** Makes a typed subject. */
export async function makeSubject(
  { choice, name, options, typed }: TypedSubject,
  command: Command,
): Promise<TitledSubject> {
  const values = valuesOf(wordsOf(typed), options, command);
  const given = Object.fromEntries(
    typed.map(({ option }) => [option.name().replace(/^no-/, ''), values[option.attributeName()]]),
  );
  const title = [choice === '--config' ? `${choice} ${name}` : name, ...typed.map(shownOption)].join(' ');
  return { ...(await subjectOf(choice, name, values)), title, given };
}

async function subjectOf(
  choice: Choice,
  name: string,
  values: Readonly<Record<string, unknown>>,
): Promise<Subject> {
  if (choice === '--config') return objectiveSubject(await configured(name));
  if (choice === '--loss') return lossSubject(name, values);
  const { config, seed } = algorithmArguments(name, values);
  return objectiveSubject(ALGORITHM_TYPE.get(name).objective(config), seed);
}

function shownOption({ flag, value }: TypedOption): string {
  return value === undefined ? flag : `${flag} ${value}`;
}

/** Returns the options that a subject accepts. They depend on its words, which may name an algorithm's functions. */
export function optionsOf(
  { choice, name }: Pick<SubjectWords, 'choice' | 'name'>,
  words: readonly string[],
  command: Command,
): Option[] {
  const own = new Set([...command.options.map((option) => option.long!), '--help']);
  const flags = flagsIn(words);
  if (choice !== '--config') {
    const options = choice === '--loss' ? lossOptions(name, own) : algorithmOptions(name, words, own);
    const unknown = flags.find((flag) => !own.has(flag) && !options.some(({ long }) => long === flag));
    if (unknown !== undefined) {
      const shown = options.filter(({ hidden }) => !hidden).map(({ long }) => long!);
      throw unknownName('ERR_INVALID_OPTION', `option of ${name}`, unknown, [...shown, ...own]);
    }
    return options;
  }
  const further = flags.filter((flag) => !own.has(flag));
  if (further.length > 0)
    throw new LossError('ERR_INVALID_OPTION', {
      at: listed(further, 'and'),
      expected: 'no further option with --config, because the file sets them all',
    });
  return [];
}

async function configured(file: string) {
  let text: string;
  try {
    text = await readFile(file, 'utf8');
  } catch (error) {
    const details = { expected: 'a readable configuration', received: describeFailure(error) };
    throw errorAt({ file }, 'ERR_INVALID_INPUT', details, error);
  }
  try {
    return fromTrinityConfig(text);
  } catch (error) {
    if (!(error instanceof LossError)) throw error;
    const { message } = error.withOptionNames(toSnakeCase);
    throw new LossError(error.code, `${file}: ${message}`, { cause: error });
  }
}
