// Converts stored values to the values of rows, by the logical type of their column. Numbers stay numbers, integers that
// a number cannot hold exactly become text, and dates, times and bytes become text too.
import { isUtf8 } from 'node:buffer';
import type { SchemaElement } from 'hyparquet';
import { maxTextBytes, textTooLong } from '../limits.js';
import type { RowLimits } from '../source.js';
import { BadCell } from '../table.js';
import { numberOrText } from '../values.js';

/** Converts a stored value. A value that exceeds a limit becomes a BadCell. */
export type Convert = (value: never) => unknown;

const [MILLIS, MICROS, NANOS] = [1000n, 1_000_000n, 1_000_000_000n];
const UNITS = { MILLIS, MICROS, NANOS };

/** Returns a function that converts the values of a column; undefined if they stay as they are. */
export function converterOf(element: SchemaElement, limits: RowLimits): Convert | undefined {
  const { type, type_length: length, converted_type: converted, logical_type: logical } = element;
  if (type === 'INT96') return (nanos: bigint) => timestampText(nanos, NANOS);
  const isFixed = type === 'FIXED_LEN_BYTE_ARRAY';
  const isBytes = isFixed || type === 'BYTE_ARRAY';
  if (!isBytes && type !== 'INT32' && type !== 'INT64') return undefined;
  if (converted === 'DECIMAL' || logical?.type === 'DECIMAL') {
    const scale = Number((logical?.type === 'DECIMAL' ? logical.scale : element.scale) ?? 0);
    return (value: number | bigint | Uint8Array) => decimal(value, scale);
  }
  if (isBytes) {
    if (logical?.type === 'UUID' && isFixed && length === 16) return uuid;
    if (logical?.type === 'FLOAT16' && isFixed && length === 2) return float16;
    const isText = TEXTS.includes(converted ?? '') || TEXTS.includes(logical?.type ?? '');
    return (bytes: Uint8Array) => {
      if (bytes.length > maxTextBytes(limits)) return new BadCell(textTooLong(limits, bytes.length));
      return isText ? textOf(bytes) : escaped(bytes);
    };
  }
  if (converted === 'DATE' || logical?.type === 'DATE')
    return (days: number) => dateText(BigInt(days) * SECONDS_PER_DAY);
  if (logical?.type === 'TIME' || logical?.type === 'TIMESTAMP')
    return momentConverter(logical.type, UNITS[logical.unit], logical.isAdjustedToUTC ? '+00' : '');
  const [, kind, unit] = /^(TIME|TIMESTAMP)_(MILLIS|MICROS)$/.exec(converted ?? '') ?? [];
  if (kind) return momentConverter(kind, UNITS[unit as keyof typeof UNITS], '');
  const isUnsigned = logical?.type === 'INTEGER' ? !logical.isSigned : converted?.startsWith('UINT');
  if (type === 'INT32') return isUnsigned ? (value: number) => value >>> 0 : undefined;
  return isUnsigned ? (value: bigint) => numberOrText(BigInt.asUintN(64, value)) : numberOrText;
}

const TEXTS = ['UTF8', 'STRING', 'ENUM', 'JSON'];

function bufferOf({ buffer, byteOffset, byteLength }: Uint8Array): Buffer {
  return Buffer.from(buffer, byteOffset, byteLength);
}

function textOf(bytes: Uint8Array): unknown {
  if (!isUtf8(bytes)) return new BadCell({ expected: 'text in UTF-8', received: 'other bytes' });
  return bufferOf(bytes).toString();
}

/** Returns bytes as text. Those that are not printable ASCII characters become escape sequences such as \xE9. */
function escaped(bytes: Uint8Array): string {
  const texts: string[] = [];
  // Replacing all characters of a long text at once would take a hundred bytes for each.
  for (let at = 0; at < bytes.length; at += ESCAPED_BYTES) {
    const text = bufferOf(bytes.subarray(at, at + ESCAPED_BYTES)).toString('latin1');
    texts.push(text.replace(/[^ !#-&(-~]/g, escapeSequence));
  }
  return texts.join('');
}

const ESCAPED_BYTES = 2 ** 16;

function escapeSequence(character: string): string {
  return `\\x${character.charCodeAt(0).toString(16).toUpperCase().padStart(2, '0')}`;
}

function uuid(bytes: Uint8Array): string {
  return bufferOf(bytes)
    .toString('hex')
    .replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-');
}

function float16(bytes: Uint8Array): number {
  const bits = bufferOf(bytes).readUInt16LE();
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = (bits & 0x3ff) / 1024;
  if (exponent === 0) return sign * 2 ** -14 * fraction;
  if (exponent === 31) return fraction === 0 ? sign * Number.POSITIVE_INFINITY : Number.NaN;
  return sign * 2 ** (exponent - 15) * (1 + fraction);
}

// No decimal has more bytes.
const MAX_DECIMAL_BYTES = 32;

/** Converts a decimal: a signed integer, divided by a power of ten. If it is bytes, the highest one is the first. */
function decimal(value: number | bigint | Uint8Array, scale: number): unknown {
  let unscaled = value;
  if (unscaled instanceof Uint8Array) {
    if (unscaled.length > MAX_DECIMAL_BYTES)
      return new BadCell({ expected: 'a decimal', received: 'too many digits' });
    unscaled = BigInt.asIntN(8 * unscaled.length, BigInt(`0x0${bufferOf(unscaled).toString('hex')}`));
  }
  return scale === 0 ? numberOrText(BigInt(unscaled)) : Number(unscaled) / 10 ** scale;
}

const SECONDS_PER_DAY = 86400n;
// The first 400 years after 1970, and so on, have equally many days.
const SECONDS_PER_ERA = 146_097n * SECONDS_PER_DAY;

function momentConverter(kind: string, unit: bigint, zone: string): Convert {
  const textOfMoment = kind === 'TIME' ? timeText : timestampText;
  return (value: number | bigint) => textOfMoment(BigInt(value), unit) + zone;
}

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
