// What advantage functions read of a batch: rewards, ids and columns, on their way to native code.
import type { NativeAdvantageBatch, NativeResident } from '../../../binding.js';
import {
  type Batch,
  checkAttached,
  find,
  keysOf,
  type Layout,
  missing,
  readFloats,
  readLayout,
  readMask,
  steady,
} from '../../core/batch.js';
import { cudaIndex } from '../../core/device.js';
import { DeviceBatch } from '../../core/device-batch.js';
import { describeValue, LossError } from '../../core/errors.js';
import type { KeyMapper } from '../../core/key-mapper.js';

/** Inputs beside the mask, under Trinity's names. */
export type AdvantageInput =
  | 'token_level_rewards'
  | 'rewards'
  | 'values'
  | 'reward_baselines'
  | 'group_ids'
  | 'run_ids'
  | 'old_logprob'
  | 'teacher_logprob';

// The slots of NativeAdvantageColumns.
const COLUMN_SLOTS = { token_level_rewards: 0, old_logprob: 1, teacher_logprob: 2, values: 3 } as const;
const EXPECTED: Record<AdvantageInput, string> = {
  token_level_rewards: 'a reward per token, or rewards: one per row',
  rewards: 'a reward per row',
  values: "a critic's value per token",
  reward_baselines: 'a reward per row',
  group_ids: 'a name per row, the same in a group',
  run_ids: 'a name per row, the same in a run',
  old_logprob: 'floats per token',
  teacher_logprob: 'floats per token',
};

/** A batch as it was read, and under which keys. */
export interface ReadAdvantageBatch {
  native: NativeAdvantageBatch;
  layout: Layout;
  /** Which key each input came under. */
  keys: Partial<Record<AdvantageInput, string>>;
}

/** A batch as native calls take it. */
export interface AdvantageSource {
  native: NativeAdvantageBatch | NativeResident;
  layout: Layout;
  /** The host batch behind it; undefined where the batch lies on a device. */
  host: ReadAdvantageBatch | undefined;
  /** The CUDA device that a host batch is to be computed on; undefined: the CPU, or where the batch lies. */
  device: number | undefined;
}

/** Reads batches for an advantage function. */
export class AdvantageReader {
  readonly #inputs: readonly { name: AdvantageInput; keys: readonly string[] }[];
  readonly #maskKeys: readonly string[];
  readonly #rewardKeys: readonly string[];

  /** @param inputs what is read beside the mask. */
  constructor(mapper: KeyMapper, inputs: readonly AdvantageInput[]) {
    this.#inputs = inputs.map((name) => ({ name, keys: keysOf(mapper, name) }));
    this.#maskKeys = keysOf(mapper, 'action_mask');
    this.#rewardKeys = keysOf(mapper, 'rewards');
  }

