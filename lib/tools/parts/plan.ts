// Plans: which rows each shard has, and how they are read and computed. A plan names functions and files. It has no code.

import { LossError } from '../../base/errors.js';
import { FILES_AT_ONCE, inOrder } from '../rollouts/in-order.js';
import {
  cutFile,
  GRADIENT_DTYPES,
  type GradientDtype,
  type HashedRange,
  type PresentColumns,
} from '../rollouts/index.js';
import { sizeOfJson } from '../rollouts/json-size.js';
import { isRemote } from '../rollouts/remote/index.js';
import { describeFailure } from '../rollouts/source.js';
import { sha256Of } from './digest.js';
import { columnsFrom, Fields, placeFrom } from './fields.js';
import { readWhole, writeWhole } from './whole-file.js';

/** A policy loss or an algorithm, as the words of a command line that name it. */
export interface PlannedFunction {
  /** The flag that names it, such as '--loss', and the flag's value. */
  choice: string;
  name: string;
  /** Its options, as flags. */
  options: string[];
  /** The text of the configuration that `name` is the file of; absent for other functions. */
  config?: string;
  /** The SHA-256 of a user-defined loss's program; absent for a loss that is built in. */
  program?: string;
}

/** The functions that are computed, and how the rows are read. */
export interface PlannedConfiguration {
  functions: PlannedFunction[];
  /** The names of columns in the files, as `--column` and `--backend` give them. */
  column: Record<string, string>;
  backend: string;
  skipBadRows: boolean;
  strict: boolean;
  maxRowTokens: number;
  maxRows: number;
  batchTokens: number;
  device: string;
  /** The files of gradients to write, one per shard; absent if none are. */
  gradients?: { ending: string; ids: string[]; padded: boolean; dtype: GradientDtype };
  /** true if the parts also have what a report needs. */
  forReport?: boolean;
  /** true if the functions' gradients are compared. */
  compares?: boolean;
  /** The columns that all rows have. If absent, the first row of each shard decides. */
  present?: PresentColumns;
}

/** The phases in which each shard is run. */
export const PHASES = ['count', 'compute'] as const;
export type Phase = (typeof PHASES)[number];

/** A plan. */
export interface Plan {
  /** The version of the package that made the plan. The same one must run it. */
  program: string;
  configuration: PlannedConfiguration;
  /** The files, with their sizes in bytes. Those on servers have an ETag, if the server gives a strong one. */
  files: { file: string; size: number; etag?: string }[];
  /** The ranges of files of which each shard consists. */
  shards: HashedRange[][];
  /** The SHA-256 of everything else in the plan. It tells which plan a part belongs to. */
  hash: string;
}

/** Returns a plan of shards that cutIntoShards() has made. */
export function makePlan(about: Omit<Plan, 'hash'>): Plan {
  return { ...about, hash: hashOf(fieldsOf(about)) };
}

/**
 * Cuts files into shards by size. The shards depend on the files and on the size only.
 * @param bytes the size from which on a shard ends. A shard has at least a line, a row group, or a file that is read as
 * a whole.
 * @param pairs whether each shard but the last must have an even number of rows.
 * @param onFile is called after each file.
 */
export async function cutIntoShards(
  files: readonly string[],
  bytes: number,
  pairs: boolean,
  onFile: (files: number) => void,
): Promise<Pick<Plan, 'files' | 'shards'>> {
  const sizes: Plan['files'] = [];
  const shards: HashedRange[][] = [];
  let shard: HashedRange[] = [];
  let size = 0;
  let rows = 0;
  const canEnd = (more = 0) => !pairs || (rows + more) % 2 === 0;
  const end = () => {
    if (shard.length > 0) shards.push(shard);
    [shard, size] = [[], 0];
  };
  // Whether pairs are whole depends on the files before.
  const atOnce = !pairs && files.some(isRemote) ? FILES_AT_ONCE : 1;
  let done = 0;
  for await (const { ranges, ...about } of inOrder(files, atOnce, (name) =>
    cutFile(name, bytes, pairs, canEnd),
  )) {
    sizes.push(about);
    for (const range of ranges) {
      const more = range.end - range.start;
      if (size > 0 && size + more > bytes && canEnd()) end();
      shard.push(range);
      size += more;
      rows += range.rows ?? 0;
      if (size >= bytes && canEnd()) end();
    }
    onFile(++done);
  }
  end();
  return { files: sizes, shards };
}

const FORMAT = 'policy-loss plan';
const VERSION = 1;

/** Returns the plan as the object that its file has, without the hash. */
function fieldsOf({ program, configuration, files, shards }: Omit<Plan, 'hash'>) {
  const indices = new Map(files.map(({ file }, i) => [file, i]));
  return {
    format: FORMAT,
    version: VERSION,
    program,
    phases: shards.length > 1 ? PHASES : (['compute'] as const),
    configuration,
    files,
    shards: shards.map((ranges) =>
      ranges.map(({ file, start, end, sha256, whole, line, groups }) => ({
        file: indices.get(file)!,
        start,
        end,
        ...(whole && { whole }),
        ...(line !== undefined && { line }),
        ...(groups && { groups }),
        ...(sha256 !== undefined && { sha256 }),
      })),
    ),
  };
}

function hashOf(fields: object): string {
  return sha256Of(JSON.stringify(fields));
}

