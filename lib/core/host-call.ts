// The fastest native calls, which take their arguments one by one. Reading a property of an object takes native code about
// as long as reading several arguments.
import type { NativeBatch, NativeBinding, NativeCall, NativeFunction } from '../../binding.js';
import type { Input } from './batch-reader.js';
import type { CallOptions } from './calls.js';
import { type Gradients, nativeArray, nativeDtypes } from './gradients.js';
import { COLUMNS } from './native-batch.js';

// The factor that puts the gradients' dtypes above the bits of the columns' dtypes.
const ABOVE_COLUMNS = 2 ** (3 * COLUMNS.length);

type HostArguments = Parameters<NativeBinding['evaluateHost']>;

/** A batch that these calls accept: see {@link plainHostBatch}. */
export type PlainHostBatch = NativeBatch & { mask: Uint8Array };

/**
 * Returns the batch if these calls accept it: it is in host memory, has a mask, neither numbers per row nor weights of
 * tokens, counts every row once, and is not computed as a part. Otherwise returns undefined.
 */
export function plainHostBatch(
  { native, device, resident }: Input,
  { normalizer, part }: CallOptions,
  { gradLogZ }: Gradients,
): PlainHostBatch | undefined {
  if (device !== undefined || resident || normalizer !== undefined || part || gradLogZ) return undefined;
  const { data, mask, repeats, rowData } = native as NativeBatch;
  const isPlain = mask !== undefined && repeats === undefined && rowData === undefined;
  return isPlain && data.length <= COLUMNS.length ? (native as PlainHostBatch) : undefined;
}

/** Returns the arguments of a call. */
export function hostArguments(
  fn: NativeFunction,
  { rows, rowLength, offsets, dtypes, data, mask, expert }: PlainHostBatch,
  values: Float64Array,
  gradients: Gradients,
  { mu, klCoef, entropyCoef }: Partial<Pick<NativeCall, 'mu' | 'klCoef' | 'entropyCoef'>>,
): HostArguments {
  let codes = 0;
  for (let i = 0; i < dtypes.length; i++) codes |= dtypes[i]! << (3 * i);
  return [
    fn,
    rows,
    rowLength,
    offsets,
    codes + nativeDtypes(gradients) * ABOVE_COLUMNS,
    data[0],
    data[1],
    data[2],
    data[3],
    data[4],
    data[5],
    data[6],
    data[7],
    data[8],
    data[9],
    mask,
    expert,
    values,
    // A call on the CPU has no gradients on a device.
    nativeArray(gradients.grad) as Float32Array | Uint16Array | undefined,
    nativeArray(gradients.gradEntropy) as Float32Array | Uint16Array | undefined,
    mu,
    klCoef,
    entropyCoef,
  ];
}
