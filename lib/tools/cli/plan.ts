// `policy-loss plan`: cuts rollout files into shards that any number of workers can compute, and writes them to a file.
import { type Command, InvalidArgumentError, Option } from 'commander';
import { LossError } from '../../index.js';
import { sha256Of } from '../parts/digest.js';
import {
  checkColumns,
  cutIntoShards,
  GRADIENT_ENDINGS,
  makePlan,
  type Plan,
  type PlannedConfiguration,
  type PlannedFunction,
  type Subject,
  writePlan,
} from '../parts/index.js';
import { checkGradientDtype, columnOfKey, streamRollouts } from '../rollouts/index.js';
import { version } from './about.js';
import { type WritingOptions, writingOptions } from './gradients.js';
import { csv, type Printable, twoColumns } from './output.js';
import { REPORT_COLUMNS } from './report-file.js';
import {
  type RolloutsOptions,
  type RolloutsRun,
  rolloutsCommand,
  runOnRollouts,
  type WantedColumns,
} from './rollouts-command.js';
import {
  makeSubject,
  readConfiguration,
  type TitledSubject,
  type TypedSubject,
  typedSubject,
  typedSubjects,
} from './typed-subjects.js';
import { wordsOf } from './words.js';

/** The result of `policy-loss plan`, as `--json` prints it. */
export interface Planned {
  /** The file of the plan. */
  file: string;
  /** The SHA-256 that tells which plan a part belongs to. */
  hash: string;
  /** The name of the policy loss or algorithm. If there are several, their names, separated by commas. */
  name: string;
  files: number;
  /** The size of all files. */
  bytes: number;
  shards: number;
  /** The phases in which each shard must be run. */
  phases: readonly string[];
}

/** How to plan a computation. */
export interface PlanningOptions extends RolloutsOptions {
  shardSize?: number;
}

interface PlanOptions extends PlanningOptions, WritingOptions {
  out: string;
  gradients?: (typeof GRADIENT_ENDINGS)[number];
  forReport?: boolean;
}

// A shard takes seconds, which is long compared to the start of a process, and short enough to be repeated. For a report,
// it also holds what is measured of each of its rows.
const SHARD_BYTES = 2 ** 28;
const SHARD_BYTES_FOR_REPORT = 2 ** 26;

/**
 * Adds the command `plan` to the command-line program.
 * @param words the arguments of the command line.
 * @returns the arguments that commander must parse.
 * @throws LossError if the arguments name an unknown loss, algorithm or option, or no loss and no algorithm.
 */
export function addPlan(program: Command, words: readonly string[]): readonly string[] {
  const command = planCommand(program);
  if (words[0] !== command.name()) return words;
  const { subjects: typed, rest } = typedSubjects(command, words.slice(1), 'one or more');
  if (typed.length === 1) for (const option of typed[0]!.options) command.addOption(option);
  command.action(async (patterns: string[], options: PlanOptions) => {
    const planned = await plannedFrom(typed, command);
    // The plan may be for another machine, so its device need not be one of this machine.
    const { device = 'cpu', ...here } = options;
    checkDevice(device);
    const { gradients, forReport = false } = options;
    const compares = planned.length > 1;
    if (compares && gradients)
      throw new LossError('ERR_INVALID_OPTION', {
        option: 'gradients',
        expected: 'exactly one loss or algorithm, whose gradients to write',
        received: String(planned.length),
      });
    if (gradients) checkGradientDtype(options.dtype, `.${gradients}`);
    const wanted = plannedColumns({ ...(gradients && { gradients: { ids: options.ids } }), forReport });
    await runOnRollouts(patterns, here, typed, wanted, async (run) => {
      const plan = await planSubjects(run, planned, { ...options, device, ...(compares && { compares }) });
      await writePlan(options.out, plan);
      const names = planned.map(({ subject }) => subject.name);
      return printable(options.out, names.join(', '), plan);
    });
  });
  return [command.name(), ...rest];
}

function planCommand(program: Command): Command {
  return rolloutsCommand(program, {
    name: 'plan',
    summary: 'cut rollout files into shards for any number of workers',
    description:
      'Cuts rollout files into shards for any number of processes or machines, and writes the plan to a file. ' +
      "'policy-loss run' computes a shard, and 'policy-loss merge' prints what 'policy-loss evaluate' would print.",
    options: [
      new Option('-o, --out <file>', 'the file to write, such as plan.json').makeOptionMandatory(),
      SHARD_SIZE_OPTION(),
      new Option('--gradients <format>', 'also write the gradients, one file per shard').choices(
        GRADIENT_ENDINGS,
      ),
      ...writingOptions(),
      new Option('--for-report', "also collect what 'merge --report' needs"),
    ],
    help: HELP,
    examples: EXAMPLES,
  });
}

