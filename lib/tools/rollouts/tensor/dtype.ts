// The element types of tensors, and the conversion of their bytes to numbers or text. The bytes are little-endian, as
// on every machine that this package supports.
import { type NumberArray, numberOrText } from '../values.js';

/** Decoded elements: numbers or text. An integer that is too large for an exact number becomes text. */
export type Elements = NumberArray | readonly (number | string)[];

/** An element type. */
export interface Dtype {
  /** The size of one element in bytes. */
  bytes: number;
  /** @param bytes the bytes of one or more whole elements. Their memory is aligned for a typed array of this type. */
  decode(bytes: Uint8Array): Elements;
}

const numbers = (
  array: (new (
    buffer: ArrayBufferLike,
    offset: number,
    length: number,
  ) => NumberArray) & {
    BYTES_PER_ELEMENT: number;
  },
): Dtype => ({
  bytes: array.BYTES_PER_ELEMENT,
  decode: ({ buffer, byteOffset, byteLength }) =>
    new array(buffer as ArrayBuffer, byteOffset, byteLength / array.BYTES_PER_ELEMENT),
});

const sixteenBits = (widen: (bits: number) => number): Dtype => ({
  bytes: 2,
  decode: ({ buffer, byteOffset, byteLength }) =>
    Float32Array.from(new Uint16Array(buffer as ArrayBuffer, byteOffset, byteLength / 2), widen),
});

const sixtyFourBits = (array: typeof BigInt64Array | typeof BigUint64Array): Dtype => ({
  bytes: 8,
  decode({ buffer, byteOffset, byteLength }) {
    const integers = new array(buffer as ArrayBuffer, byteOffset, byteLength / 8);
    const numbers = new Float64Array(integers.length);
    for (let i = 0; i < integers.length; i++) numbers[i] = Number(integers[i]);
    return numbers.every(Number.isSafeInteger) ? numbers : Array.from(integers, numberOrText);
  },
});

/** Returns the element type of texts that all take the same number of bytes. Shorter texts are padded with zeros. */
export function textDtype(bytes: number, bytesPerCharacter: 1 | 4): Dtype {
  return {
    bytes,
    decode(all) {
      const texts: string[] = [];
      for (let start = 0; start < all.length; start += bytes)
        texts.push(decodeText(all.subarray(start, start + bytes), bytesPerCharacter));
      return texts;
    },
  };
}

function decodeText(padded: Uint8Array, bytesPerCharacter: 1 | 4): string {
  let end = padded.length;
  while (end > 0 && padded[end - 1] === 0) end--;
  const bytes = padded.subarray(0, Math.ceil(end / bytesPerCharacter) * bytesPerCharacter);
  if (bytesPerCharacter === 1) return Buffer.from(bytes).toString();
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let text = '';
  for (let at = 0; at < bytes.length; at += 4) {
    const code = view.getUint32(at, true);
    text += code <= 0x10ffff ? String.fromCodePoint(code) : '\uFFFD';
  }
  return text;
}

/** Maps the names that safetensors files use to element types. */
export const DTYPES: ReadonlyMap<string, Dtype> = new Map([
  ['F16', sixteenBits(widenHalf)],
  ['BF16', sixteenBits((bits) => floatOf(bits << 16))],
  ['F32', numbers(Float32Array)],
  ['F64', numbers(Float64Array)],
  ['I8', numbers(Int8Array)],
  ['I16', numbers(Int16Array)],
  ['I32', numbers(Int32Array)],
  ['I64', sixtyFourBits(BigInt64Array)],
  ['U8', numbers(Uint8Array)],
  ['U16', numbers(Uint16Array)],
  ['U32', numbers(Uint32Array)],
  ['U64', sixtyFourBits(BigUint64Array)],
  ['BOOL', numbers(Uint8Array)],
]);

/** Returns the name of an element type in DTYPES, or 'text'. */
export function dtypeName(dtype: Dtype): string {
  for (const [name, known] of DTYPES) if (known === dtype) return name;
  return 'text';
}

const scratch = new DataView(new ArrayBuffer(4));

function floatOf(bits: number): number {
  scratch.setInt32(0, bits);
  return scratch.getFloat32(0);
}

function widenHalf(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 0x1f;
  const fraction = bits & 0x3ff;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 0x1f) return fraction === 0 ? sign * Number.POSITIVE_INFINITY : Number.NaN;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}
