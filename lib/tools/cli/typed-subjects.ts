// Finds the subjects of a command line, that is, the losses and algorithms that it names, each with its options.
import { createReadStream, existsSync } from 'node:fs';
import { type Command, Option } from 'commander';
import { FRAMEWORK_NAMES } from '../../algorithm/configurations/frameworks.js';
import { MAX_CONFIG_CHARACTERS } from '../../algorithm/configurations/text.js';
import { unknownName } from '../../base/errors.js';
import { toSnakeCase } from '../../base/options.js';
import { ALGORITHM_TYPE, type ConfigFramework, fromConfig, LOSS_FN, LossError } from '../../index.js';
import { lossSubject, objectiveSubject, type Subject } from '../parts/index.js';
import { describeFailure, errorAt } from '../rollouts/source.js';
import { algorithmArguments, algorithmOptions } from './algorithm-options.js';
import { expressionOptions, expressionSubject } from './expression-options.js';
import { flagsIn } from './flags.js';
import { lossOptions } from './function-options.js';
import { settingOf, valueOfSetting } from './settings.js';
import {
  asksForHelp,
  CHOICES,
  CHOICES_WITH_VALUES,
  type Choice,
  divide,
  listed,
  type SubjectWords,
  type TypedOption,
  takeOptions,
  valuesOf,
  wordsOf,
} from './words.js';

/** A subject (a loss or an algorithm) that the command line names. */
export interface TitledSubject extends Subject {
  /** The name and the options of the loss or algorithm, as typed on the command line. */
  readonly title: string;
  /** The values of the options that the command line sets, by their flags without the leading dashes. */
  readonly given: Readonly<Record<string, unknown>>;
}

/** A subject (a loss or an algorithm) as typed on the command line, before it is created. */
export interface TypedSubject {
  choice: Choice;
  /** The value of the flag: the name of a loss or algorithm, the text of an expression, or a file. */
  name: string;
  /** All options that this loss or algorithm accepts. */
  options: readonly Option[];
  /** The options that the command line sets for this loss or algorithm. */
  typed: readonly TypedOption[];
  /** The text of a configuration that was read before, instead of the file `name`. */
  config?: string | undefined;
}

/**
 * The subjects (losses and algorithms) that the arguments of a command name, and the arguments that are left for
 * commander.
 */
export interface TypedSubjects {
  subjects: TypedSubject[];
  rest: string[];
}

/**
 * Separates the subjects (losses and algorithms with their options) from the other arguments of a command.
 * @param words the arguments after the command's name.
 * @param accepted how many subjects the command accepts. For 'two or more', the caller must refuse a single one.
 * @param oneOf returns one of the values that an argument lists. Only commands that accept lists of values need it.
 * @throws LossError for unknown names and options, for a missing subject, and for too many subjects.
 */
