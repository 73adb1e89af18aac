// The logits of a batch as entries: blocks of tokens, so that what is computed of all entries needs little memory.
import { allocate, LossError } from '../base/errors.js';
import { DTYPE_CODES, float32Of, type NativeColumn } from '../batch/convert.js';
import { type NativeDeviceLogits, offsetOf } from './device-logits.js';
import { isOnHost, type Matrix, type TokenMatrix } from './loss-inputs.js';

/** The entries of a block, unless a single token has more. */
const BLOCK = 2 ** 24;

/** Some consecutive tokens, the first of which has the index `first`. */
export interface TokenBlock {
  readonly first: number;
  readonly last: number;
}

/** Divides tokens into blocks, of which there is at least one. */
export function* tokenBlocks(tokens: number, width: number): Generator<TokenBlock> {
  const most = Math.max(1, Math.floor(BLOCK / Math.max(width, 1)));
  for (let first = 0; first === 0 || first < tokens; first += most)
    yield { first, last: Math.min(first + most, tokens) };
}

const ones = { mask: new Uint8Array(0) };

/** Returns a mask in which all entries count. Its memory is shared, and must not be written. */
export function maskOfOnes(length: number): Uint8Array {
  if (ones.mask.length < length)
    ones.mask = allocate(`a mask of ${length} entries`, () => new Uint8Array(length).fill(1));
  return ones.mask.subarray(0, length);
}

/** The entries of a block: in host memory, or at an address in that of the device. */
export type EntryColumn = NativeColumn | NativeDeviceLogits;

/** Returns the entries of a block as rows of this width, which end with `absent` where the column is narrower. */
export function blockOf(
  matrix: TokenMatrix,
  { first, last }: TokenBlock,
  width: number,
  absent: number,
): EntryColumn {
  if (!isOnHost(matrix)) return { ...matrix, data: matrix.data + offsetOf(first * width, matrix.dtype) };
  const { data, dtype } = matrix;
  if (matrix.width === width) return { data: data.subarray(first * width, last * width), dtype };
  const wide = allocate(
    `a block of ${(last - first) * width} entries`,
    () => new Float32Array((last - first) * width),
  );
  for (let token = first; token < last; token++) {
    const to = wide.subarray((token - first) * width, (token - first + 1) * width);
    const taken = Math.min(matrix.width, width);
    to.set(float32Of(matrix, token * matrix.width, token * matrix.width + taken));
    to.fill(absent, taken);
  }
  return { data: wide, dtype: DTYPE_CODES.float32 };
}

/** Which logits of the teacher a token has. */
export interface TeacherRows {
  /** The token of the teacher for each token; −1 for none. */
  readonly teachers: Int32Array;
  /** The teacher's id for each entry of a token; −1 for none. */
  readonly idOf: Int32Array;
}

/** Returns the teacher's logits of other tokens in another order. Tokens that have none get zeros. */
export function blockOfTeachers(
  matrix: Matrix,
  { first, last }: TokenBlock,
  { teachers, idOf }: TeacherRows,
  absent: number,
): NativeColumn {
  const width = idOf.length;
  const wide = allocate(
    `a block of ${(last - first) * width} entries`,
    () => new Float32Array((last - first) * width),
  );
  for (let token = first; token < last; token++) {
    const teacher = teachers[token]!;
    if (teacher < 0) continue;
    const from = float32Of(matrix, teacher * matrix.width, (teacher + 1) * matrix.width);
    const begin = (token - first) * width;
    for (let i = 0; i < width; i++) wide[begin + i] = idOf[i]! < 0 ? absent : from[idOf[i]!]!;
  }
  return { data: wide, dtype: DTYPE_CODES.float32 };
}

/** Returns entries that are `absent` but for the tokens of lists, which have the numbers of the lists. */
export function blockOfLists(
  ids: Int32Array,
  numbers: Matrix,
  { first, last }: TokenBlock,
  vocabulary: number,
  absent: number,
): NativeColumn {
  const { width } = numbers;
  const wide = allocate(`a block of ${(last - first) * vocabulary} entries`, () =>
    new Float32Array((last - first) * vocabulary).fill(absent),
  );
  const values = float32Of(numbers, first * width, last * width);
  for (let i = 0; i < values.length; i++) {
    const id = ids[first * width + i]!;
    if (id >= 0 && id < vocabulary) wide[Math.floor(i / width) * vocabulary + id] = values[i]!;
  }
  return { data: wide, dtype: DTYPE_CODES.float32 };
}

/** Which of the two vocabularies may be the narrower one. */
export type Narrower = 'student' | 'teacher' | 'either';

/**
 * Returns the larger number of values that each token has in two inputs.
 * @param keys the names of the inputs.
 * @param narrower which of the two may have fewer values; neither if absent.
 * @throws LossError `ERR_SHAPE_MISMATCH` if the numbers differ and may not.
 */
export function commonWidth(
  student: Pick<Matrix, 'width'>,
  teacher: Pick<Matrix, 'width'>,
  keys: readonly [student: string, teacher: string],
  narrower?: Narrower,
): number {
  const found = student.width < teacher.width ? 'student' : 'teacher';
  if (student.width !== teacher.width && narrower !== 'either' && narrower !== found)
    throw new LossError('ERR_SHAPE_MISMATCH', {
      key: keys[1],
      expected: `${student.width} values per token, as many as ${keys[0]}`,
      received: String(teacher.width),
    });
  return Math.max(student.width, teacher.width);
}
