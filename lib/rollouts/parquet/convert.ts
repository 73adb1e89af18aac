// Converts stored values to the values of rows, by the logical type of their column. Numbers stay numbers, integers that
// a number cannot hold exactly become text, and dates, times and bytes become text too.
import { isUtf8 } from 'node:buffer';
import type { SchemaElement } from 'hyparquet';
import { maxTextBytes, type RowLimits, textTooLong } from '../limits.js';
import { BadCell } from '../table.js';
import { numberOrText } from '../values.js';

/** A value as it is stored. Byte arrays of fixed and of variable length, and 96-bit timestamps, are bytes. */
export type Stored = number | bigint | boolean | Uint8Array;

/** Converts a stored value. A value that exceeds a limit becomes a BadCell. */
export type Convert = (value: Stored) => unknown;

/** What the stored values of a column mean. */
export type Meaning =
  | { kind: 'number' | 'text' | 'bytes' | 'uuid' | 'float16' | 'date' | 'int96' }
  | { kind: 'integer'; unsigned: boolean }
  | { kind: 'decimal'; scale: number }
  | { kind: 'time' | 'timestamp'; unit: bigint; zone: string };

const [MILLIS, MICROS, NANOS] = [1000n, 1_000_000n, 1_000_000_000n];
const UNITS = { MILLIS, MICROS, NANOS };

/** Returns the meaning of a column's values. */
export function meaningOf(element: SchemaElement): Meaning {
  const { type, type_length: length, converted_type: converted, logical_type: logical } = element;
  const isBytes = type === 'BYTE_ARRAY' || type === 'FIXED_LEN_BYTE_ARRAY';
  const isInteger = type === 'INT32' || type === 'INT64';
  const isDecimal = converted === 'DECIMAL' || logical?.type === 'DECIMAL';
  if (isDecimal && (isBytes || isInteger)) {
    const scale = logical?.type === 'DECIMAL' ? logical.scale : element.scale;
    return { kind: 'decimal', scale: Number(scale ?? 0) };
  }
  if (isBytes) {
    const isText = ['UTF8', 'ENUM', 'JSON'].includes(converted ?? '');
    if (isText || ['STRING', 'ENUM', 'JSON'].includes(logical?.type ?? '')) return { kind: 'text' };
    const fixed = type === 'FIXED_LEN_BYTE_ARRAY' ? length : undefined;
    if (logical?.type === 'UUID' && fixed === 16) return { kind: 'uuid' };
    return { kind: logical?.type === 'FLOAT16' && fixed === 2 ? 'float16' : 'bytes' };
  }
  if (type === 'INT96') return { kind: 'int96' };
  if (!isInteger) return { kind: 'number' };
  if (converted === 'DATE' || logical?.type === 'DATE') return { kind: 'date' };
  if (logical?.type === 'TIME' || logical?.type === 'TIMESTAMP') {
    const kind = logical.type === 'TIME' ? 'time' : 'timestamp';
    return { kind, unit: UNITS[logical.unit], zone: logical.isAdjustedToUTC ? '+00' : '' };
  }
  const [, kind, unit] = /^(TIME|TIMESTAMP)_(MILLIS|MICROS)$/.exec(converted ?? '') ?? [];
  if (kind)
    return {
      kind: kind === 'TIME' ? 'time' : 'timestamp',
      unit: UNITS[unit as keyof typeof UNITS],
      zone: '',
    };
  const isUnsigned = logical?.type === 'INTEGER' ? !logical.isSigned : converted?.startsWith('UINT');
  return { kind: 'integer', unsigned: isUnsigned === true };
}

/** Returns whether a value with this meaning is a number, or a Boolean. */
export function isNumeric({ kind }: Meaning): boolean {
  return kind === 'number' || kind === 'integer' || kind === 'decimal' || kind === 'float16';
}

/** Returns a function that converts the values of a column. */
export function converterOf(element: SchemaElement, limits: RowLimits): Convert {
  const meaning = meaningOf(element);
  const maxBytes = maxTextBytes(limits);
  const convert = convertBy(meaning, element.type === 'INT64' ? 64 : 32);
  return (value) => {
    if (value instanceof Uint8Array && value.length > maxBytes)
      return new BadCell(textTooLong(limits, value.length));
    return convert(value);
  };
}

