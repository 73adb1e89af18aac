// Reads batches for native calls: finds each input under one of its names, checks it and converts it if necessary.
import type { NativeAdvantageBatch, NativeBatch, NativeResident } from '../../binding.js';
import { isResizable } from './arrays.js';
import { type Batch, find } from './batch.js';
import {
  type NativeColumn,
  readFloat32,
  readFloats,
  readMask,
  readRowIds,
  readRowNumbers,
} from './columns.js';
import { cudaIndex } from './device.js';
import { DeviceBatch } from './device-batch.js';
import { describeValue, LossError } from './errors.js';
import type { KeyMapper } from './key-mapper.js';
import { type Layout, readLayout } from './layout.js';

/** The float columns that losses read, in the order of NativeColumns. */
export const COLUMNS = ['logprob', 'old_logprob', 'ref_logprob', 'advantages', 'entropy'] as const;
/** A float column that losses read, by Trinity's name. */
export type ColumnName = (typeof COLUMNS)[number];

/** The float columns that advantage functions read, in the order of NativeAdvantageColumns. */
export const ADVANTAGE_COLUMNS = ['token_level_rewards', 'old_logprob', 'teacher_logprob', 'values'] as const;

// What each input holds, for the error that reports it missing.
const EXPECTED = {
  logprob: 'a log-probability per token',
  old_logprob: 'a log-probability per token',
  ref_logprob: 'a log-probability per token',
  teacher_logprob: 'a log-probability per token',
  advantages: 'an advantage per token, or per row',
  entropy: 'an entropy per token',
  token_level_rewards: 'a reward per token, or the key rewards with one per row',
  token_level_scores: 'a score per token',
  values: "a critic's value per token",
  action_mask: 'a mask per token',
  expert_mask: 'a mask per row',
  rewards: 'a reward per row',
  reward_baselines: 'a reward per row',
  group_ids: 'an id per row, equal within a group',
  run_ids: 'an id per row, equal within a run',
  step: "the trainer's step, one number or one per row",
} as const;

/** Any input that a batch may have, by Trinity's name. */
export type InputName = keyof typeof EXPECTED;

/** An input that advantage functions read in addition to the mask. */
export type AdvantageInput =
  | (typeof ADVANTAGE_COLUMNS)[number]
  | 'rewards'
  | 'reward_baselines'
  | 'group_ids'
  | 'run_ids';

/** The inputs that a function reads, under Trinity's names. */
export interface Reads {
  /**
   * Required inputs, in the order of the checks. If the first is an array of rows, it can stand for shape or cuSeqlens.
   */
  inputs: readonly InputName[];
  /** Inputs that are read if present. */
  optional?: readonly InputName[];
  /** Columns that must have B×T values, because gradients are taken with respect to them; logprob by default. */
  perToken?: readonly InputName[];
  /** The order of the native columns: COLUMNS, or ADVANTAGE_COLUMNS; 'loss' by default. */
  order?: 'loss' | 'advantage';
}

/** A batch as native calls take it. */
export interface Input {
  native: NativeBatch | NativeResident;
  layout: Layout;
  /** The CUDA device to compute a host batch on; undefined for the CPU, and for a batch that is on a device. */
  device: number | undefined;
}

type Converted = NativeColumn | Uint8Array | Float64Array | Int32Array;

/**
 * Inputs of one batch that are already converted: readers that share it convert each input once. They must use the same
 * backend, and an advantage reader must read before a loss reader, because only the latter accepts values per row.
 */
export type Conversions = Map<InputName, Converted>;

interface ReaderEntry {
  name: InputName;
  keys: readonly string[];
  optional: boolean;
  mayBePerRow: boolean;
  /** Position among the native columns; -1 if the input is not a float column. */
  slot: number;
}

/** Reads host batches and device batches for one function. */
export class BatchReader {
  /** Whether it separates experts' rows from the policy's own. */
  readonly separatesExperts: boolean;
  readonly #mapper: KeyMapper;
  readonly #entries: readonly ReaderEntry[];
  readonly #needed: readonly InputName[];
  readonly #forAdvantage: boolean;

