// Plans the computation of losses and algorithms, and makes them again from a plan.
import { type Command, InvalidArgumentError, Option } from 'commander';
import { LossError, PolicyLossFn } from '../../index.js';
import { sha256Of } from '../parts/digest.js';
import {
  checkColumns,
  checkComparable,
  cutIntoShards,
  logprobsOf,
  makePlan,
  type Plan,
  type PlannedConfiguration,
  type PlannedFunction,
  type Subject,
} from '../parts/index.js';
import { columnOfKey, streamRollouts } from '../rollouts/index.js';
import { version } from './about.js';
import type { GradientEnding } from './gradient-files.js';
import { REPORT_COLUMNS } from './report-file.js';
import {
  type RolloutsOptions,
  type RolloutsRun,
  rolloutsCommand,
  type WantedColumns,
} from './rollouts-command.js';
import {
  makeSubject,
  readConfiguration,
  type TitledSubject,
  type TypedSubject,
  typedSubject,
} from './typed-subjects.js';
import { wordsOf } from './words.js';
import type { WritingOptions } from './writing-options.js';

/** How to plan a computation. */
export interface PlanningOptions extends RolloutsOptions {
  shardSize?: number;
}

// A shard takes seconds, which is long compared to the start of a process, and short enough to be repeated. For a report,
// it also holds what is measured of each of its rows.
const SHARD_BYTES = 2 ** 28;
const SHARD_BYTES_FOR_REPORT = 2 ** 26;

/** Returns the option `--shard-size`. */
export const SHARD_SIZE_OPTION = () =>
  new Option(
    '--shard-size <bytes>',
    'the size from which on a shard ends, such as 64M; K, M and G are powers of 1024 (default: 256M, or 64M for a report)',
  ).argParser(parseSize);

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

/** How to plan, with the settings of the plan that not every command has as options. */
type WholePlanningOptions = PlanningOptions &
  Partial<WritingOptions> & { device: string; gradients?: GradientEnding; forReport?: boolean } & Pick<
    PlannedConfiguration,
    'compares'
  >;

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
  if (options.compares) checkComparable(subjects);
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
    logprobs: logprobsOf(subjects),
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
function programOf({ lossFn }: Subject): string | undefined {
  const { policyLoss } = lossFn instanceof PolicyLossFn ? lossFn : lossFn.spec;
  if (!policyLoss || !('program' in policyLoss)) return undefined;
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
  const parent = program.createCommand().copyInheritedSettings(program);
  const command = rolloutsCommand(parent, { name: 'plan', summary: '', description: '', examples: [] });
  return Promise.all(
    configuration.functions.map(async ({ choice, name, options, config, program }) => {
      const { typed } = typedSubject(command, ['plan', `${choice}=${name}`, ...options]);
      if (typed?.choice !== choice || (choice === '--config') !== (config !== undefined))
        throw new LossError('ERR_INVALID_INPUT', {
          at: file,
          key: 'functions',
          expected: 'a loss, an algorithm, or a configuration with its text',
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
