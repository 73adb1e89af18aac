/**
 * Mutates files field by field. A writer of a format passes every field of a valid file to Fields, which returns the
 * field's bytes, changed if a mutation asks for it. The writer computes lengths, offsets and checksums from the returned
 * bytes. So a mutation changes one field, and the rest of the file still fits it.
 */

/** What a field holds, which decides the values that a mutation may give it. */
export type Kind =
  /** An unsigned integer in little-endian order: a length, offset, count, flag or checksum. */
  | 'integer'
  /** An integer of variable length, as in Thrift's compact protocol. */
  | 'varint'
  /** A value in a text: a number, a list, or a text in quotes. */
  | 'word'
  /** A name without quotes. */
  | 'name'
  /** Punctuation, a signature, or data. */
  | 'bytes';

/** A change of the field with the index `at`, modulo the number of fields in the file. */
export type Mutation =
  /** Gives the field another value of its kind. */
  | { does: 'value'; at: number; which: number }
  | { does: 'drop'; at: number }
  | { does: 'repeat'; at: number; times: number }
  /** Repeats the field, or a hostile value in its place, for some megabytes. */
  | { does: 'flood'; at: number; which: number; megabytes: number }
  | { does: 'flip'; at: number; bit: number }
  /** Ends the file before this field. */
  | { does: 'end'; at: number };

const MEGABYTE = 2 ** 20;
const ESCAPE = '\u001b]0;title\u0007\u009b2J\u202e';

/** Values for fields of text. Some contain what a terminal would obey. */
export const WORDS: readonly string[] = [
  'NaN',
  '[NaN]',
  '[-1,Infinity]',
  '-0',
  '1e999',
  '[1e999,-1e-999]',
  '9007199254740993',
  '-18446744073709551617',
  '9'.repeat(5000),
  `1e${'9'.repeat(30)}`,
  '0x10',
  '01',
  'null',
  '[null]',
  'true',
  '""',
  '"',
  '"\\',
  '"\\ud800"',
  '"\\u0000"',
  `"${ESCAPE}"`,
  `"${JSON.stringify(ESCAPE).slice(1, -1)}"`,
  ESCAPE,
  '\u2028',
  '\ufeff',
  '\r',
  '\n',
  '\0',
  '[',
  ']',
  '{',
  '}',
  '{}',
  '[]',
  '[[],[]]',
  '{"a":[{"a":[]}]}',
  '['.repeat(50_000),
  `${'['.repeat(900)}${']'.repeat(900)}`,
  '{"a":'.repeat(50_000),
  '"__proto__"',
  '"constructor"',
  '"toString"',
  '"logprobs"',
  '"length"',
  `"${'key'.repeat(20_000)}"`,
  '(1,)',
  '()',
  '(99999999999999999999,)',
  '[-1]',
  '[18446744073709551616]',
  "'<f8'",
  "'|O'",
  "'>i8'",
  "'<U99999999'",
  'True',
];

/** Units of floods that are not a field of the file. */
const UNITS: readonly string[] = [
  '\n',
  ' ',
  '0,',
  '[',
  '{},',
  '"a":1,',
  '"',
  '\\',
  ',',
  '\r\n',
  'a""',
  '[-1]\n',
  '{"logprobs":[-1]}\n',
];

const INTEGERS: readonly bigint[] = [
  0n,
  1n,
  2n,
  8n,
  127n,
  128n,
  255n,
  65535n,
  100_000n,
  2n ** 24n,
  2n ** 29n,
  2n ** 31n - 1n,
  2n ** 31n,
  2n ** 32n - 1n,
  2n ** 40n,
  2n ** 53n + 1n,
  2n ** 63n - 1n,
  2n ** 63n,
  2n ** 64n - 1n,
];

/** The number of values among which `Mutation.which` chooses, at most. */
export const VALUES = Math.max(INTEGERS.length + 4, WORDS.length);

/** Passes on the fields of one file, and changes some of them. */
export class Fields {
  /** The number of fields so far. */
  count = 0;
  readonly #mutations: readonly Mutation[];
  readonly #fieldsInAll: number;
  readonly #maxMegabytes: number;
  #ended = false;

