// The arrays that advantage functions read and write: rewards under keys that the caller chose, numbers that are not finite,
// and arrays of the caller's for results.
import type { NativeAdvantageBatch } from '../../binding.js';
import { overlapOf } from '../base/arrays.js';
import { describeValue, LossError } from '../base/errors.js';
import { isFloat32Array } from '../base/kinds.js';
import { inSlices, type Steps } from '../base/steps.js';
import { type Batch, find } from '../batch/batch.js';
import type { InputName } from '../batch/columns.js';
import { ADVANTAGE_COLUMNS, inputRow } from '../batch/columns.js';
import { readRowNumbers } from '../batch/convert.js';
import type { KeyMapper } from '../batch/key-mapper.js';
import { describeShape, type Layout } from '../batch/layout.js';
import { checkOutput } from '../call/gradients.js';
import { DeviceBatch } from '../device/device-batch.js';
import type { Input } from '../device/input.js';

/** Keys of a batch that hold one reward per row, and the weight of each. */
export interface NamedRewards {
  readonly keys: readonly string[];
  readonly weights: readonly number[];
}

/**
 * Adds the named rewards of a host batch to the native batch.
 * @throws LossError `ERR_MISSING_INPUT` if a key is missing or the batch is on a device, `ERR_INVALID_INPUT` for a
 * reward that is not finite, `ERR_SHAPE_MISMATCH` for a wrong number of rewards.
 */
export function* readNamedRewards(
  batch: Batch | DeviceBatch,
  mapper: KeyMapper,
  { keys, weights }: NamedRewards,
  { layout: { rows }, native }: Pick<Input, 'layout' | 'native'>,
): Steps<void> {
  const rewards = new Float64Array(keys.length * rows);
  for (const [k, name] of keys.entries()) {
    const onDevice = batch instanceof DeviceBatch;
    const found = onDevice ? undefined : find(batch, mapper.keys(name));
    if (!found)
      throw new LossError('ERR_MISSING_INPUT', {
        key: name,
        expected: 'a reward per row, in host memory',
        received: onDevice ? 'a batch on a device' : 'a batch without it',
      });
    const { hint } = inputRow('rewards');
    const numbers = yield* readRowNumbers(found.key, found.value, rows, hint);
    yield* inSlices(rows, (begin, end) => {
      for (let index = begin; index < end; index++) {
        const reward = numbers[index]!;
        if (!Number.isFinite(reward)) throw notFinite(found.key, index, reward, hint);
        rewards[k * rows + index] = reward;
      }
    });
  }
  const hostBatch = native as NativeAdvantageBatch;
  hostBatch.namedRewards = rewards;
  hostBatch.rewardWeights = Float64Array.from(weights);
}

/** A batch in host memory as the caller passed it, and what was read from it: the native batch and the layout. */
export interface HostSource {
  batch: object;
  native: NativeAdvantageBatch;
  layout: Layout;
}

// The inputs that must be finite. The index of each is the number by which native code refers to it; see
// NativeEngine.advantages in binding.d.ts.
const INPUTS: readonly (InputName | undefined)[] = [
  undefined,
  'rewards',
  'token_level_rewards',
  'values',
  'reward_baselines',
];

/**
 * Returns the error for an input that is NaN or infinite.
 * @param source the host batch, from which the error quotes the number. Undefined if the batch is on a device; the
 * error then names only the row.
 * @param input the number by which native code refers to the input.
 * @param row the row in which native code found the number.
 * @param masked whether the function also reads masked tokens, so that the number may be at one of them.
 */
export function nonFiniteError(
  mapper: KeyMapper,
  source: HostSource | undefined,
  input: number,
  row: number,
  masked: boolean,
): LossError {
  const name = INPUTS[input]!;
  const { hint } = inputRow(name);
  const errorIn = (key: string) =>
    new LossError('ERR_INVALID_INPUT', {
      key,
      expected: 'finite numbers',
      received: `a number that is not finite in row ${row}`,
      hint,
    });
  if (source === undefined) return errorIn(name);
  const { batch, native } = source;
  const key = find(batch, mapper.keys(name))?.key ?? name;
  const errorAt = (index: number, value: number) => notFinite(key, index, value, hint);
  if (name === 'rewards') return errorAt(row, native.rewards![row]!);
  if (name === 'reward_baselines') return errorAt(row, native.baselines![row]!);
  const found = firstNonFinite(source, (ADVANTAGE_COLUMNS as readonly string[]).indexOf(name), row, masked);
  return found ? errorAt(found.index, found.value) : errorIn(key);
}