/** Returns the option `--shard-size`. */
export const SHARD_SIZE_OPTION = () =>
  new Option(
    '--shard-size <bytes>',
    'the size from which on a shard ends, such as 64M; K, M and G are powers of 1024 (default: 256M, or 64M for a report)',
  ).argParser(parseSize);

const HELP = `\
JSON lines are cut at the ends of lines and Parquet files at row groups. Compressed files and other formats are not cut.
The files are read once, for the SHA-256 of each piece, so that 'run' notices if one has changed. Their names are kept
as they are given: a relative name is relative to the folder in which 'run' is called.

The options of a loss or an algorithm are those of 'policy-loss evaluate'. If there are several, the plan is for
'policy-loss compare', and 'merge' prints what that would print. A plan has no code: a loss from --loss-file
is named, and 'run' and 'merge' need the same --loss-file.`;

const EXAMPLES = [
  "plan 'rollouts/*.jsonl' --algorithm grpo --out plan.json",
  'plan rollouts.parquet --loss ppo --clip-range 0.3 --shard-size 64M --out plan.json',
  'plan rollouts/ --loss ppo --loss gspo --out plan.json',
  'plan rollouts/ --loss gspo --gradients parquet --ids uid --out plan.json',
];

function parseSize(text: string): number {
  const [, digits, unit = ''] = /^(\d+)([KMG]?)$/i.exec(text) ?? [];
  const size = Number(digits) * 1024 ** ['', 'K', 'M', 'G'].indexOf(unit.toUpperCase());
  if (!Number.isSafeInteger(size) || size < 1)
    throw new InvalidArgumentError('Expected a number of bytes of at least 1, such as 64M.');
  return size;
}

/**
 * Checks the name of a device, which this machine need not have.
 * @throws LossError `ERR_INVALID_OPTION`
 */
export function checkDevice(device: string): void {
  if (!/^(cpu|cuda(:\d+)?)$/.test(device))
    throw new LossError('ERR_INVALID_OPTION', {
      option: 'device',
      expected: "'cpu', 'cuda' or a device such as 'cuda:1'",
      received: `'${device}'`,
    });
}

/** A loss or an algorithm to plan: as it was typed, with the text of its configuration, and as it was made. */
export interface PlannedSubject {
  typed: TypedSubject;
  subject: TitledSubject;
}

/** Makes the losses and algorithms that the command line names, and reads their configurations. */
export function plannedFrom(typed: readonly TypedSubject[], command: Command): Promise<PlannedSubject[]> {
  return Promise.all(
    typed.map(async (one) => {
      const config = one.choice === '--config' ? await readConfiguration(one.name) : undefined;
      const whole = { ...one, config };
      return { typed: whole, subject: await makeSubject(whole, command) };
    }),
  );
}

/** How to plan, with the settings of the plan that no option sets. */
type WholePlanningOptions = PlanningOptions &
  Partial<PlanOptions> & { device: string } & Pick<PlannedConfiguration, 'compares'>;

/**
 * Plans the computation of losses and algorithms.
 * @throws LossError about the files or the losses and algorithms.
 */
export function planSubjects(
  run: RolloutsRun,
  planned: readonly PlannedSubject[],
  options: WholePlanningOptions,
): Promise<Plan> {
  const subjects = planned.map(({ subject }) => subject);
  const { shardSize = options.forReport ? SHARD_BYTES_FOR_REPORT : SHARD_BYTES } = options;
  return planFor(run, subjects, shardSize, configurationOf(planned.map(plannedFunction), options));
}

function configurationOf(functions: PlannedFunction[], options: WholePlanningOptions) {
  const {
    column = {},
    backend,
    skipBadRows = false,
    strict = false,
    gradients,
    ids = [],
    padded = false,
    dtype = 'float32',
    forReport,
    compares,
  } = options;
  const { maxRowTokens, maxRows, batchTokens, device } = options;
  return {
    functions,
    ...{ column, backend, skipBadRows, strict, maxRowTokens, maxRows, batchTokens, device },
    ...(gradients && { gradients: { ending: gradients, ids, padded, dtype } }),
    ...(forReport && { forReport }),
    ...(compares && { compares }),
  } satisfies PlannedConfiguration;
}

