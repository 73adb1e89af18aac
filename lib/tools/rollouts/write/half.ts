// Rounds float32 numbers to 16 bits, as gradients are rounded that a call returns as 16-bit numbers.

/** The dtype of numbers with 16 bits. */
export type HalfDtype = 'float16' | 'bfloat16';

/** Returns the bits of numbers that are rounded to nearest, with ties to even. */
export function rounded(values: Float32Array, dtype: HalfDtype): Uint16Array {
  const bits = new Uint32Array(values.buffer, values.byteOffset, values.length);
  const round = dtype === 'float16' ? float16Bits : bfloat16Bits;
  return Uint16Array.from(values, (x, i) => round(x, bits[i]!));
}

function bfloat16Bits(x: number, bits: number): number {
  return Number.isNaN(x) ? 0x7fc0 : (bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16;
}

function float16Bits(x: number, bits: number): number {
  const sign = (bits >>> 16) & 0x8000;
  const magnitude = bits & 0x7fffffff;
  if (Number.isNaN(x)) return sign | 0x7e00;
  // From 65520 on, all numbers become Infinity.
  if (magnitude >= 0x477ff000) return sign | 0x7c00;
  // Below 2^-14, the distance of two numbers is 2^-24. Whole numbers above 2^52 have no fraction.
  if (magnitude < 0x38800000) return sign | (Math.abs(x) * 2 ** 24 + 2 ** 52 - 2 ** 52);
  // Of the 23 bits of the fraction, 10 are left, and the bias of the exponent is 15 instead of 127.
  return sign | (((magnitude + 0xfff + ((magnitude >>> 13) & 1)) >>> 13) - (112 << 10));
}