export function typedSubjects(
  command: Command,
  words: readonly string[],
  accepted: 'exactly one' | 'one or more' | 'two or more',
  oneOf: (word: string) => string = (word) => word,
): TypedSubjects {
  const { shared, subjects, operands } = divide(words.map(asFile));
  if (accepted === 'exactly one' && subjects.length > 1)
    throw new LossError('ERR_INVALID_OPTION', {
      expected: `exactly one of ${listed(CHOICES, 'or')}`,
      received: listed(
        subjects.map(({ choice }) => choice),
        'and',
      ),
      hint: "Use 'policy-loss compare' for several",
    });
  // If a flag that names a subject has no value, or the arguments ask for help, commander prints the error or the help.
  const unnamed = shared.some((word) => CHOICES.includes(word as Choice));
  if (subjects.length === 0) {
    if (unnamed || asksForHelp(words)) return { subjects: [], rest: [...words] };
    checkWithoutSubject(words, command);
    throw new LossError('ERR_INVALID_OPTION', {
      expected: `${accepted} of ${CHOICES_WITH_VALUES}`,
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

/** Refuses a flag that neither the command nor any loss or algorithm has, before a missing one is reported. */
function checkWithoutSubject(words: readonly string[], command: Command): void {
  const own = command.options.map(({ long }) => long!);
  const known = new Set([...own, ...everyFlag()]);
  const unknown = flagsIn(takeOptions(words, command.options, []).rest).find((flag) => !known.has(flag));
  if (unknown !== undefined)
    throw unknownName('ERR_INVALID_OPTION', `option of ${command.name()}`, unknown, [...known]);
}

/** Returns the flags of all losses, expressions and algorithms. */
function everyFlag(): string[] {
  const none = new Set<string>();
  const options = [
    ...expressionOptions(),
    ...LOSS_FN.names().flatMap((name) => lossOptions(name, none)),
    ...ALGORITHM_TYPE.names().flatMap((name) => algorithmOptions(name, [], none)),
    frameworkOption(),
  ];
  return options.map(({ long }) => long!);
}

/**
 * Returns the path `./-rf.jsonl` for a word such as `-rf.jsonl` if this file exists, because commander would take the
 * word for a group of short options. Returns other words unchanged.
 */
function asFile(word: string): string {
  return /^-[^-]./s.test(word) && existsSync(word) ? `./${word}` : word;
}

/**
 * Separates the subject (a loss or an algorithm) from the other arguments of a command that accepts exactly one
 * subject.
 * @param words the arguments of the command line, including the command's name.
 * @param oneOf returns one of the values that an argument lists. Only commands that accept lists of values need it.
 * @returns the subject, which is undefined if the arguments ask for help, and the arguments that commander must parse.
 */
export function typedSubject(
  command: Command,
  words: readonly string[],
  oneOf?: (word: string) => string,
): { typed: TypedSubject | undefined; left: string[] } {
  const { subjects, rest } = typedSubjects(command, words.slice(1), 'exactly one', oneOf);
  return { typed: subjects[0], left: [command.name(), ...rest] };
}

/** Creates the loss or algorithm that the command line names, with the options that it sets. */
export async function makeSubject(
  { choice, name, options, typed, config }: TypedSubject,
  command: Command,
): Promise<TitledSubject> {
  const values = valuesOf(wordsOf(typed), options, command);
  const given = Object.fromEntries(typed.map((one) => [settingOf(one).name, valueOfSetting(one, values)]));
  const subject = await subjectOf(choice, name, values, config);
  const title = [choice === '--config' ? `${choice} ${name}` : subject.name, ...typed.map(shownOption)];
  return { ...subject, title: title.join(' '), given };
}

async function subjectOf(
  choice: Choice,
  name: string,
  values: Readonly<Record<string, unknown>>,
  given: string | undefined,
): Promise<Subject> {
  if (choice === '--config') {
    const text = given ?? (await readConfiguration(name));
    return objectiveSubject(configured(name, text, values.framework as ConfigFramework | undefined));
  }
  if (choice === '--loss') return lossSubject(name, values);
  if (choice === '--loss-expr') return expressionSubject(name, values);
  const { config, seed } = algorithmArguments(name, values);
  return objectiveSubject(ALGORITHM_TYPE.get(name).objective(config), seed);
}

function shownOption({ flag, value }: TypedOption): string {
  return value === undefined ? flag : `${flag} ${value}`;
}

/**
 * Returns the options that a loss or algorithm accepts. For an algorithm, they also depend on the arguments in `words`,
 * which may name other functions than the algorithm's default ones.
 * @throws LossError for unknown names and options.
 */
export function optionsOf(
  { choice, name }: Pick<SubjectWords, 'choice' | 'name'>,
  words: readonly string[],
  command: Command,
): Option[] {
  const own = new Set([...command.options.map((option) => option.long!), '--help']);
  const flags = flagsIn(words);
  if (choice !== '--config') {
    const options = functionOptions(choice, name, words, own);
    const unknown = flags.find((flag) => !own.has(flag) && !options.some(({ long }) => long === flag));
    if (unknown !== undefined) {
      const shown = options.filter(({ hidden }) => !hidden).map(({ long }) => long!);
      const owner = choice === '--loss-expr' ? choice : name;
      throw unknownName('ERR_INVALID_OPTION', `option of ${owner}`, unknown, [...shown, ...own]);
    }
    return options;
  }
  const options = [frameworkOption()];
  const further = flags.filter((flag) => !own.has(flag) && !options.some(({ long }) => long === flag));
  const known = everyFlag();
  const unknown = further.find((flag) => !known.includes(flag));
  if (unknown !== undefined)
    throw unknownName('ERR_INVALID_OPTION', 'option of --config', unknown, [...own, '--framework']);
  if (further.length > 0)
    throw new LossError('ERR_INVALID_OPTION', {
      at: listed(further, 'and'),
      expected: 'no further option with --config but --framework, because the file sets them all',
    });
  return options;
}

/** Returns the option `--framework` of `--config`. */
function frameworkOption(): Option {
  return new Option(
    '--framework <name>',
    `the framework that the configuration is for; by default, its keys tell: ${FRAMEWORK_NAMES.join(', ')}`,
  );
}

function functionOptions(
  choice: Exclude<Choice, '--config'>,
  name: string,
  words: readonly string[],
  own: ReadonlySet<string>,
): Option[] {
  if (choice === '--loss-expr') return expressionOptions();
  return choice === '--loss' ? lossOptions(name, own) : algorithmOptions(name, words, own);
}

/**
 * Reads the text of a configuration.
 * @throws LossError `ERR_INVALID_INPUT`
 */
export async function readConfiguration(file: string): Promise<string> {
  try {
    // One character more than the limit is enough to find that the text is too long.
    const chunks = createReadStream(file, { encoding: 'utf8', end: 4 * MAX_CONFIG_CHARACTERS });
    return (await chunks.toArray()).join('');
  } catch (error) {
    const details = { expected: 'a readable configuration', received: describeFailure(error) };
    throw errorAt({ file }, 'ERR_INVALID_INPUT', details, error);
  }
}

function configured(file: string, text: string, framework: ConfigFramework | undefined) {
  try {
    return fromConfig(text, { framework });
  } catch (error) {
    if (!(error instanceof LossError)) throw error;
    const { message } = error.withOptionNames(toSnakeCase);
    throw new LossError(error.code, `${file}: ${message}`, { cause: error });
  }
}