/** Returns the columns that a plan's shards read in addition to those of its losses. */
export function plannedColumns({
  gradients,
  forReport,
}: Pick<PlannedConfiguration, 'forReport'> & { gradients?: { ids: string[] } }): WantedColumns {
  const { columns, keep = [] } = forReport ? REPORT_COLUMNS : {};
  return { ...(columns && { columns }), keep: [...(gradients?.ids ?? []), ...keep] };
}

async function planFor(
  { files, settings }: RolloutsRun,
  subjects: readonly Subject[],
  shardSize: number,
  configuration: PlannedConfiguration,
): Promise<Plan> {
  const { progress, read } = settings;
  // Finds missing columns and unreadable files before all of them are read.
  const options = {
    ...read,
    columns: [...(read.columns ?? []), ...subjects.flatMap(({ columns }) => columns)],
    maxTokens: 1,
    onBadRow: () => {},
  };
  progress.begin('checking');
  for await (const part of streamRollouts(files, options)) {
    await checkColumns(part, subjects, files);
    const obstacle = subjects.map((subject) => subject.obstacle(part.batch)).find((one) => one !== undefined);
    const pairs = subjects.some((subject) => subject.pairs);
    progress.begin('reading');
    const { shards, files: sizes } = await cutIntoShards(files, shardSize, pairs, (done) =>
      progress.advance(done / files.length, 0, 0),
    );
    if (obstacle !== undefined && shards.length > 1)
      throw new LossError('ERR_INVALID_OPTION', {
        at: obstacle,
        option: 'shardSize',
        expected: 'one shard, to compute all rows at once',
        received: `${shards.length} shards`,
        hint: (spell) => `Raise ${spell('shardSize')} and ${spell('batchTokens')}`,
      });
    // All shards have the columns of the first good row, as the rows of one process do.
    const columns = Object.keys(part.batch).flatMap((key) => columnOfKey(key) ?? []);
    const present = { columns, first: part.places[0]! };
    const complete = { ...configuration, present };
    return makePlan({ program: version, configuration: complete, files: sizes, shards });
  }
  throw new Error('a stream of rollouts has at least one part');
}

/** Returns a loss or an algorithm as a plan has it. */
export function plannedFunction({
  typed: { choice, name, typed, config },
  subject,
}: PlannedSubject): PlannedFunction {
  const program = programOf(subject);
  return {
    choice,
    name,
    options: wordsOf(typed),
    ...(config !== undefined && { config }),
    ...(program !== undefined && { program }),
  };
}

/** Returns the SHA-256 of a user-defined loss's program; undefined for a loss that is built in. */
function programOf({ policyLossFn: { policyLoss } }: Subject): string | undefined {
  if (!('program' in policyLoss)) return undefined;
  return sha256Of(JSON.stringify(policyLoss));
}

/**
 * Makes the losses and algorithms of a plan.
 * @param command the command that runs the plan, for the settings of its output.
 * @throws LossError if a function is unknown, or is not the one that was planned.
 */
export async function plannedSubjects(
  file: string,
  { configuration }: Plan,
  program: Command,
): Promise<TitledSubject[]> {
  const command = planCommand(program.createCommand().copyInheritedSettings(program));
  return Promise.all(
    configuration.functions.map(async ({ choice, name, options, config, program }) => {
      const { typed } = typedSubject(command, ['plan', `${choice}=${name}`, ...options]);
      if (typed?.choice !== choice || (choice === '--config') !== (config !== undefined))
        throw new LossError('ERR_INVALID_INPUT', {
          at: file,
          key: 'functions',
          expected: 'a policy loss, an algorithm, or a configuration with its text',
          received: `'${choice}'`,
        });
      const subject = await makeSubject({ ...typed, config }, command);
      if (programOf(subject) !== program)
        throw new LossError('ERR_INVALID_INPUT', {
          at: `${file}: ${name}`,
          expected: 'the same program as when the plan was made',
          received: 'another',
        });
      return subject;
    }),
  );
}

function printable(file: string, name: string, { hash, files, shards }: Plan): Printable {
  const planned: Planned = {
    file,
    hash,
    name,
    files: files.length,
    bytes: files.reduce((sum, { size }) => sum + size, 0),
    shards: shards.length,
    phases: shards.length > 1 ? ['count', 'compute'] : ['compute'],
  };
  return {
    json: () => planned,
    csv: () => {
      const { phases: _, ...cells } = planned;
      return csv(Object.keys(cells), [Object.values(cells)]);
    },
    text: () =>
      twoColumns([
        ['function', name],
        ['files', String(planned.files)],
        ['bytes', String(planned.bytes)],
        ['shards', String(planned.shards)],
        ['phases', planned.phases.join(', then ')],
        ['hash', hash],
        ['file', file],
      ]),
  };
}
