/** Turns batches of logits into the tensors of a file. */
import { toSnakeCase } from '../../lib/base/options.js';
import type { LogitsLossBatch } from '../../lib/index.js';
import { F32, I64, type Tensor } from '../fuzz-files/tensor-files.js';

const BF16 = ['BF16', '<V2'] as const;
const BOOL = ['BOOL', '|b1'] as const;
/** The columns whose names in files are not those of a batch. */
const NAMES: Readonly<Record<string, string>> = {
  old_logprob: 'old_logprobs',
  teacher_logprob: 'teacher_logprobs',
};
/** The inputs without a row for each row of the batch. */
const OF_VOCABULARY = ['student_matched_ids', 'teacher_matched_ids'];

/** Returns the tensors of a padded batch, by the names that files have for them. */
export function tensorsOf({ shape, ...inputs }: LogitsLossBatch): Record<string, Tensor> {
  const [rows, columns] = shape as [number, number];
  const tensors = Object.entries(inputs).map(([key, value]): [string, Tensor] => {
    const input = toSnakeCase(key);
    const name = NAMES[input] ?? input;
    const { array, dtype } = storedAs(value);
    const size = array.length;
    const isPerRow = !OF_VOCABULARY.includes(input) && size >= rows * columns;
    const width = size / (rows * columns);
    const dimensions = isPerRow ? [rows, columns, ...(width > 1 ? [width] : [])] : [size];
    return [name, { name, dtype, shape: dimensions, data: Buffer.from(array.buffer as ArrayBuffer) }];
  });
  return Object.fromEntries(tensors);
}

function storedAs(value: unknown): {
  array: { length: number; buffer: ArrayBufferLike };
  dtype: Tensor['dtype'];
} {
  if (value instanceof Float32Array) return { array: value, dtype: F32 };
  if (value instanceof Uint8Array) return { array: value, dtype: BOOL };
  if (value instanceof Int32Array) return { array: BigInt64Array.from(value, BigInt), dtype: I64 };
  return { array: (value as { data: Uint16Array }).data, dtype: BF16 };
}
