// Checks the sums of the parts of a batch, which compute() returns as `part` and merge() reads.
import { describeValue, LossError } from '../base/errors.js';
import { native } from '../base/native.js';
import { MAX_PARTS } from '../batch/counts.js';

/** Returns which terms the first of a batch's parts has in addition to a policy loss. */
export function termsOfPart(parts: readonly ArrayLike<number>[]): { kl: boolean; entropy: boolean } {
  const [first] = checkParts(Array.isArray(parts) ? parts.slice(0, 1) : parts);
  const terms = first!.at(-1)!;
  return { kl: (terms & 2) !== 0, entropy: (terms & 4) !== 0 };
}

// The last number of a part tells its terms in its lowest three bits. The bits above them tell which form of a function
// with several forms computed the part.
const FORM_FACTOR = 8;

/** Marks a part with the number of the form that computed it. Returns the part. */
export function markForm(part: Float64Array, form: number): Float64Array {
  part[part.length - 1]! += FORM_FACTOR * form;
  return part;
}

/**
 * Returns the number of the form that computed all parts, and removes the mark from the parts. Returns undefined if the
 * forms differ or do not exist.
 * @param bits the number of bits of the numbers of forms.
 */
export function takeForm(parts: readonly Float64Array[], bits: number): number | undefined {
  const forms = new Set(parts.map((part) => Math.floor(part.at(-1)! / FORM_FACTOR)));
  const [form] = forms;
  if (forms.size !== 1 || !(form! >= 0 && form! < 2 ** bits)) return undefined;
  for (const part of parts) markForm(part, -form!);
  return form;
}

/**
 * Checks the sums of the parts of a batch and converts them to typed arrays.
 * @param isLength whether a part can have so many numbers.
 * @throws LossError `ERR_INVALID_INPUT` if the list is empty, or if a part has the wrong number of values.
 */
export function checkParts(
  parts: readonly ArrayLike<number>[],
  isLength = (length: number) => length === native.partLength,
): Float64Array[] {
  if (!Array.isArray(parts) || parts.length === 0 || parts.length > MAX_PARTS)
    throw new LossError('ERR_INVALID_INPUT', {
      key: 'parts',
      expected: `a list with the parts of 1 to ${MAX_PARTS} results`,
      received: describeValue(parts),
    });
  // Lengths are checked before anything is copied, because a sparse array may claim any length.
  const checked: Float64Array[] = [];
  for (let index = 0; index < parts.length; index++) checked.push(checkPart(parts[index], index, isLength));
  return checked;
}

function checkPart(
  part: ArrayLike<number> | null | undefined,
  index: number,
  isLength: (length: number) => boolean,
): Float64Array {
  const length: unknown = part?.length;
  let isPart = typeof length === 'number' && isLength(length);
  const numbers = new Float64Array(isPart ? (length as number) : 0);
  for (let i = 0; isPart && i < numbers.length; i++) {
    const x: unknown = part![i];
    isPart = typeof x === 'number';
    numbers[i] = x as number;
  }
  if (!isPart) throw notAPart(part, index);
  return numbers;
}

/** Returns the error for a value that is not the part of a result. */
export function notAPart(part: unknown, index: number): LossError {
  return new LossError('ERR_INVALID_INPUT', {
    key: 'parts',
    index,
    expected: 'the numbers that compute() returned as part, of batches with the same inputs',
    received: describeValue(part),
  });
}
