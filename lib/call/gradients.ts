// The arrays that receive gradients.
import type { NativeDeviceArray } from '../../binding.js';
import { bitsOfFloat16Array, checkApart, checkAttached, isResizable } from '../base/arrays.js';
import { describeValue, LossError } from '../base/errors.js';
import { isFloat32Array, isUint16Array } from '../base/kinds.js';
import { halfResultArray, resultArray } from '../base/result-arrays.js';
import { DTYPE_CODES } from '../batch/convert.js';
import { describeShape, type Layout } from '../batch/layout.js';
import type { HalfColumn } from '../batch/values.js';
import { DeviceGradient } from '../device/device-gradient.js';
import type { Input } from '../device/input.js';
import type { GradientRequest, HalfGradientRequest } from './calls.js';

/** An array to which native code writes a gradient: in host memory, or on the device that computes the call. */
export type GradientArray = Float32Array | HalfColumn | DeviceGradient;

/** The arrays to which native code writes the gradients with respect to logprob, to entropy and to log_z. */
export interface Gradients {
  grad?: GradientArray | undefined;
  gradEntropy?: GradientArray | undefined;
  gradLogZ?: Float32Array | undefined;
}

/** The options of a call that request gradients. */
export interface WantedGradients {
  grad?: GradientRequest | undefined;
  gradEntropy?: GradientRequest | undefined;
  gradLogZ?: boolean | Float32Array | undefined;
}

/**
 * Returns the arrays to which the gradients of a call are written.
 * @throws LossError `ERR_INVALID_INPUT` if an option is invalid, or asks for an array on a device that does not compute
 * the call; `ERR_SHAPE_MISMATCH` if an array has the wrong length; `ERR_OUT_OF_MEMORY`.
 */
export function gradientsOf(input: Input, { grad, gradEntropy, gradLogZ }: WantedGradients): Gradients {
  const gradients = {
    grad: gradientArray(input, grad, 'grad'),
    gradEntropy: gradientArray(input, gradEntropy, 'gradEntropy'),
    gradLogZ: gradArray(input.layout, gradLogZ, 'gradLogZ', 'row'),
  };
  const [grads, ofEntropy] = [nativeArray(gradients.grad), nativeArray(gradients.gradEntropy)];
  checkApart('gradEntropy', ofEntropy, { grad: grads });
  checkApart('gradLogZ', gradients.gradLogZ, { grad: grads, gradEntropy: ofEntropy });
  return gradients;
}

/** Returns a copy of options whose requests stay as they are when the caller changes the objects that were passed. */
export function withHeldRequests<O extends WantedGradients>(options: O): O {
  const copy = { ...options };
  copy.grad &&= (namedDtype(copy.grad) ?? copy.grad) as O['grad'];
  copy.gradEntropy &&= (namedDtype(copy.gradEntropy) ?? copy.gradEntropy) as O['gradEntropy'];
  return copy;
}

// Returns a copy of a request that names its dtype, and undefined for other requests. The copy is not checked.
function namedDtype(wanted: unknown): HalfGradientRequest | undefined {
  if (typeof wanted !== 'object' || wanted === null || !('dtype' in wanted)) return undefined;
  if (ArrayBuffer.isView(wanted) || wanted instanceof DeviceGradient) return undefined;
  const { dtype, data } = wanted as HalfGradientRequest;
  return { dtype, data };
}

/** Returns the array to which one gradient with one value per token is written; see {@link gradientsOf}. */
export function gradientArray(
  input: Input,
  wanted: GradientRequest | undefined,
  name: string,
): GradientArray | undefined {
  const isNew = wanted === 'device' || wanted === 'shareable';
  if (!isNew && !(wanted instanceof DeviceGradient)) {
    const half = halfRequest(name, wanted);
    if (half) return halfArray(input.layout, half, name);
    return gradArray(input.layout, wanted as boolean | Float32Array | undefined, name);
  }
  const index = input.resident?.device ?? input.device;
  if (index === undefined)
    throw new LossError('ERR_INVALID_INPUT', {
      key: name,
      expected: 'true, false, a Float32Array or { dtype }, because the CPU computes the call',
      received: isNew ? `'${wanted}'` : `a gradient on ${wanted.device}`,
      hint: 'Pass an uploaded batch, or the option device to compute()',
    });
  if (isNew) return new DeviceGradient(index, input.layout, wanted === 'shareable');
  wanted.check(name, index, input.layout);
  return wanted;
}

