// Subjects as a command line says them, with the options that go with each.
import { readFile } from 'node:fs/promises';
import type { Command, Option } from 'commander';
import { ALGORITHM_TYPE, fromTrinityConfig, LossError } from '../index.js';
import { algorithmArguments, algorithmOptions } from './algorithm-options.js';
import { flagsIn, inKebabCase, inSnakeCase, lossOptions } from './function-options.js';
import { lossSubject, objectiveSubject, type Subject, type SubjectLabel } from './subject.js';
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

/** A subject as it was typed, and its options. */
export interface TypedSubject {
  choice: Choice;
  name: string;
  /** Those that it takes. */
  options: readonly Option[];
  /** Those that were given. */
  typed: readonly TypedOption[];
}

/** The subjects that a command's words say, and the words that are left for the command. */
export interface TypedSubjects {
  subjects: TypedSubject[];
  rest: string[];
}

/**
 * Takes the subjects out of a command's words.
 * @param words those after the command's name.
 * @param several whether there may be more than one.
 * @param oneOf one of the values that a word stands for, where it may be several.
 * @throws LossError for unknown names, for options that nobody has, and where the words do not say what to evaluate.
 */
export function typedSubjects(
  command: Command,
  words: readonly string[],
  several: boolean,
  oneOf: (word: string) => string = (word) => word,
): TypedSubjects {
  const { shared, subjects, operands } = divide(words);
  if (!several && subjects.length > 1)
    throw new LossError(
      'ERR_INVALID_OPTION',
      `expected exactly one of ${listed(CHOICES, 'or')}, and ${listed(
        subjects.map(({ choice }) => choice),
        'and',
      )} came; 'policy-loss compare' takes several`,
    );
  // A choice without a name, and help, are commander's.
  const unnamed = shared.some((word) => CHOICES.includes(word as Choice));
  if (subjects.length === 0) {
    if (unnamed || asksForHelp(words)) return { subjects: [], rest: [...words] };
    throw new LossError(
      'ERR_INVALID_OPTION',
      `expected ${several ? 'two or more' : 'exactly one'} of --loss <name>, --algorithm <name> or --config <file>, to say ` +
        `what to evaluate, and none came; 'policy-loss ${command.name()} --help' has examples`,
    );
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
 * The same for a command that takes one subject.
 * @param words the command line's, the command's name among them.
 * @returns the subject, undefined where help is asked for, and the words to parse.
 */
export function typedSubject(
  command: Command,
  words: readonly string[],
  oneOf?: (word: string) => string,
): { typed: TypedSubject | undefined; left: string[] } {
  const { subjects, rest } = typedSubjects(command, words.slice(1), false, oneOf);
  return { typed: subjects[0], left: [command.name(), ...rest] };
}

/** Makes a subject of what was typed. */
export async function makeSubject(
  { choice, name, options, typed }: TypedSubject,
  command: Command,
): Promise<Subject> {
  const values = valuesOf(wordsOf(typed), options, command);
  const given = Object.fromEntries(
    typed.map(({ option }) => [option.name().replace(/^no-/, ''), values[option.attributeName()]]),
  );
  const label: SubjectLabel = {
    title: [choice === '--config' ? `${choice} ${name}` : name, ...typed.map(shownOption)].join(' '),
    given,
  };
  if (choice === '--config') return objectiveSubject(await configured(name), undefined, label);
  return inKebabCase(() => {
    if (choice === '--loss') return lossSubject(name, values, label);
    const { config, seed } = algorithmArguments(name, values);
    return objectiveSubject(ALGORITHM_TYPE.get(name).objective(config), seed, label);
  });
}

function shownOption({ flag, value }: TypedOption): string {
  return value === undefined ? flag : `${flag} ${value}`;
}

/** The options that a subject takes, by the words that it was typed with. */
export function optionsOf(
  { choice, name }: Pick<SubjectWords, 'choice' | 'name'>,
  words: readonly string[],
  command: Command,
): Option[] {
  const own = new Set([...command.options.map((option) => option.long!), '--help']);
  if (choice === '--loss') return inKebabCase(() => lossOptions(name, words, own));
  if (choice === '--algorithm') return inKebabCase(() => algorithmOptions(name, words, own));
  const further = flagsIn(words).filter((flag) => !own.has(flag));
  if (further.length > 0)
    throw new LossError(
      'ERR_INVALID_OPTION',
      `${listed(further, 'and')}: not with --config, whose file says it all; options go with --loss or --algorithm`,
    );
  return [];
}

async function configured(file: string) {
  let text: string;
  try {
    text = await readFile(file, 'utf8');
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    throw new LossError(
      'ERR_INVALID_INPUT',
      `${file}: expected a configuration, and it cannot be read: ${reason}`,
      { cause: error },
    );
  }
  try {
    return fromTrinityConfig(text);
  } catch (error) {
    if (!(error instanceof LossError)) throw error;
    throw new LossError(error.code, `${file}: ${inSnakeCase(error.message)}`, { cause: error });
  }
}