  constructor(mapper: KeyMapper, { inputs, optional = [], perToken = ['logprob'], order = 'loss' }: Reads) {
    const slots: readonly string[] = order === 'advantage' ? ADVANTAGE_COLUMNS : COLUMNS;
    this.separatesExperts = inputs.includes('expert_mask');
    this.#mapper = mapper;
    this.#forAdvantage = order === 'advantage';
    this.#needed = inputs;
    const masks = order === 'loss' ? inputs.filter((name) => name.endsWith('_mask')) : [];
    const others = inputs.filter((name) => !masks.includes(name));
    this.#entries = [...others, ...optional, ...masks].map((name) => ({
      name,
      keys: mapper.keys(name),
      optional: optional.includes(name),
      mayBePerRow: order === 'loss' && !perToken.includes(name),
      slot: slots.indexOf(name),
    }));
  }

  /** Returns whether a batch has an input, even one that this reader does not read. */
  has(batch: Batch | DeviceBatch, name: InputName): boolean {
    if (batch instanceof DeviceBatch) return batch.has(name);
    return batch !== null && typeof batch === 'object' && find(batch, this.#mapper.keys(name)) !== undefined;
  }

  /**
   * Reads a batch.
   * @param device the `device` option of the call.
   * @param conversions the inputs of this batch that other readers have already converted.
   * @throws LossError naming the key, the expected value and the given one.
   */
  read(batch: Batch | DeviceBatch, device?: string, conversions?: Conversions): Input {
    if (batch instanceof DeviceBatch) return this.#readResident(batch, device);
    const { native, layout } = this.readHost(batch, conversions);
    return { native, layout, device: cudaIndex(device) };
  }

  #readResident(batch: DeviceBatch, device: string | undefined): Input {
    const { native, layout } = batch.resident(device);
    for (const name of this.#needed)
      if (!batch.has(name) && !(name === 'token_level_rewards' && batch.has('rewards')))
        throw missingInput(this.#mapper, name, `it among the columns uploaded to ${batch.device}`);
    return { native, layout, device: undefined };
  }

  /**
   * Reads a host batch.
   * @throws LossError
   */
  readHost(batch: Batch, conversions?: Conversions): { native: NativeBatch; layout: Layout } {
    if (batch === null || typeof batch !== 'object')
      throw new LossError('ERR_INVALID_INPUT', {
        at: 'batch',
        expected: 'an object',
        received: describeValue(batch),
      });
    const [first] = this.#entries;
    const layout = readLayout(batch, first && find(batch, first.keys)?.value);
    const native = this.#forAdvantage ? emptyAdvantageBatch(layout) : emptyBatch(layout);
    for (const entry of this.#entries) {
      const found = find(batch, entry.keys);
      if (found) {
        put(native, entry, found.key, found.value, layout, conversions);
        continue;
      }
      if (entry.optional) continue;
      const rewards =
        entry.name === 'token_level_rewards' ? find(batch, this.#mapper.keys('rewards')) : undefined;
      if (!rewards) throw missingInput(this.#mapper, entry.name);
      (native as NativeAdvantageBatch).rewards = readRowNumbers(rewards.key, rewards.value, layout.rows);
    }
    return { native, layout };
  }
}

function emptyBatch(layout: Layout): NativeBatch {
  return {
    rows: layout.rows,
    rowLength: layout.rowLength,
    offsets: layout.offsets,
    data: [undefined, undefined, undefined, undefined, undefined],
    dtypes: [0, 0, 0, 0, 0],
    mask: undefined,
    expert: undefined,
  };
}

function emptyAdvantageBatch(layout: Layout): NativeAdvantageBatch {
  return {
    ...emptyBatch(layout),
    rewards: undefined,
    baselines: undefined,
    groups: undefined,
    runs: undefined,
  };
}

// Puts one input into the native batch, converted if necessary.
function put(
  native: NativeBatch,
  entry: ReaderEntry,
  key: string,
  value: unknown,
  layout: Layout,
  conversions: Conversions | undefined,
): void {
  // A fast path for the common case: a small batch takes only microseconds, so the general path would be noticeable.
  if (value instanceof Float32Array && entry.slot >= 0 && isReadyFor(value, layout.tokens)) {
    native.data[entry.slot] = value;
    return;
  }
  if (value instanceof Uint8Array && entry.name === 'action_mask' && isReadyFor(value, layout.tokens)) {
    native.mask = value;
    return;
  }
  let converted = conversions?.get(entry.name);
  if (converted === undefined) {
    converted = convert(entry, key, value, layout);
    conversions?.set(entry.name, converted);
  }
  if (entry.slot >= 0) {
    const { data, dtype } = converted as NativeColumn;
    native.data[entry.slot] = data;
    native.dtypes[entry.slot] = dtype;
  } else {
    (native as unknown as Record<string, unknown>)[MEMBERS[entry.name]!] = converted;
  }
}

// Checks byteLength first: optimised code may read the old `length` of a detached array, but not its old byteLength.
function isReadyFor(array: Float32Array | Uint8Array, length: number): boolean {
  return array.byteLength > 0 && array.length === length && !isResizable(array);
}

// The members of a native batch that hold the inputs without a column slot.
const MEMBERS: Partial<Record<InputName, keyof NativeAdvantageBatch>> = {
  action_mask: 'mask',
  expert_mask: 'expert',
  rewards: 'rewards',
  reward_baselines: 'baselines',
  group_ids: 'groups',
  run_ids: 'runs',
};

function convert({ name, mayBePerRow }: ReaderEntry, key: string, value: unknown, layout: Layout): Converted {
  switch (name) {
    case 'action_mask':
      return readMask(key, value, layout, 'token');
    case 'expert_mask':
      return readMask(key, value, layout, 'row');
    case 'rewards':
    case 'reward_baselines':
      return readRowNumbers(key, value, layout.rows);
    case 'group_ids':
    case 'run_ids':
      return readRowIds(key, value, layout.rows);
    default:
      return readFloats(key, value, layout, mayBePerRow);
  }
}

/** Returns the error for a missing input, with all keys under which a batch may have it. */
export function missingInput(
  mapper: KeyMapper,
  name: InputName,
  expected: string = EXPECTED[name],
): LossError {
  const [key, ...others] = mapper.keys(name);
  return new LossError('ERR_MISSING_INPUT', {
    key,
    expected: others.length > 0 ? `${expected} (also accepted as ${others.join(' or ')})` : expected,
    received: 'a batch without it',
  });
}

/**
 * Reads one input of a host batch that must be present.
 * @throws LossError `ERR_MISSING_INPUT`
 */
export function findInput(
  batch: object,
  mapper: KeyMapper,
  name: InputName,
): { key: string; value: unknown } {
  const found = find(batch, mapper.keys(name));
  if (!found) throw missingInput(mapper, name);
  return found;
}

/**
 * Reads a column of one float32 per token from a host batch.
 * @throws LossError
 */
export function readTokenFloats(
  batch: object,
  mapper: KeyMapper,
  name: InputName,
  layout: Layout,
): Float32Array {
  const { key, value } = findInput(batch, mapper, name);
  return readFloat32(key, value, layout);
}

/**
 * Reads the trainer's step number, which must be the same for all rows.
 * @throws LossError `ERR_INVALID_INPUT` if rows differ.
 */
export function readStep(batch: object, mapper: KeyMapper, rows: number): number {
  const { key, value } = findInput(batch, mapper, 'step');
  if (typeof value === 'number') return checkStep(key, value);
  if (!Array.isArray(value) && !ArrayBuffer.isView(value))
    throw new LossError('ERR_INVALID_INPUT', {
      key,
      expected: 'a number, or one per row',
      received: describeValue(value),
    });
  const steps = value as unknown as ArrayLike<number>;
  if (steps.length !== rows)
    throw new LossError('ERR_SHAPE_MISMATCH', {
      key,
      expected: `[${rows}], one value per row`,
      received: String(steps.length),
    });
  for (let row = 1; row < rows; row++)
    if (steps[row] !== steps[0])
      throw new LossError('ERR_INVALID_INPUT', {
        key,
        expected: 'the same step in all rows',
        received: `${steps[0]} in row 0 and ${steps[row]} in row ${row}`,
      });
  return rows === 0 ? 0 : checkStep(key, steps[0]);
}

function checkStep(key: string, step: unknown): number {
  if (typeof step !== 'number' || !Number.isFinite(step))
    throw new LossError('ERR_INVALID_INPUT', {
      key,
      expected: 'a finite number',
      received: describeValue(step),
    });
  return step;
}