  /**
   * A batch of the host or of a device.
   * @param device the `device` option of the call.
   * @throws LossError naming the key, what was expected and what came.
   */
  source(batch: Batch | DeviceBatch, device: string | undefined): AdvantageSource {
    if (!(batch instanceof DeviceBatch)) {
      const host = this.read(batch);
      return { native: host.native, layout: host.layout, host, device: cudaIndex(device) };
    }
    const { native, layout } = batch.resident(device);
    const there = `it to have been uploaded to ${batch.device}`;
    if (!batch.has('action_mask')) throw missing(this.#maskKeys, there);
    for (const { name, keys } of this.#inputs)
      if (!batch.has(name) && !(name === 'token_level_rewards' && batch.has('rewards')))
        throw missing(keys, there);
    return { native, layout, host: undefined, device: undefined };
  }

  /** @throws LossError naming the key, what was expected and what came. */
  read(batch: Batch): ReadAdvantageBatch {
    if (batch === null || typeof batch !== 'object')
      throw new LossError('ERR_INVALID_INPUT', `batch must be an object, not ${describeValue(batch)}`);
    const mask = find(batch, this.#maskKeys);
    const layout = readLayout(batch, mask?.value);
    if (!mask) throw missing(this.#maskKeys, 'a mask per token');
    const native: NativeAdvantageBatch = {
      rows: layout.rows,
      columns: layout.columns,
      offsets: layout.offsets,
      data: [undefined, undefined, undefined, undefined, undefined],
      dtypes: [0, 0, 0, 0, 0],
      mask: readMask(mask.key, mask.value, layout, 'token'),
      expert: undefined,
      rewards: undefined,
      baselines: undefined,
      groups: undefined,
      runs: undefined,
    };
    const keys: ReadAdvantageBatch['keys'] = {};
    for (const input of this.#inputs) {
      let { name } = input;
      let found = find(batch, input.keys);
      if (!found && name === 'token_level_rewards') {
        name = 'rewards';
        found = find(batch, this.#rewardKeys);
      }
      if (!found) throw missing(input.keys, EXPECTED[input.name]);
      keys[name] = found.key;
      put(native, name, found.key, found.value, layout);
    }
    return { native, layout, keys };
  }
}

function put(
  native: NativeAdvantageBatch,
  name: AdvantageInput,
  key: string,
  value: unknown,
  layout: Layout,
): void {
  switch (name) {
    case 'rewards':
      native.rewards = readRowNumbers(key, value, layout.rows);
      break;
    case 'reward_baselines':
      native.baselines = readRowNumbers(key, value, layout.rows);
      break;
    case 'group_ids':
      native.groups = readRowIds(key, value, layout.rows);
      break;
    case 'run_ids':
      native.runs = readRowIds(key, value, layout.rows);
      break;
    default:
      readFloats(key, value, layout, false, COLUMN_SLOTS[name], native);
  }
}

/**
 * One number per row, whether finite or not.
 * @throws LossError
 */
export function readRowNumbers(key: string, value: unknown, rows: number): Float64Array {
  let numbers: Float64Array;
  if (value instanceof Float64Array || value instanceof Float32Array) {
    checkAttached(key, value);
    checkRows(key, value.length, rows);
    numbers = value instanceof Float64Array ? steady(value) : new Float64Array(value);
  } else if (Array.isArray(value)) {
    checkRows(key, value.length, rows);
    numbers = new Float64Array(rows);
    for (let row = 0; row < rows; row++) {
      const x: unknown = value[row];
      if (typeof x !== 'number')
        throw new LossError(
          'ERR_INVALID_INPUT',
          `${key}[${row}]: expected a number, not ${describeValue(x)}`,
        );
      numbers[row] = x;
    }
  } else {
    throw new LossError(
      'ERR_INVALID_INPUT',
      `${key}: expected a number per row (Float64Array, Float32Array or numbers), not ${describeValue(value)}`,
    );
  }
  return numbers;
}

/**
 * One name per row, as numbers that are equal where the names are.
 * @throws LossError
 */
export function readRowIds(key: string, value: unknown, rows: number): Int32Array {
  if (value instanceof Int32Array) {
    checkAttached(key, value);
    checkRows(key, value.length, rows);
    // A copy: native code looks at them twice, and must find the same.
    return new Int32Array(value);
  }
  if (!Array.isArray(value))
    throw new LossError(
      'ERR_INVALID_INPUT',
      `${key}: expected a name per row (Int32Array, numbers or strings), not ${describeValue(value)}`,
    );
  checkRows(key, value.length, rows);
  const numbers = new Map<unknown, number>();
  const ids = new Int32Array(rows);
  for (let row = 0; row < rows; row++) {
    const name: unknown = value[row];
    if (typeof name !== 'string' && !Number.isFinite(name))
      throw new LossError(
        'ERR_INVALID_INPUT',
        `${key}[${row}]: expected a finite number or a string, not ${describeValue(name)}`,
      );
    const number = numbers.get(name) ?? numbers.size;
    numbers.set(name, number);
    ids[row] = number;
  }
  return ids;
}

function checkRows(key: string, length: number, rows: number): void {
  if (length !== rows)
    throw new LossError(
      'ERR_SHAPE_MISMATCH',
      `${key}: expected [${rows}], one per row, not ${length} values`,
    );
}

// What native code may find to be not finite, in its order; see NativeBinding.advantagesSync.
const CULPRITS: readonly (AdvantageInput | undefined)[] = [
  undefined,
  'rewards',
  'token_level_rewards',
  'values',
  'reward_baselines',
];

/**
 * The complaint about a number that is not finite, by native code's word for where it is.
 * @param masked whether masked tokens are read too.
 */
export function notFinite(
  host: ReadAdvantageBatch | undefined,
  culprit: number,
  row: number,
  masked: boolean,
): LossError {
  const name = CULPRITS[culprit]!;
  // What lies on a device can be looked at only there, and there it is known by the row.
  if (!host)
    return new LossError('ERR_INVALID_INPUT', `${name}: expected finite numbers, and row ${row} has others`);
  const { native, layout, keys } = host;
  const key = keys[name] ?? name;
  const complain = (index: number, value: number) =>
    new LossError('ERR_INVALID_INPUT', `${key}[${index}]: expected a finite number, not ${value}`);
  if (name === 'rewards') return complain(row, native.rewards![row]!);
  if (name === 'reward_baselines') return complain(row, native.baselines![row]!);
  const slot = COLUMN_SLOTS[name as keyof typeof COLUMN_SLOTS];
  const column = native.data[slot]!;
  const begin = layout.offsets ? layout.offsets[row]! : row * layout.columns;
  const end = layout.offsets ? layout.offsets[row + 1]! : begin + layout.columns;
  for (let i = begin; i < end; i++) {
    const value =
      column instanceof Float32Array ? column[i]! : specialOfHalf(column[i]!, native.dtypes[slot]!);
    if (!Number.isFinite(value) && (masked || native.mask![i] !== 0)) return complain(i, value);
  }
  return new LossError('ERR_INVALID_INPUT', `${key}: expected finite numbers in row ${row}`);
}

// NaN or an infinity of a 16-bit float's bits, 0 for all that is finite.
function specialOfHalf(bits: number, dtype: number): number {
  const [exponent, mantissa] = dtype === 1 ? [0x7c00, 0x3ff] : [0x7f80, 0x7f];
  if ((bits & exponent) !== exponent) return 0;
  if (bits & mantissa) return Number.NaN;
  return bits & 0x8000 ? Number.NEGATIVE_INFINITY : Number.POSITIVE_INFINITY;
}
