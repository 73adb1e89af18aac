// The arrays that receive gradients.
import { types } from 'node:util';
import { checkAttached, isResizable } from './arrays.js';
import { allocate, describeValue, LossError } from './errors.js';
import { describeShape, type Layout } from './layout.js';

/** The arrays to which native code writes the gradients with respect to logprob, to entropy and to log_z. */
export interface Gradients {
  grad?: Float32Array | undefined;
  gradEntropy?: Float32Array | undefined;
  gradLogZ?: Float32Array | undefined;
}

/** The options of a call that request gradients; see LossComputeSyncOptions. */
export type WantedGradients = Partial<Record<keyof Gradients, boolean | Float32Array | undefined>>;

/**
 * Returns the array to which a gradient is written: a new one, the caller's own, or undefined if no gradient is wanted.
 */
export function gradArray(
  layout: Layout,
  wanted: boolean | Float32Array | undefined,
  name = 'grad',
  per: 'token' | 'row' = 'token',
): Float32Array | undefined {
  if (wanted === undefined || wanted === false) return undefined;
  const size = per === 'row' ? layout.rows : layout.tokens;
  if (wanted === true) return allocate(`a gradient of ${size} values`, () => new Float32Array(size));
  if (!types.isFloat32Array(wanted))
    throw new LossError('ERR_INVALID_INPUT', {
      key: name,
      expected: 'true, false or a Float32Array',
      received: describeValue(wanted),
    });
  checkAttached(name, wanted);
  if (isResizable(wanted))
    throw new LossError('ERR_INVALID_INPUT', {
      key: name,
      expected: 'an array whose ArrayBuffer has a fixed length',
      received: 'a resizable one',
    });
  if (wanted.length !== size)
    throw new LossError('ERR_SHAPE_MISMATCH', {
      key: name,
      expected: per === 'row' ? `[${size}], one value per row` : describeShape(layout),
      received: String(wanted.length),
    });
  return wanted;
}