/** Returns the request for another gradient of the same kind, in an array of its own, and false if none is wanted. */
export function requestLike(wanted: GradientRequest | undefined): GradientRequest {
  if (wanted === 'shareable') return wanted;
  if (wanted === 'device' || wanted instanceof DeviceGradient) return 'device';
  const half = halfRequest('grad', wanted);
  return half ? { dtype: half.dtype } : wanted !== undefined && wanted !== false;
}

// Returns what a request for 16 bits asks for, and undefined for other requests.
function halfRequest(key: string, wanted: GradientRequest | undefined): HalfGradientRequest | undefined {
  if (ArrayBuffer.isView(wanted)) {
    checkAttached(key, wanted);
    const data = bitsOfFloat16Array(wanted);
    return data && { dtype: 'float16', data };
  }
  const half = namedDtype(wanted);
  if (!half) return undefined;
  const { dtype, data } = half;
  if ((dtype === 'float16' || dtype === 'bfloat16') && (data === undefined || isUint16Array(data)))
    return half;
  throw new LossError('ERR_INVALID_INPUT', {
    key,
    expected: 'dtype float16 or bfloat16, with a Uint16Array as data or without data',
    received: `dtype ${describeValue(dtype)}${data === undefined ? '' : ` with ${describeValue(data)}`}`,
  });
}

function halfArray(layout: Layout, { dtype, data }: HalfGradientRequest, name: string): HalfColumn {
  const size = layout.tokens;
  if (data === undefined)
    return { data: halfResultArray(`a gradient of ${size} 16-bit values`, size), dtype };
  checkMemory(name, data, size, () => describeShape(layout));
  return { data, dtype };
}

/** Returns a gradient's array as native code takes it. */
export function nativeArray(
  array: GradientArray | undefined,
): Float32Array | Uint16Array | NativeDeviceArray | undefined {
  if (array === undefined || ArrayBuffer.isView(array)) return array;
  return array instanceof DeviceGradient ? array.array() : array.data;
}

/** Returns the dtypes of gradients as native code takes them; see NativeCall.gradDtypes. */
export function nativeDtypes({ grad, gradEntropy }: Gradients): number {
  return dtypeCode(grad) + 8 * dtypeCode(gradEntropy);
}

function dtypeCode(array: GradientArray | undefined): number {
  return array === undefined || ArrayBuffer.isView(array) ? DTYPE_CODES.float32 : DTYPE_CODES[array.dtype];
}

/** Adds a gradient to a result, under the key for its place. */
export function addGradient(
  result: object,
  key: 'grad' | 'gradEntropy' | 'gradLogZ' | 'gradValues' | 'gradRewards',
  array: GradientArray | undefined,
): void {
  if (!array) return;
  const place = array instanceof DeviceGradient ? 'device' : ArrayBuffer.isView(array) ? '' : 'half';
  const at = place === '' ? key : `${place}${key[0]!.toUpperCase()}${key.slice(1)}`;
  (result as Record<string, GradientArray>)[at] = array;
}

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
  if (wanted === true) return resultArray(`a gradient of ${size} values`, size);
  const expected =
    per === 'row' ? 'true, false or a Float32Array' : "true, false, a Float32Array, { dtype } or 'device'";
  const shape = () => (per === 'row' ? `[${size}], one value per row` : describeShape(layout));
  checkOutput(name, wanted, size, expected, shape);
  return wanted;
}

/**
 * Checks an array of the caller's to which native code is to write.
 * @param expected the accepted values, for the error message.
 * @param shape returns the accepted shape, for the error message.
 * @throws LossError `ERR_INVALID_INPUT` if it is not a Float32Array with memory of a fixed length; `ERR_SHAPE_MISMATCH`
 * if it does not have `size` elements.
 */
export function checkOutput(
  key: string,
  array: unknown,
  size: number,
  expected: string,
  shape: () => string,
): asserts array is Float32Array {
  if (!isFloat32Array(array))
    throw new LossError('ERR_INVALID_INPUT', { key, expected, received: describeValue(array) });
  checkMemory(key, array, size, shape);
}

function checkMemory(
  key: string,
  array: Float32Array | Uint16Array,
  size: number,
  shape: () => string,
): void {
  checkAttached(key, array);
  if (isResizable(array))
    throw new LossError('ERR_INVALID_INPUT', {
      key,
      expected: 'an array whose ArrayBuffer has a fixed length',
      received: 'a resizable one',
    });
  if (array.length !== size)
    throw new LossError('ERR_SHAPE_MISMATCH', { key, expected: shape(), received: String(array.length) });
}
