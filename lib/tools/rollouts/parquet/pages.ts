// Reads the entries of a stored column in a row group, page by page.
import type { Budget } from './budget.js';
import { decompress } from './codecs.js';
import type { Convert } from './convert.js';
import { type Chunk, type ParquetFile, wholeNumber } from './file.js';
import { Malformed } from './malformed.js';
import { Runs } from './runs.js';
import { type Struct, ThriftReader } from './thrift.js';
import { type PageValues, PLAIN, RLE, valuesOf } from './values.js';

const [DATA_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2] = [0, 2, 3];
// What is read of the file for a header. Statistics can make a header long.
const HEADER_BYTES = [2 ** 12, 2 ** 24];
// The memory for an entry while it is decoded: a number, or an object. An object has bytes too, which become text.
const [NUMBER_BYTES, OBJECT_BYTES] = [64, 256];
const BYTES_PER_BYTE = 6;
const OBJECTS = ['BYTE_ARRAY', 'FIXED_LEN_BYTE_ARRAY', 'INT96'];

/** Some entries. An entry has levels, and a value if it is not null. */
export interface Entries {
  repetitions: Uint8Array;
  definitions: Uint8Array;
  /** The values, which are converted. */
  values: ArrayLike<unknown>;
}

/** A page of data. */
interface Page {
  repetitions: Runs;
  definitions: Runs;
  values: PageValues;
}

interface Header {
  type: number;
  /** The sizes of the page in the file and unpacked. */
  packed: number;
  size: number;
  /** The place of the page after its header. */
  start: number;
  /** The fields that depend on the type of the page. */
  details: Struct;
}

/** Reads a chunk. */
export class ChunkReader {
  readonly #file: ParquetFile;
  readonly #chunk: Chunk;
  readonly #convert: Convert | undefined;
  readonly #budget: Budget;
  readonly #entryBytes: number;
  #dictionary: ArrayLike<unknown> = [];

  constructor(file: ParquetFile, chunk: Chunk, convert: Convert | undefined, budget: Budget) {
    this.#file = file;
    this.#chunk = chunk;
    this.#convert = convert;
    this.#budget = budget;
    this.#entryBytes = OBJECTS.includes(chunk.leaf.element.type!) ? OBJECT_BYTES : NUMBER_BYTES;
  }

  /** Yields the entries, some at a time. */
  async *entries(): AsyncGenerator<Entries, void> {
    const { start, values, leaf } = this.#chunk;
    let held = 0;
    for (let at = start, entries = 0; entries < values; ) {
      const header = this.#headerAt(at);
      at = header.start + header.packed;
      if (header.type === DICTIONARY_PAGE) {
        const count = numberIn(header.details, 1);
        const memory = header.size * BYTES_PER_BYTE + count * this.#entryBytes;
        held += memory;
        this.#budget.take(memory);
        const dictionary = valuesOf(this.#unpack(header), PLAIN, leaf.element, [], this.#convert);
        this.#dictionary = count > 0 ? await dictionary.take(count) : [];
      } else if (header.type === DATA_PAGE || header.type === DATA_PAGE_V2) {
        const count = numberIn(header.details, 1);
        entries += count;
        if (entries > values) throw new Malformed(`pages of ${values} values`, 'more');
        this.#budget.take(header.size);
        yield* this.#partsOf(header.type === DATA_PAGE ? this.#first(header) : this.#second(header), count);
        this.#budget.release(header.size);
      }
    }
    this.#budget.release(held);
  }

  async *#partsOf({ repetitions, definitions, values }: Page, count: number): AsyncGenerator<Entries, void> {
    const { definition } = this.#chunk.leaf;
    for (let left = count, size = 0; left > 0; left -= size) {
      const next = values.next();
      size = Math.min(left, next.count);
      const memory = next.bytes * BYTES_PER_BYTE + size * this.#entryBytes;
      this.#budget.take(memory);
      const levels = {
        repetitions: repetitions.read(new Uint8Array(size)),
        definitions: definitions.read(new Uint8Array(size)),
      };
      let present = 0;
      for (let i = 0; i < size; i++) if (levels.definitions[i] === definition) present++;
      yield { ...levels, values: present > 0 ? await values.take(present) : [] };
      this.#budget.release(memory);
    }
  }

