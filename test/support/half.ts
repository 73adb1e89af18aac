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

/** Rounds a number to float32 and then to 16 bits, to nearest with ties to even. */
export function toHalf(x: number, dtype: Half): number {
  const all = bits(x);
  // bfloat16 is the upper half of a float32.
  if (dtype === 'bfloat16') return roundedShift(all, 16) & 0xffff;
  const sign = (all >>> 16) & 0x8000;
  const size = all & 0x7fffffff;
  // Below the smallest normal number, 2^-14, all numbers have the distance 2^-24.
  if (size < SMALLEST_NORMAL) return sign | roundTiesToEven(Math.abs(float[0]!) * 2 ** 24);
  // A float16 has 10 bits of the fraction, and its exponent has another offset. What rounding carries raises the exponent.
  const half = roundedShift(size, 13) - ((127 - 15) << 10);
  return sign | (size > INFINITE ? 0x7e00 : Math.min(half, 0x7c00));
}

const SMALLEST_NORMAL = bits(2 ** -14);
const INFINITE = bits(Number.POSITIVE_INFINITY);

/** Removes the lowest bits of a number, and rounds the rest to nearest with ties to even. */
function roundedShift(all: number, count: number): number {
  return (all + 2 ** (count - 1) - 1 + ((all >>> count) & 1)) >>> count;
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
