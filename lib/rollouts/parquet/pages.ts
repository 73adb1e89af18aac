// Reads the pages of a column in a row group, one after another.
import { deserializeTCompactProtocol } from 'hyparquet/src/thrift.js';
import type { Budget } from './budget.js';
import { decompress, decompressInPieces, hasStream } from './decompress.js';
import { type Chunk, PageMemory, type ParquetFile, wholeNumber } from './file.js';
import { HybridReader } from './hybrid.js';
import { Malformed } from './malformed.js';
import { PageBytes } from './page-bytes.js';
import type { Node } from './schema.js';
import { type OpenedPage, type Page, slicesOf } from './slices.js';
import type { PackedBytes } from './unpacked.js';
import { type Convert, type Dictionary, dictionaryOf, isDelta, uint32 } from './values.js';

const [DATA_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2] = [0, 2, 3];
const RLE = 3;
// A longer page is not in memory as a whole. Most writers' pages have about 1 MB, but those of DuckDB have up to 100 MB.
const LONG = 2 ** 23;
// What is needed to read and unpack a long page, besides what its PageBytes allocate.
const LONG_MEMORY = 2 ** 20;
// A page is prepared before fewer entries than these are left. It is more than a block of rows usually has.
const SOON = 2 ** 21;
// What is read of the file for a header. Statistics can make a header long.
const HEADER_BYTES = [1 << 12, 1 << 16, 1 << 24];

const BYTES_PER_DELTA = 16;

interface Header {
  type: number;
  /** The sizes of the page in the file and unpacked. */
  packed: number;
  size: number;
  /** The fields that depend on the type of the page. */
  fields: Record<`field_${number}`, unknown>;
  /** The place of the page after its header. */
  body: number;
  /** The place after the page. */
  end: number;
}

/** How a page is stored. It begins with the levels if they are not compressed. */
interface Layout {
  header: Header;
  repetitions: number;
  definitions: number;
  /** What follows these levels. */
  rest: PackedBytes;
}

/** The bytes of a page. */
interface Body {
  levels: PageBytes;
  rest: PageBytes;
}

/** Reads the pages of a chunk. */
export class PageReader {
  readonly #file: ParquetFile;
  readonly #chunk: Chunk;
  readonly #convert: Convert;
  readonly #budget: Budget;
  readonly #memory: PageMemory;
  #page: OpenedPage | undefined;
  #dictionary: Dictionary | undefined;
  /** The number of values in the pages so far. */
  #values = 0;
  /** The place of the next header. */
  #at: number;
  /** The place of the last header for which prepare() did its work. */
  #prepared = -1;

  constructor(file: ParquetFile, chunk: Chunk, convert: Convert, budget: Budget) {
    this.#file = file;
    this.#chunk = chunk;
    this.#convert = convert;
    this.#budget = budget;
    this.#memory = new PageMemory(file);
    this.#at = chunk.start;
  }

  /**
   * Yields the pages, and long ones in slices. A page or slice is valid until the next one is asked for, because the next
   * one is read into the same memory.
   */
  *pages(): Generator<Page, void> {
    const { leaf, values } = this.#chunk;
    let held = 0;
    while (this.#values < values) {
      const header = this.#headerAt(this.#at);
      this.#at = header.end;
      if (header.type === DICTIONARY_PAGE) {
        // The values take about as much as the bytes of which they are made.
        this.#budget.take(2 * header.size);
        held += 2 * header.size;
        const { rest } = this.#readWhole(this.#layoutOf(header), new PageMemory(this.#file));
        const count = wholeNumber(header.fields.field_1, 'number of values');
        this.#dictionary = dictionaryOf(rest.keep(rest.left), count, leaf.element, this.#convert);
      } else if (isData(header)) yield* this.#slicesOf(header);
    }
    this.#budget.release(held);
  }