  /**
   * @param fieldsInAll the number of fields that the valid file has.
   * @param maxMegabytes the greatest size of a flood. A compressed file may have greater ones.
   */
  constructor(mutations: readonly Mutation[] = [], fieldsInAll = 1, maxMegabytes = 1) {
    this.#mutations = mutations;
    this.#fieldsInAll = fieldsInAll;
    this.#maxMegabytes = maxMegabytes;
  }

  /** Returns the bytes that the file has in the place of a field. A flood repeats the same buffer. */
  field(kind: Kind, bytes: Buffer): Buffer[] {
    const index = this.count++;
    let pieces = [bytes];
    for (const mutation of this.#mutations)
      if (mutation.at % this.#fieldsInAll === index) {
        if (mutation.does === 'end') this.#ended = true;
        pieces = this.#mutated(kind, pieces, mutation);
      }
    return this.#ended ? [] : pieces;
  }

  text(kind: Kind, text: string): Buffer[] {
    return this.field(kind, Buffer.from(text));
  }

  /** Returns an unsigned integer of the given number of bytes. */
  integer(value: number, bytes: number): Buffer {
    return Buffer.concat(this.field('integer', littleEndian(BigInt(value), bytes)));
  }

  #mutated(kind: Kind, pieces: Buffer[], mutation: Mutation): Buffer[] {
    const [first = Buffer.alloc(0)] = pieces;
    switch (mutation.does) {
      case 'drop':
      case 'end':
        return [];
      case 'repeat':
        return first.length * mutation.times > MEGABYTE ? pieces : [repeated(first, mutation.times)];
      case 'value':
        return [otherValue(kind, first, mutation.which)];
      case 'flip': {
        const flipped = Buffer.from(first);
        const bit = mutation.bit % Math.max(1, 8 * flipped.length);
        if (flipped.length > 0) flipped[bit >> 3]! ^= 1 << (bit & 7);
        return [flipped];
      }
      case 'flood': {
        const own = mutation.which % 3 === 0 && first.length > 0;
        const unit = own ? first : Buffer.from(UNITS[mutation.which % UNITS.length]!);
        const flood = repeated(unit, Math.ceil(MEGABYTE / unit.length));
        return [first, ...new Array<Buffer>(Math.min(mutation.megabytes, this.#maxMegabytes)).fill(flood)];
      }
    }
  }
}

const repeated = (unit: Buffer, times: number) => Buffer.alloc(unit.length * times, unit);

function otherValue(kind: Kind, bytes: Buffer, which: number): Buffer {
  if (kind === 'word') return Buffer.from(WORDS[which % WORDS.length]!);
  if (kind === 'name') return Buffer.from(WORDS[which % WORDS.length]!.replace(/^"|"$/g, ''));
  if (kind === 'varint') return varint(otherInteger(varintValue(bytes), which));
  if (kind === 'integer') return littleEndian(otherInteger(littleEndianValue(bytes), which), bytes.length);
  return Buffer.alloc(bytes.length, which);
}

/** Returns a neighbour of an integer, its double or half, or a value at which formats have limits. */
function otherInteger(value: bigint, which: number): bigint {
  const near = [value + 1n, value - 1n, value * 2n, value / 2n];
  const all = [...near, ...INTEGERS];
  return BigInt.asUintN(64, all[which % all.length]!);
}

function littleEndian(value: bigint, bytes: number): Buffer {
  const whole = Buffer.alloc(8);
  whole.writeBigUInt64LE(value);
  return whole.subarray(0, bytes);
}

function littleEndianValue(bytes: Buffer): bigint {
  return Buffer.concat([bytes, Buffer.alloc(8)]).readBigUInt64LE(0);
}

export function varint(value: bigint): Buffer {
  const bytes: number[] = [];
  let rest = value;
  for (; rest >= 128n; rest >>= 7n) bytes.push(Number(rest & 127n) | 128);
  return Buffer.from([...bytes, Number(rest)]);
}

function varintValue(bytes: Buffer): bigint {
  return bytes.reduce((value, byte, i) => value | (BigInt(byte & 127) << BigInt(7 * i)), 0n);
}
