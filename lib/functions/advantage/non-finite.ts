// Makes the error for an input of an advantage function that is NaN or infinite.
import { types } from 'node:util';
import type { NativeAdvantageBatch } from '../../../binding.js';
import { find } from '../../core/batch.js';
import type { InputName } from '../../core/batch-reader.js';
import { LossError } from '../../core/errors.js';
import type { KeyMapper } from '../../core/key-mapper.js';
import type { Layout } from '../../core/layout.js';
import { ADVANTAGE_COLUMNS } from '../../core/native-batch.js';

/** A batch in host memory as the caller passed it, and what was read from it: the native batch and the layout. */
export interface HostSource {
  batch: object;
  native: NativeAdvantageBatch;
  layout: Layout;
}

// The inputs that must be finite. The index of each is the number by which native code refers to it; see
// NativeBinding.advantagesSync in binding.d.ts.
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
  if (source === undefined)
    return new LossError('ERR_INVALID_INPUT', {
      key: name,
      expected: 'finite numbers',
      received: `a number that is not finite in row ${row}`,
    });
  const { batch, native } = source;
  const key = find(batch, mapper.keys(name))?.key ?? name;
  const errorAt = (index: number, value: number) =>
    new LossError('ERR_INVALID_INPUT', {
      key,
      index,
      expected: 'a finite number',
      received: String(value),
    });
  if (name === 'rewards') return errorAt(row, native.rewards![row]!);
  if (name === 'reward_baselines') return errorAt(row, native.baselines![row]!);
  const found = firstNonFinite(source, (ADVANTAGE_COLUMNS as readonly string[]).indexOf(name), row, masked);
  return found
    ? errorAt(found.index, found.value)
    : new LossError('ERR_INVALID_INPUT', {
        key,
        expected: 'finite numbers',
        received: `a number that is not finite in row ${row}`,
      });
}

function firstNonFinite({ native, layout }: HostSource, slot: number, row: number, masked: boolean) {
  const column = native.data[slot]!;
  const begin = layout.offsets ? layout.offsets[row]! : row * layout.rowLength;
  const end = layout.offsets ? layout.offsets[row + 1]! : begin + layout.rowLength;
  for (let index = begin; index < end; index++) {
    const value = types.isFloat32Array(column)
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