  /**
   * Unpacks the next page to the disk, if it is long and few entries are left before it. Without this, the page is
   * unpacked in memory.
   */
  async prepare(): Promise<void> {
    const { codec, values, end } = this.#chunk;
    if (!hasStream(codec) || this.#values === values || this.#prepared === this.#at) return;
    if (this.#page && this.#page.left > SOON) return;
    this.#prepared = this.#at;
    let header = this.#headerAt(this.#at);
    while (!isData(header) && header.end < end) header = this.#headerAt(header.end);
    const { rest } = this.#layoutOf(header);
    if (isLong(header) && hasStream(rest.codec) && this.#budget.canUnpack(header.size))
      await this.#file.unpacked.add(rest);
  }

  *#slicesOf(header: Header): Generator<Page, void> {
    const { leaf, values } = this.#chunk;
    const count = wholeNumber(header.fields.field_1, 'number of values');
    this.#values += count;
    if (this.#values > values)
      throw new Malformed({ expected: `pages of ${values} values`, received: 'more' });
    const layout = this.#layoutOf(header);
    const { field_2, field_4 } = header.fields;
    const encoding = header.type === DATA_PAGE ? field_2 : field_4;
    const pieces = isLong(header) ? this.#piecesOf(layout.rest) : undefined;
    const memory = (pieces ? LONG_MEMORY : header.size) + (isDelta(encoding) ? BYTES_PER_DELTA * count : 0);
    this.#budget.take(memory);
    const body = pieces ? this.#readInPieces(layout, pieces) : this.#readWhole(layout, this.#memory);
    const open = header.type === DATA_PAGE ? firstVersion : secondVersion;
    const levels = open(leaf, layout, body);
    this.#page = { left: count, ...levels, bytes: body.rest, encoding };
    yield* slicesOf(this.#page, leaf.definition, leaf.element, this.#convert, this.#dictionary);
    body.levels.end();
    body.rest.end();
    this.#budget.release(memory);
  }

  /** Returns how a page is stored. Only data pages of version 2 have levels that are not compressed. */
  #layoutOf(header: Header): Layout {
    const { type, packed, size, body, fields } = header;
    const { field_5, field_6, field_7: isCompressed = true } = fields;
    const isSecond = type === DATA_PAGE_V2;
    const definitions = isSecond ? wholeNumber(field_5, 'size of levels') : 0;
    const repetitions = isSecond ? wholeNumber(field_6, 'size of levels') : 0;
    const levels = repetitions + definitions;
    if (levels > Math.min(packed, size))
      throw new Malformed({ expected: `levels in a page of ${packed} bytes`, received: `${levels} bytes` });
    const isPacked = !isSecond || (isCompressed !== false && packed > levels);
    const codec = isPacked ? this.#chunk.codec : 'UNCOMPRESSED';
    const rest = { codec, start: body + levels, packed: packed - levels, size: size - levels };
    return { header, repetitions, definitions, rest };
  }

  /** Reads a page into memory. */
  #readWhole({ header, rest: { codec, size } }: Layout, memory: PageMemory): Body {
    const { body, packed } = header;
    const levels = header.size - size;
    this.#budget.unpack(header.size);
    const isPacked = codec !== 'UNCOMPRESSED';
    if (isPacked) this.#budget.take(packed);
    const bytes = (isPacked ? this.#file.packed : memory).read(packed, body);
    const rest = decompress(codec, bytes.subarray(levels), size);
    if (isPacked) this.#budget.release(packed);
    const first = bytes.subarray(0, levels);
    return { levels: PageBytes.whole(isPacked ? new Uint8Array(first) : first), rest: PageBytes.whole(rest) };
  }

  #readInPieces({ header, rest: { start, size } }: Layout, pieces: Iterator<Uint8Array, void>): Body {
    this.#budget.unpack(header.size);
    const levels = this.#file.pieces(start - header.body, header.body);
    return {
      levels: PageBytes.inPieces(start - header.body, levels, this.#budget),
      rest: PageBytes.inPieces(size, pieces, this.#budget),
    };
  }

  /** Returns pieces of unpacked bytes. Undefined if they can be unpacked only as a whole. */
  #piecesOf({ codec, start, packed, size }: PackedBytes): Iterator<Uint8Array, void> | undefined {
    const bytes = PageBytes.inPieces(packed, this.#file.pieces(packed, start), this.#budget);
    return this.#file.unpacked.pieces(start) ?? decompressInPieces(codec, bytes, size);
  }

  #headerAt(at: number): Header {
    return headerAt(this.#file, at, this.#chunk.end);
  }
}

function headerAt(file: ParquetFile, at: number, end: number): Header {
  for (const limit of HEADER_BYTES) {
    const bytes = file.read(Math.min(limit, end - at), at);
    const reader = { view: new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength), offset: 0 };
    let fields: Record<`field_${number}`, unknown>;
    try {
      fields = deserializeTCompactProtocol(reader);
    } catch {
      if (limit < end - at) continue;
      break;
    }
    const type = wholeNumber(fields.field_1, 'type of page');
    const size = wholeNumber(fields.field_2, 'size of a page');
    const packed = wholeNumber(fields.field_3, 'size of a page');
    const body = at + reader.offset;
    if (body + packed > end)
      throw new Malformed({ expected: `a page within ${end - body} bytes`, received: `one of ${packed}` });
    const details = { [DATA_PAGE]: 5, [DICTIONARY_PAGE]: 7, [DATA_PAGE_V2]: 8 }[type];
    const own = details === undefined ? {} : fields[`field_${details}`];
    if (own === null || typeof own !== 'object') break;
    return { type, size, packed, fields: own as Header['fields'], body, end: body + packed };
  }
  throw new Malformed({ expected: `the header of a page at byte ${at}`, received: 'other bytes' });
}

function isData({ type }: Header): boolean {
  return type === DATA_PAGE || type === DATA_PAGE_V2;
}

function isLong({ size }: Header): boolean {
  return size > LONG;
}

/** The levels of a page. */
type Levels = Pick<Page, 'repetitions' | 'definitions'>;

/** Reads the levels of a data page of version 1. They come before the values, and each has its length before it. */
function firstVersion(leaf: Node, { header }: Layout, { rest }: Body): Levels {
  const { field_3: definitions, field_4: repetitions } = header.fields;
  const levels = (max: number, encoding: unknown) => {
    if (max === 0) return levelsOf(rest.keep(0), 0);
    const size = uint32(rest.keep(4), 0);
    if (encoding !== RLE || size > rest.left)
      throw new Malformed({ expected: 'run-length encoded levels', received: 'others' });
    return levelsOf(rest.keep(size), max);
  };
  return {
    repetitions: levels(leaf.repetition, repetitions),
    definitions: levels(leaf.definition, definitions),
  };
}

/** Reads the levels of a data page of version 2. */
function secondVersion(leaf: Node, { repetitions, definitions }: Layout, { levels }: Body): Levels {
  return {
    repetitions: levelsOf(levels.keep(repetitions), leaf.repetition),
    definitions: levelsOf(levels.keep(definitions), leaf.definition),
  };
}

function levelsOf(bytes: Uint8Array, max: number): HybridReader {
  return new HybridReader(bytes, 32 - Math.clz32(max), max);
}
