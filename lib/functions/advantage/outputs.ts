// Arrays of the caller's to which advantage functions write.
import { overlapOf } from '../../core/arrays.js';
import type { Input } from '../../core/batch-reader.js';
import { describeValue, LossError } from '../../core/errors.js';
import { checkOutput } from '../../core/gradients.js';
import { describeShape } from '../../core/layout.js';

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
