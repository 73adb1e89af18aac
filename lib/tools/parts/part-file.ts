// Part files: what a phase has found out about a shard, or about all of them. A part file has two lines of JSON. The first
// says which plan, phase and shard it belongs to, the second has the data. Numbers are in Base64, with all their bits.
import { createReadStream } from 'node:fs';
import { join } from 'node:path';
import { LossError } from '../../base/errors.js';
import { describeFailure } from '../rollouts/source.js';
import { sha256Of } from './digest.js';
import type { ShardResult } from './evaluation.js';
import { Fields } from './fields.js';
import { countsFrom, countsToJson, resultFrom, resultToJson } from './part-data.js';
import { PHASES, type Phase, type Plan } from './plan.js';
import type { ShardRows } from './shard.js';
import type { ShardCounts } from './shard-counts.js';
import { readWhole, writeWhole } from './whole-file.js';

/** Which part a file has. */
export interface PartHeader {
  /** The hash of the plan. */
  plan: string;
  /** 'whole' for the merged counts of all shards. */
  phase: Phase | 'whole';
  /** Absent for 'whole'. */
  shard?: number;
}

/** The counts of all shards, merged, and the rows of each shard. */
export interface WholeCounts {
  counts: ShardCounts;
  shards: ShardRows[];
}

/** The error about a part whose bytes are not those that a worker wrote. */
export class DamagedPart extends LossError {}

/** The ending of part files. */
export const PART_ENDING = '.part';

/** Returns the name of a part file. */
export function partName({ phase, shard }: Omit<PartHeader, 'plan'>): string {
  return phase === 'whole' ? `whole${PART_ENDING}` : `${phase}-${numberOf(shard!)}${PART_ENDING}`;
}

/** Returns the number of a shard as the names of its files have it. */
export function numberOf(shard: number): string {
  return String(shard).padStart(5, '0');
}

/** Writes what the first phase has found out about a shard. */
export function writeCounts(folder: string, plan: Plan, shard: number, counts: ShardCounts): Promise<string> {
  return writePart(folder, { plan: plan.hash, phase: 'count', shard }, countsToJson(counts));
}

/**
 * Writes the results of a shard.
 * @param collected what a Collector has found out about its rows.
 */
export function writeResult(
  folder: string,
  plan: Plan,
  shard: number,
  result: ShardResult,
  collected?: object,
): Promise<string> {
  const data = { ...resultToJson(result), ...(collected && { collected }) };
  return writePart(folder, { plan: plan.hash, phase: 'compute', shard }, data);
}

/** Writes the merged counts of all shards. */
export function writeWholeCounts(
  folder: string,
  plan: Plan,
  { counts, shards }: WholeCounts,
): Promise<string> {
  const data = { counts: countsToJson(counts), shards };
  return writePart(folder, { plan: plan.hash, phase: 'whole' }, data);
}

async function writePart(folder: string, header: PartHeader, data: unknown): Promise<string> {
  const file = join(folder, partName(header));
  const body = JSON.stringify(data);
  const head = { format: FORMAT, version: VERSION, ...header, sha256: sha256Of(body) };
  await writeWhole(file, `${JSON.stringify(head)}\n${body}\n`);
  return file;
}

/** Reads what writeCounts() wrote. */
export async function readCounts(file: string, plan: Plan): Promise<ShardCounts> {
  return countsFrom(await readPart(file, plan, 'count'), plan.configuration.maxRows);
}

/**
 * Reads what writeResult() wrote.
 * @param onCollected gets what was collected about the shard's rows.
 */
export async function readResult(file: string, plan: Plan, onCollected?: OnCollected): Promise<ShardResult> {
  const fields = await readPart(file, plan, 'compute');
  const result = resultFrom(fields, plan.configuration, plan.shards.length === 1);
  onCollected?.(fields.object('collected'));
  return result;
}

/** A function that is called with what a Collector has collected about the rows of a shard. */
export type OnCollected = (collected: Fields) => void;

/** Reads what writeWholeCounts() wrote. */
export async function readWholeCounts(file: string, plan: Plan): Promise<WholeCounts> {
  const fields = await readPart(file, plan, 'whole');
  const counts = countsFrom(fields.object('counts'), plan.configuration.maxRows);
  const shards = fields.list('shards', (item, name) => {
    const rows = item.object(name);
    return { start: rows.count('start'), rows: rows.count('rows'), tokens: rows.count('tokens') };
  });
  if (shards.length !== plan.shards.length)
    throw fields.error('shards', `${plan.shards.length} shards`, String(shards.length));
  return { counts, shards };
}

const FORMAT = 'policy-loss part';
const VERSION = 1;

// No header is longer.
const MAX_HEADER_BYTES = 512;

/**
 * Reads the header of a part.
 * @throws LossError `ERR_INVALID_INPUT` if the file is not a part, or one of another plan.
 */
export async function readHeader(file: string, plan: Plan): Promise<PartHeader> {
  let text: string;
  try {
    const bytes = createReadStream(file, { encoding: 'utf8', end: MAX_HEADER_BYTES - 1 });
    text = (await bytes.toArray()).join('');
  } catch (error) {
    throw notAPart(file, error);
  }
  return headerFrom(file, text.split('\n', 1)[0]!, plan).header;
}

async function readPart(file: string, plan: Plan, phase: PartHeader['phase']): Promise<Fields> {
  const text = await readWhole(file, 'a part');
  const [head, body, end] = text.split('\n', 3);
  const { header, sha256 } = headerFrom(file, head!, plan);
  if (header.phase !== phase)
    throw new LossError('ERR_INVALID_INPUT', {
      at: file,
      expected: `a part of the phase '${phase}'`,
      received: `one of '${header.phase}'`,
    });
  if (end === undefined || sha256Of(body!) !== sha256)
    throw new DamagedPart('ERR_INVALID_INPUT', {
      at: file,
      expected: 'a complete part, with the SHA-256 that its first line states',
      received: end === undefined ? 'a truncated one' : 'other data',
      hint: 'Run the shard again',
    });
  try {
    return new Fields(file, JSON.parse(body!));
  } catch (error) {
    throw notAPart(file, error);
  }
}

function headerFrom(file: string, line: string, plan: Plan): { header: PartHeader; sha256: string } {
  let fields: Fields;
  try {
    fields = new Fields(file, JSON.parse(line));
  } catch (error) {
    throw notAPart(file, error);
  }
  fields.choice('format', [FORMAT]);
  if (fields.count('version') !== VERSION)
    throw fields.error('version', String(VERSION), String(fields.count('version')));
  const hash = fields.digest('plan');
  if (hash !== plan.hash)
    throw new LossError('ERR_INVALID_INPUT', {
      at: file,
      expected: `a part of this plan, ${plan.hash.slice(0, 12)}…`,
      received: `one of the plan ${hash.slice(0, 12)}…`,
    });
  const phase = fields.choice('phase', [...PHASES, 'whole']);
  const shard = phase === 'whole' ? undefined : fields.count('shard', plan.shards.length - 1);
  const header = { plan: hash, phase, ...(shard !== undefined && { shard }) };
  return { header, sha256: fields.digest('sha256') };
}

function notAPart(file: string, error: unknown): LossError {
  if (error instanceof LossError) return error;
  const details = { at: file, expected: 'a part', received: describeFailure(error) };
  return new DamagedPart('ERR_INVALID_INPUT', details, { cause: error });
}