/** Returns the error for a number that is NaN or infinite. */
export function notFinite(key: string, index: number, value: number, hint: string | undefined): LossError {
  return new LossError('ERR_INVALID_INPUT', {
    key,
    index,
    expected: 'a finite number',
    received: String(value),
    hint: Number.isNaN(value) ? hint : undefined,
  });
}

function firstNonFinite({ native, layout }: HostSource, slot: number, row: number, masked: boolean) {
  const column = native.data[slot]!;
  const begin = layout.offsets ? layout.offsets[row]! : row * layout.rowLength;
  const end = layout.offsets ? layout.offsets[row + 1]! : begin + layout.rowLength;
  for (let index = begin; index < end; index++) {
    const value = isFloat32Array(column)
      ? column[index]!
      : nonFiniteHalf(column[index]!, native.dtypes[slot]!);
    if (!Number.isFinite(value) && (masked || native.mask![index] !== 0)) return { index, value };
  }
  return undefined;
}

// Returns the value of a 16-bit float, given as its bits, if it is NaN or infinite. Returns 0 for any finite value.
function nonFiniteHalf(bits: number, dtype: number): number {
  const [exponent, mantissa] = dtype === 1 ? [0x7c00, 0x3ff] : [0x7f80, 0x7f];
  if ((bits & exponent) !== exponent) return 0;
  if (bits & mantissa) return Number.NaN;
  return bits & 0x8000 ? Number.NEGATIVE_INFINITY : Number.POSITIVE_INFINITY;
}

/** Arrays of the caller's that receive the results of an advantage function. */
export interface AdvantageOutputs {
  /** Shape [B, T]: receives the advantages. */
  advantages?: Float32Array | undefined;
  /** Shape [B, T]: receives the returns. Only functions whose returns differ from the advantages accept it. */
  returns?: Float32Array | undefined;
}

/**
 * Reads the option `out` of a call.
 * @throws LossError `ERR_INVALID_INPUT` if it is not an object.
 */
export function readOutputs(out: AdvantageOutputs | undefined): AdvantageOutputs {
  if (out === undefined) return {};
  if (out === null || typeof out !== 'object')
    throw new LossError('ERR_INVALID_INPUT', {
      key: 'out',
      expected: 'an object with the arrays advantages and returns',
      received: describeValue(out),
    });
  return { advantages: out.advantages, returns: out.returns };
}

/**
 * Checks the arrays for the results of a call.
 * @param hasReturns whether the function's returns differ from its advantages.
 * @throws LossError `ERR_INVALID_INPUT` if an array is not a Float32Array of its own with memory of a fixed length;
 * `ERR_SHAPE_MISMATCH` if its length is wrong.
 */
export function checkOutputs(
  { advantages, returns }: AdvantageOutputs,
  { native, layout }: Pick<Input, 'native' | 'layout'>,
  hasReturns: boolean,
): void {
  if (returns !== undefined && !hasReturns)
    throw new LossError('ERR_INVALID_INPUT', {
      key: 'out.returns',
      expected: 'no array, because the returns of this function are its advantages',
      received: describeValue(returns),
    });
  // A batch on a device has no arrays on the host.
  const others: ArrayBufferView[] = Object.values(native).flat().filter(ArrayBuffer.isView);
  for (const [name, array] of Object.entries({ advantages, returns })) {
    if (array === undefined) continue;
    const key = `out.${name}`;
    checkOutput(key, array, layout.tokens, 'a Float32Array', () => describeShape(layout));
    if (others.some((other) => overlapOf(array, other) !== 'none'))
      throw new LossError('ERR_INVALID_INPUT', {
        key,
        expected: 'an array with memory of its own',
        received: 'one that shares memory with the batch or with another result',
      });
    others.push(array);
  }
}
