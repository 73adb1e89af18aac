// Reads the fields of plans and parts. These are JSON from files that anybody may have written, so that every field is
// checked before it is used.
import { describeValue, LossError } from '../../base/errors.js';
import { COLUMNS } from '../rollouts/columns.js';
import type { Place, RolloutColumn } from '../rollouts/index.js';

/** Reads the fields of an object. A field that is not as expected is an error that names the file and the field. */
export class Fields {
  readonly #file: string;
  readonly #path: string;
  readonly #values: Readonly<Record<string, unknown>>;

  /** @param path the path of the object in the file, for error messages. */
  constructor(file: string, value: unknown, path = '') {
    this.#file = file;
    this.#path = path;
    if (value === null || typeof value !== 'object' || Array.isArray(value))
      throw this.#error('', 'an object', value);
    this.#values = value as Record<string, unknown>;
  }

  has(key: string): boolean {
    return Object.hasOwn(this.#values, key) && this.#values[key] !== undefined;
  }

  get keys(): string[] {
    return Object.keys(this.#values);
  }

  /** Returns a whole number from 0 to `most`. */
  count(key: string, most = Number.MAX_SAFE_INTEGER): number {
    const value = this.#at(key);
    if (Number.isSafeInteger(value) && (value as number) >= 0 && (value as number) <= most)
      return value as number;
    throw this.#error(key, `a whole number from 0 to ${most}`, value);
  }

  number(key: string): number {
    const value = this.#at(key);
    if (typeof value === 'number') return value;
    throw this.#error(key, 'a number', value);
  }

  isNumber(key: string): boolean {
    return typeof this.#at(key) === 'number';
  }

  isText(key: string): boolean {
    return typeof this.#at(key) === 'string';
  }

  text(key: string): string {
    const value = this.#at(key);
    if (typeof value === 'string') return value;
    throw this.#error(key, 'a text', value);
  }

  /** Returns one of the given texts. */
  choice<T extends string>(key: string, choices: readonly T[]): T {
    const value = this.#at(key);
    if (choices.includes(value as T)) return value as T;
    throw this.#error(key, choices.map((choice) => `'${choice}'`).join(' or '), value);
  }

  /** Returns a SHA-256 in hexadecimal. */
  digest(key: string): string {
    const value = this.#at(key);
    if (typeof value === 'string' && /^[0-9a-f]{64}$/.test(value)) return value;
    throw this.#error(key, 'a SHA-256 in hexadecimal', value);
  }

  flag(key: string): boolean {
    const value = this.#at(key);
    if (typeof value === 'boolean') return value;
    throw this.#error(key, 'true or false', value);
  }

  object(key: string): Fields {
    return new Fields(this.#file, this.#at(key), this.#pathOf(key));
  }

  /** Returns the elements of a list, each read by `read` from an object whose field `value` it is. */
  list<T>(key: string, read: (item: Fields, name: 'value') => T): T[] {
    const values = this.#at(key);
    if (!Array.isArray(values)) throw this.#error(key, 'a list', values);
    return values.map((value, i) =>
      read(new Fields(this.#file, { value }, `${this.#pathOf(key)}[${i}]`), 'value'),
    );
  }

  texts(key: string): string[] {
    return this.list(key, (item, name) => item.text(name));
  }

  /** Returns the fields of an object by their names. */
  record<T>(key: string, read: (fields: Fields, name: string) => T): Record<string, T> {
    const fields = this.object(key);
    return Object.fromEntries(fields.keys.map((name) => [name, read(fields, name)]));
  }

  /** Returns the numbers that encodeNumbers() wrote. */
  float64(key: string, length?: number): Float64Array {
    return new Float64Array(this.#bytes(key, 8, length));
  }

  float32(key: string, length: number): Float32Array {
    return new Float32Array(this.#bytes(key, 4, length));
  }

  int32(key: string, length: number): Int32Array {
    return new Int32Array(this.#bytes(key, 4, length));
  }

  uint32(key: string, length: number): Uint32Array {
    return new Uint32Array(this.#bytes(key, 4, length));
  }

  uint8(key: string, length: number): Uint8Array {
    return new Uint8Array(this.#bytes(key, 1, length));
  }

  /** Returns an error about a field. */
  error(key: string, expected: string, received: string): LossError {
    return new LossError('ERR_INVALID_INPUT', {
      at: this.#file,
      key: this.#pathOf(key),
      expected,
      received,
    });
  }

  #at(key: string): unknown {
    return Object.hasOwn(this.#values, key) ? this.#values[key] : undefined;
  }

  #bytes(key: string, each: number, length: number | undefined): ArrayBuffer {
    const bytes = Buffer.from(this.text(key), 'base64');
    const count = bytes.length / each;
    if (length === undefined ? !Number.isInteger(count) : count !== length)
      throw this.error(key, `${length ?? 'whole'} numbers of ${each} bytes`, `${bytes.length} bytes`);
    return new Uint8Array(bytes).buffer;
  }

  #pathOf(key: string): string {
    if (key === 'value' && this.#path.endsWith(']')) return this.#path;
    return this.#path === '' ? key : `${this.#path}.${key}`;
  }

  #error(key: string, expected: string, received: unknown): LossError {
    const what = received === undefined ? 'nothing' : describeValue(received);
    return key === ''
      ? new LossError('ERR_INVALID_INPUT', {
          at: this.#file,
          ...(this.#path !== '' && { key: this.#path }),
          expected,
          received: what,
        })
      : this.error(key, expected, what);
  }
}

/** Returns the bytes of numbers as text, little-endian, in Base64. */
export function encodeNumbers(
  numbers: Float64Array | Float32Array | Int32Array | Uint32Array | Uint8Array,
): string {
  return Buffer.from(numbers.buffer, numbers.byteOffset, numbers.byteLength).toString('base64');
}

/** Returns the names of columns. */
export function columnsFrom(fields: Fields, key: string): RolloutColumn[] {
  const names = Object.keys(COLUMNS) as RolloutColumn[];
  return fields.list(key, (item, name) => item.choice(name, names));
}

/** Returns a place in a file of rollouts. */
export function placeFrom(fields: Fields): Place {
  return {
    file: fields.text('file'),
    ...(fields.has('line') && { line: fields.count('line') }),
    ...(fields.has('row') && { row: fields.count('row') }),
  };
}