function convertBy(meaning: Meaning, bits: number): Convert {
  switch (meaning.kind) {
    case 'number':
      return (value) => value;
    case 'integer':
      return (value) => {
        const integer = BigInt(value as bigint);
        return numberOrText(meaning.unsigned ? BigInt.asUintN(bits, integer) : integer);
      };
    case 'decimal':
      return (value) => decimal(value instanceof Uint8Array ? bigEndian(value) : value, meaning.scale);
    case 'text':
      return (value) => textOf(value as Uint8Array);
    case 'bytes':
      return (value) => escaped(value as Uint8Array);
    case 'uuid':
      return (value) =>
        bufferOf(value as Uint8Array)
          .toString('hex')
          .replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-');
    case 'float16':
      return (value) => float16(bufferOf(value as Uint8Array).readUInt16LE());
    case 'date':
      return (value) => dateText(BigInt(value as number) * 86400n);
    case 'int96':
      return (value) => int96(bufferOf(value as Uint8Array));
    case 'time':
      return (value) => timeText(BigInt(value as number), meaning.unit) + meaning.zone;
    case 'timestamp':
      return (value) => timestampText(BigInt(value as number), meaning.unit) + meaning.zone;
  }
}

function bufferOf({ buffer, byteOffset, byteLength }: Uint8Array): Buffer {
  return Buffer.from(buffer, byteOffset, byteLength);
}

function textOf(bytes: Uint8Array): unknown {
  if (!isUtf8(bytes)) return new BadCell({ expected: 'text in UTF-8', received: 'other bytes' });
  return bufferOf(bytes).toString();
}

/** Returns bytes as text. Those that are not printable ASCII characters become escape sequences such as \xE9. */
function escaped(bytes: Uint8Array): string {
  return bufferOf(bytes)
    .toString('latin1')
    .replace(
      /[^ !#-&(-~]/g,
      (character) => `\\x${character.charCodeAt(0).toString(16).toUpperCase().padStart(2, '0')}`,
    );
}

/** Converts a decimal, whose value is `unscaled` divided by a power of ten. */
export function decimal(unscaled: Stored | undefined, scale: number): unknown {
  if (unscaled === undefined) return new BadCell({ expected: 'a decimal', received: 'too many digits' });
  return scale === 0 ? numberOrText(BigInt(unscaled as bigint)) : Number(unscaled) / 10 ** scale;
}

// No decimal has more bytes.
const MAX_DECIMAL_BYTES = 32;

/** Returns a signed integer that is stored as bytes, the highest one first. Undefined if it has too many of them. */
function bigEndian(bytes: Uint8Array): bigint | undefined {
  if (bytes.length > MAX_DECIMAL_BYTES) return undefined;
  return BigInt.asIntN(8 * bytes.length, BigInt(`0x0${bufferOf(bytes).toString('hex')}`));
}

function float16(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = (bits & 0x3ff) / 1024;
  if (exponent === 0) return sign * 2 ** -14 * fraction;
  if (exponent === 31) return fraction === 0 ? sign * Number.POSITIVE_INFINITY : Number.NaN;
  return sign * 2 ** (exponent - 15) * (1 + fraction);
}

const SECONDS_PER_DAY = 86400n;
// The Julian day of 1970-01-01.
const EPOCH_DAY = 2_440_588n;

/** Returns a timestamp that is stored as the nanoseconds of a day and a Julian day. */
function int96(bytes: Buffer): string {
  const days = BigInt(bytes.readInt32LE(8)) - EPOCH_DAY;
  return timestampText(days * SECONDS_PER_DAY * NANOS + bytes.readBigUInt64LE(0), NANOS);
}

// The first 400 years after 1970, and so on, have equally many days.
const SECONDS_PER_ERA = 146_097n * SECONDS_PER_DAY;

function dateText(seconds: bigint): string {
  const eras = seconds / SECONDS_PER_ERA;
  const date = new Date(1000 * Number(seconds % SECONDS_PER_ERA));
  const year = date.getUTCFullYear() + 400 * Number(eras);
  const digits = String(year > 0 ? year : 1 - year).padStart(4, '0');
  return `${digits}${date.toISOString().slice(4, 10)}${year > 0 ? '' : ' (BC)'}`;
}

function timeText(value: bigint, unit: bigint): string {
  const time = new Date(1000 * Number((value / unit) % SECONDS_PER_DAY)).toISOString().slice(11, 19);
  const fraction = String(value % unit).padStart(String(unit).length - 1, '0');
  return time + `.${fraction}`.replace(/\.?0+$/, '');
}

function timestampText(value: bigint, unit: bigint): string {
  const perDay = SECONDS_PER_DAY * unit;
  const inDay = ((value % perDay) + perDay) % perDay;
  return `${dateText((value - inDay) / unit)} ${timeText(inDay, unit)}`;
}