  #headerAt(at: number): Header {
    for (const limit of HEADER_BYTES) {
      const reader = new ThriftReader(this.#file.read(Math.min(limit, this.#chunk.end - at), at));
      let fields: Struct;
      try {
        fields = reader.struct();
      } catch {
        continue;
      }
      const [type, size, packed] = [numberIn(fields, 1), numberIn(fields, 2), numberIn(fields, 3)];
      const start = at + reader.at;
      const rest = this.#chunk.end - start;
      if (packed > rest) throw new Malformed(`a page within ${rest} bytes`, `one of ${packed}`);
      const details = fields.get({ [DATA_PAGE]: 5, [DICTIONARY_PAGE]: 7, [DATA_PAGE_V2]: 8 }[type] ?? 0);
      return { type, size, packed, start, details: details instanceof Map ? details : new Map() };
    }
    throw new Malformed(`the header of a page at byte ${at}`, 'other bytes');
  }

  /** Reads a page of version 1: the levels are compressed with the values, and have their length before them. */
  #first(header: Header): Page {
    const { repetition, definition } = this.#chunk.leaf;
    let rest = this.#unpack(header);
    const next = (max: number, encoding: unknown) => {
      if (max === 0) return levelsOf(rest, 0);
      const size = rest.length < 4 ? Number.NaN : Buffer.from(rest.buffer, rest.byteOffset).readUInt32LE();
      if (encoding !== RLE || !(4 + size <= rest.length))
        throw new Malformed('run-length encoded levels', 'others');
      const levels = levelsOf(rest.subarray(4, 4 + size), max);
      rest = rest.subarray(4 + size);
      return levels;
    };
    const repetitions = next(repetition, header.details.get(4));
    const definitions = next(definition, header.details.get(3));
    return { repetitions, definitions, values: this.#values(rest, header.details.get(2)) };
  }

  /** Reads a page of version 2: it begins with the levels, which are not compressed. */
  #second(header: Header): Page {
    const { repetition, definition } = this.#chunk.leaf;
    const { details, start, packed } = header;
    const [first, second] = [numberIn(details, 6), numberIn(details, 5)];
    const rest = this.#unpack(header, first + second, details.get(7) !== false);
    const levels = this.#file.read(Math.min(first + second, packed), start);
    return {
      repetitions: levelsOf(levels.subarray(0, first), repetition),
      definitions: levelsOf(levels.subarray(first), definition),
      values: this.#values(rest, details.get(4)),
    };
  }

  #values(bytes: Uint8Array, encoding: unknown): PageValues {
    return valuesOf(bytes, encoding, this.#chunk.leaf.element, this.#dictionary, this.#convert);
  }

  /** Reads and unpacks a page, without its first bytes. */
  #unpack({ start, packed, size }: Header, first = 0, isPacked = true): Uint8Array {
    if (first > Math.min(packed, size))
      throw new Malformed(`levels in a page of ${packed} bytes`, `${first} bytes`);
    this.#budget.unpack(size);
    this.#budget.take(packed);
    const bytes = this.#file.read(packed - first, start + first);
    const codec = isPacked && packed > first ? this.#chunk.codec : 'UNCOMPRESSED';
    const unpacked = decompress(codec, bytes, size - first);
    this.#budget.release(packed);
    return unpacked;
  }
}

function numberIn(fields: Struct, id: number): number {
  return wholeNumber(fields.get(id), 'number in the header of a page');
}

function levelsOf(bytes: Uint8Array, max: number): Runs {
  return new Runs(bytes, 32 - Math.clz32(max), max);
}
