// Trinity-RFT: experiences, in frames (TRXP) of a pickle and tensors, or as pickled objects before version 0.5.2.
import type { Bytes } from '../bytes.js';
import { BadObject, Instance, Opaque, PyList } from '../pickle/values.js';
import { badFile } from '../source.js';
import { DTYPES } from '../tensor/dtype.js';
import { MAX_HEADER, parseHeader } from '../tensor/safetensors.js';
import { loadPickle } from '../torch/load.js';
import { Storage, Strided } from '../torch/strided.js';
import { type Dump, type DumpColumn, lengthOf, numberOf, numberOrOpaque, partOf } from './dump.js';

/** An experience: its fields by name. The id, `eid`, is a Map too. */
export type Experience = ReadonlyMap<unknown, unknown>;

const MAGIC = 'TRXP';
const HEADER_BYTES = 21;

/** Whether bytes begin like a frame of experiences. */
export function isFrame(head: Uint8Array): boolean {
  return Buffer.from(head.subarray(0, 4)).toString('latin1') === MAGIC;
}

/**
 * Returns the experiences in the bytes of Trinity-RFT's column `experience_bytes`: a frame of one or more, a pickled
 * one, or a pickled list.
 * @throws LossError or BadObject if the bytes are malformed.
 */
export function readExperiences(bytes: Bytes): Experience[] {
  if (isFrame(bytes.read(0, Math.min(4, bytes.size)))) return readFrame(bytes);
  const found = experiencesIn(loadPickle(bytes));
  if (!found) throw new BadObject('experiences', 'another object');
  return found;
}

/** Returns the experiences that a pickled value is; undefined for another value. */
export function experiencesIn(value: unknown): Experience[] | undefined {
  const items = value instanceof PyList ? value.kept() : [value];
  const experiences = items.map((item) =>
    item instanceof Instance && item.name.endsWith('.Experience') && item.state instanceof Map
      ? (item.state as Experience)
      : undefined,
  );
  return experiences.length > 0 && experiences.every((one) => one !== undefined) ? experiences : undefined;
}

/** Returns the experiences of a frame: a version, two lengths, a pickle of plain values, and tensors. */
export function readFrame(bytes: Bytes): Experience[] {
  const header = Buffer.from(bytes.read(0, HEADER_BYTES));
  if (header[4] !== 1) throw new BadObject('version 1 of the frame', String(header[4]));
  const metadataBytes = Number(header.readBigUInt64LE(5));
  const tensorBytes = Number(header.readBigUInt64LE(13));
  const expected = HEADER_BYTES + metadataBytes + tensorBytes;
  if (expected !== bytes.size) throw new BadObject(`a frame of ${expected} bytes`, String(bytes.size));
  const metadata = loadPickle(bytes.slice(HEADER_BYTES, metadataBytes));
  const items = metadata instanceof Map ? metadata.get('items') : undefined;
  if (!(items instanceof PyList)) throw new BadObject('a list of items in the metadata', 'none');
  const experiences = items.kept().map((item) => {
    if (!(item instanceof Map)) throw new BadObject('dicts as items', 'another value');
    return item as Map<unknown, unknown>;
  });
  const tensors = bytes.slice(HEADER_BYTES + metadataBytes, tensorBytes);
  for (const [name, tensor] of tensorsOf(tensors)) {
    const [, index, field] = /^(\d+):(.*)$/s.exec(name) ?? [];
    const experience = experiences[Number(index)];
    if (!experience) throw new BadObject(`tensors of ${experiences.length} items`, name.slice(0, 40));
    experience.set(field, tensor);
  }
  return experiences;
}

/** Returns the tensors of bytes in the format of safetensors. */
function tensorsOf(bytes: Bytes): Map<string, Strided> {
  const tensors = new Map<string, Strided>();
  if (bytes.size === 0) return tensors;
  const length = Number(Buffer.from(bytes.read(0, 8)).readBigUInt64LE());
  if (length > Math.min(bytes.size - 8, MAX_HEADER))
    throw new BadObject(`a header of at most ${bytes.size - 8} bytes`, String(length));
  const data = bytes.slice(8 + length);
  for (const [name, entry] of parseHeader(bytes.file, bytes.read(8, length), data.size)) {
    const [begin, end] = entry.data_offsets;
    if (!DTYPES.has(entry.dtype))
      throw badFile(bytes.file, { key: name, expected: 'a known dtype', received: entry.dtype });
    tensors.set(
      name,
      Strided.contiguous(Storage.of(data.slice(begin, end - begin), entry.dtype), entry.shape),
    );
  }
  return tensors;
}

const FIELDS: Readonly<Record<string, string>> = {
  old_logprobs: 'logprobs',
  rollout_logprobs: 'logprobs',
  token_level_rewards: 'token_level_reward',
  prompt: 'prompt_text',
  response: 'response_text',
};
const SAME = [
  'teacher_logprobs',
  'advantages',
  'returns',
  'action_mask',
  'reward',
  'metrics',
  'info',
  'messages',
  'truncate_status',
];

/** The columns of an experience's row in a buffer, which count more than the experience itself. */
export interface Stored {
  task_id?: unknown;
  run_id?: unknown;
  reward?: unknown;
}

/** Returns experiences as rows. */
export function trinityDump(experiences: readonly Experience[], stored: Stored = {}): Dump {
  const field =
    (name: string): DumpColumn =>
    (row) =>
      experiences[row]!.get(name);
  const columns = new Map<string, DumpColumn>();
  for (const name of SAME) columns.set(name, field(name));
  for (const [ours, theirs] of Object.entries(FIELDS)) columns.set(ours, field(theirs));
  const id = (name: string): DumpColumn => {
    return (row) => {
      const eid = field('eid')(row);
      const fields = eid instanceof Instance ? eid.state : eid;
      return fields instanceof Map ? fields.get(name) : undefined;
    };
  };
  columns.set('task_id', (row) => {
    const task = stored.task_id ?? id('task')(row);
    const batch = id('batch')(row);
    if (task instanceof Opaque) return task;
    return isId(task) ? (isId(batch) ? `${batch}/${task}` : task) : undefined;
  });
  columns.set('run_id', (row) => stored.run_id ?? id('run')(row));
  columns.set('step', id('step'));
  columns.set('reward', (row) => numberOf(stored.reward) ?? numberOrOpaque(field('reward')(row)));
  columns.set('tokens', (row) => {
    const tokens = field('tokens')(row);
    const all = lengthOf(tokens);
    const prompt = numberOf(field('prompt_length')(row)) ?? 0;
    return all === undefined ? undefined : partOf(tokens, Math.min(prompt, all), all);
  });
  return {
    rows: experiences.length,
    columns,
    tokens: (row) => lengthOf(field('logprobs')(row)) ?? lengthOf(field('action_mask')(row)),
  };
}

function isId(value: unknown): value is string | number {
  return typeof value === 'string' || typeof value === 'number';
}