/** Writes a plan to a file, with one line per file and per shard. */
export async function writePlan(file: string, plan: Plan): Promise<void> {
  const entries = Object.entries({ ...fieldsOf(plan), hash: plan.hash }).map(([key, value]) => {
    const inLines = key === 'files' || key === 'shards';
    const text = inLines
      ? `[\n${(value as unknown[]).map((item) => JSON.stringify(item)).join(',\n')}\n]`
      : JSON.stringify(value);
    return `"${key}": ${text}`;
  });
  await writeWhole(file, `{${entries.join(',\n')}}\n`);
}

/**
 * Reads a plan.
 * @param program the version of this package.
 * @throws LossError `ERR_INVALID_INPUT` if the file is not a plan, was changed, or was made by another version.
 */
export async function readPlan(file: string, program: string): Promise<Plan> {
  const given = await readJson(file);
  const fields = new Fields(file, given);
  fields.choice('format', [FORMAT]);
  if (fields.count('version') !== VERSION)
    throw fields.error('version', String(VERSION), String(fields.count('version')));
  if (fields.text('program') !== program)
    throw fields.error('program', `${program}, the version of this program`, fields.text('program'));
  const { hash, ...rest } = given as Record<string, unknown>;
  if (hashOf(rest) !== hash)
    throw fields.error('hash', `${hashOf(rest)}, the hash of the plan`, String(hash).slice(0, 80));
  const files = fields.list('files', (item, name) => {
    const about = item.object(name);
    return {
      file: about.text('file'),
      size: about.count('size'),
      ...(about.has('etag') && { etag: about.text('etag') }),
    };
  });
  const shards = fields.list('shards', (item, name) =>
    item.list(name, (item, name) => rangeOf(item.object(name), files)),
  );
  if (shards.length === 0) throw fields.error('shards', 'at least one shard', 'none');
  return {
    program,
    configuration: configurationOf(fields.object('configuration')),
    files,
    shards,
    hash: fields.digest('hash'),
  };
}

function rangeOf(fields: Fields, files: Plan['files']): HashedRange {
  const { file, size, etag } = files[fields.count('file', files.length - 1)]!;
  const end = fields.count('end', size);
  const groups = fields.has('groups') && fields.list('groups', (item, name) => item.count(name));
  return {
    file,
    start: fields.count('start', end - 1),
    end,
    whole: fields.has('whole') && fields.flag('whole'),
    ...((etag === undefined || fields.has('sha256')) && { sha256: fields.digest('sha256') }),
    ...(fields.has('line') && { line: fields.count('line') }),
    ...(groups && { groups: [groups[0] ?? 0, groups[1] ?? 0] as const }),
  };
}

function configurationOf(fields: Fields): PlannedConfiguration {
  const functions = fields.list('functions', (item, name) => {
    const about = item.object(name);
    return {
      choice: about.text('choice'),
      name: about.text('name'),
      options: about.texts('options'),
      ...(about.has('config') && { config: about.text('config') }),
      ...(about.has('program') && { program: about.digest('program') }),
    };
  });
  if (functions.length === 0) throw fields.error('functions', 'at least one function', 'none');
  const gradients = fields.has('gradients') && fields.object('gradients');
  return {
    functions,
    column: fields.record('column', (column, name) => column.text(name)),
    backend: fields.text('backend'),
    skipBadRows: fields.flag('skipBadRows'),
    strict: fields.flag('strict'),
    maxRowTokens: fields.count('maxRowTokens'),
    maxRows: fields.count('maxRows'),
    batchTokens: fields.count('batchTokens'),
    device: fields.text('device'),
    ...(gradients && {
      gradients: {
        ending: gradients.choice('ending', GRADIENT_ENDINGS),
        ids: gradients.texts('ids'),
        padded: gradients.flag('padded'),
        dtype: gradients.choice('dtype', GRADIENT_DTYPES),
      },
    }),
    ...(fields.has('forReport') && { forReport: fields.flag('forReport') }),
    ...(fields.has('compares') && { compares: fields.flag('compares') }),
    ...(fields.has('present') && { present: presentFrom(fields.object('present')) }),
  };
}

function presentFrom(fields: Fields): PresentColumns {
  return { columns: columnsFrom(fields, 'columns'), first: placeFrom(fields.object('first')) };
}

/** The formats of files of gradients, by the endings of their names. */
export const GRADIENT_ENDINGS = ['safetensors', 'parquet', 'jsonl', 'jsonl.gz'] as const;

// A plan has fewer. The hash of a deeper one could not be computed.
const MAX_DEPTH = 32;

/**
 * Reads a file of JSON.
 * @throws LossError `ERR_INVALID_INPUT`
 */
async function readJson(file: string): Promise<unknown> {
  const text = await readWhole(file, 'a plan');
  const { depth } = sizeOfJson(Buffer.from(text));
  if (depth > MAX_DEPTH)
    throw new LossError('ERR_INVALID_INPUT', {
      at: file,
      expected: `a plan of at most ${MAX_DEPTH} levels`,
      received: `${depth} levels`,
    });
  try {
    return JSON.parse(text);
  } catch (error) {
    const details = { at: file, expected: 'a plan', received: describeFailure(error) };
    throw new LossError('ERR_INVALID_INPUT', details, { cause: error });
  }
}
