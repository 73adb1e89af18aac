// Copies whole numbers, such as offsets and token ids, to arrays that native code reads.
import { checkAttached } from '../base/arrays.js';
import { allocate, describeValue, LossError } from '../base/errors.js';
import { isInt32Array } from '../base/kinds.js';
import { inSlices, type Steps } from '../base/steps.js';

/**
 * Copies an array of whole numbers, so that they do not change after they were checked.
 * @param least the least number that is accepted in a list. Int32Arrays are not checked.
 * @param checkLength throws if the array cannot have this length. A list can claim any length, so this comes before its
 * elements are read.
 * @throws LossError `ERR_INVALID_INPUT` if the array is detached, or has an element that is not a whole number from
 * `least` to 2³¹ − 1.
 */
export function* copyIntegers(
  key: string,
  value: unknown,
  least: number,
  checkLength: (length: number) => void,
): Steps<Int32Array> {
  if (isInt32Array(value)) {
    checkAttached(key, value);
    checkLength(value.length);
    return allocate(key, () => new Int32Array(value));
  }
  if (!Array.isArray(value)) throw notIntegers(key, value);
  const { length } = value;
  checkLength(length);
  // All elements are checked before the copy is allocated, because a sparse array can have a huge length.
  yield* inSlices(length, (begin, end) => checkIntegers(key, value, least, begin, end));
  const integers = allocate(key, () => new Int32Array(length));
  yield* inSlices(length, (begin, end) => {
    checkIntegers(key, value, least, begin, end);
    for (let i = begin; i < end; i++) integers[i] = value[i] as number;
  });
  return integers;
}

// Uses a loop, because every() skips the holes of a sparse array and is slow on such arrays.
function checkIntegers(
  key: string,
  value: readonly unknown[],
  least: number,
  begin: number,
  end: number,
): void {
  for (let i = begin; i < end; i++) {
    const n = value[i];
    if (!Number.isInteger(n) || (n as number) < least || (n as number) >= 2 ** 31)
      throw notIntegers(key, value);
  }
}

function notIntegers(key: string, value: unknown): LossError {
  return new LossError('ERR_INVALID_INPUT', {
    key,
    expected: 'an Int32Array or whole numbers',
    received: describeValue(value),
  });
}

/** Returns the error that an offset is less than the one before. */
export function decreasingOffset(key: string, offsets: Int32Array, index: number): LossError {
  return new LossError('ERR_SHAPE_MISMATCH', {
    key,
    index,
    expected: `at least ${offsets[index - 1]}, as offsets must not decrease`,
    received: String(offsets[index]),
  });
}
