/** Converts numbers to the bits of float16 and bfloat16 and back. */
import assert from 'node:assert/strict';
import type { HalfColumn } from '../../lib/index.js';

export type Half = 'float16' | 'bfloat16';

const float = new Float32Array(1);
const word = new Uint32Array(float.buffer);

function bits(x: number): number {
  float[0] = x;
  return word[0]!;
}

export function toHalf(x: number, dtype: Half): number {
  if (dtype === 'bfloat16') {
    const all = bits(x);
    // bfloat16 is the upper half of a float32, rounded to nearest with ties to even.
    return ((all + 0x7fff + ((all >>> 16) & 1)) >>> 16) & 0xffff;
  }
  const sign = x < 0 || Object.is(x, -0) ? 0x8000 : 0;
  const size = Math.abs(x);
  if (size >= 65520) return sign | 0x7c00;
  // Subnormal numbers have the same exponent as the smallest normal number, −14.
  const exponent = Math.max(size === 0 ? -14 : Math.floor(Math.log2(size)), -14);
  const steps = roundTiesToEven(size / 2 ** (exponent - 10));
  // If rounding carries into the next exponent, `steps` is 2048, and the addition raises the exponent by one.
  return sign | (steps < 1024 ? steps : ((exponent + 15) << 10) + (steps - 1024));
}

export function fromHalf(half: number, dtype: Half): number {
  if (dtype === 'bfloat16') {
    word[0] = half << 16;
    return float[0]!;
  }
  const sign = half & 0x8000 ? -1 : 1;
  const exponent = (half >>> 10) & 31;
  const fraction = half & 1023;
  if (exponent === 31) return fraction ? Number.NaN : sign * Number.POSITIVE_INFINITY;
  return exponent ? sign * (1024 + fraction) * 2 ** (exponent - 25) : sign * fraction * 2 ** -24;
}

function roundTiesToEven(x: number): number {
  const below = Math.floor(x);
  const over = x - below;
  return over > 0.5 || (over === 0.5 && below % 2 === 1) ? below + 1 : below;
}

const roundings: Record<Half, WeakMap<Float32Array, Uint16Array>> = {
  float16: new WeakMap(),
  bfloat16: new WeakMap(),
};

/** Rounds a whole array, which must not change later. */
function rounded(full: Float32Array, dtype: Half): Uint16Array {
  const known = roundings[dtype].get(full);
  if (known) return known;
  const made = new Uint16Array(full.length);
  for (let i = 0; i < made.length; i++) made[i] = toHalf(full[i]!, dtype);
  roundings[dtype].set(full, made);
  return made;
}

/** Fails unless a 16-bit gradient has the bits of the float32 gradient, rounded. */
export function assertRounded(
  actual: HalfColumn | undefined,
  full: Float32Array | undefined,
  dtype: Half,
  what: string,
): void {
  assert.ok(actual && full, `no ${what}`);
  assert.equal(actual.dtype, dtype, what);
  assert.equal(actual.data.length, full.length, `length of ${what}`);
  const expected = rounded(full, dtype);
  for (let i = 0; i < full.length; i++) {
    if (actual.data[i] !== expected[i])
      assert.fail(`${what}[${i}] has the bits ${actual.data[i]}, expected ${expected[i]} for ${full[i]}`);
  }
}
