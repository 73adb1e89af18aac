// Reads the pages of a column in a row group, one after another.
import type { CompressionCodec } from 'hyparquet';
import { deserializeTCompactProtocol } from 'hyparquet/src/thrift.js';
import type { Budget } from './budget.js';
import { decompress } from './decompress.js';
import { type Chunk, PageMemory, type ParquetFile, wholeNumber } from './file.js';
import { HybridReader } from './hybrid.js';
import { decoding, Malformed } from './malformed.js';
import { type Convert, type Dictionary, dictionaryOf, isDelta, type PageValues, valuesOf } from './values.js';

/** A page of data. Levels and values are read from it in order. */
export interface Page {
  /** The number of entries that were not read yet. An entry has levels, and a value if it is not null. */
  left: number;
  repetitions: HybridReader;
  definitions: HybridReader;
  values: PageValues;
}

const [DATA_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2] = [0, 2, 3];
const RLE = 3;
// What is read of the file for a header. Statistics can make a header long.
const HEADER_BYTES = [1 << 12, 1 << 16, 1 << 24];

const BYTES_PER_DELTA = 16;

/** Where pages come from, and the memory for them. */
interface Source {
  file: ParquetFile;
  memory: PageMemory;
  budget: Budget;
}

interface Header {
  type: number;
  /** The sizes of the page in the file and unpacked. */
  packed: number;
  size: number;
  /** The fields that depend on the type of the page. */
  fields: Record<`field_${number}`, unknown>;
  /** The place of the page after its header. */
  body: number;
}

/**
 * Yields the pages of a chunk. A page is valid until the next one is asked for, because the next one is read into the
 * same memory.
 */
export function* pagesOf(
  file: ParquetFile,
  chunk: Chunk,
  convert: Convert,
  budget: Budget,
): Generator<Page, void> {
  const source = { file, memory: new PageMemory(file), budget };
  let dictionary: Dictionary | undefined;
  let held = 0;
  let values = 0;
  let at = chunk.start;
  while (values < chunk.values) {
    const header = headerAt(file, at, chunk.end);
    at = header.body + header.packed;
    const { type, fields } = header;
    if (type === DICTIONARY_PAGE) {
      // The values take about as much as the bytes of which they are made.
      budget.take(2 * header.size);
      held += 2 * header.size;
      const { rest } = unpack({ ...source, memory: new PageMemory(file) }, header, chunk.codec);
      const count = wholeNumber(fields.field_1, 'number of values');
      dictionary = dictionaryOf(rest, count, chunk.leaf.element, convert);
    } else if (type === DATA_PAGE || type === DATA_PAGE_V2) {
      const count = wholeNumber(fields.field_1, 'number of values');
      values += count;
      if (values > chunk.values)
        throw new Malformed({ expected: `pages of ${chunk.values} values`, received: 'more' });
      const decoded = isDelta(type === DATA_PAGE ? fields.field_2 : fields.field_4)
        ? BYTES_PER_DELTA * count
        : 0;
      budget.take(header.size + decoded);
      const open = type === DATA_PAGE ? firstVersion : secondVersion;
      yield open(source, chunk, header, count, convert, dictionary);
      budget.release(header.size + decoded);
    }
  }
  budget.release(held);
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
    return { type, size, packed, fields: own as Header['fields'], body };
  }
  throw new Malformed({ expected: `the header of a page at byte ${at}`, received: 'other bytes' });
}

/** Reads a page, and unpacks it except for its first bytes, which are levels that are not compressed. */
function unpack(
  { file, memory, budget }: Source,
  { body, packed, size }: Header,
  codec: CompressionCodec,
  levelBytes = 0,
): { levels: Uint8Array; rest: Uint8Array } {
  budget.unpack(size);
  if (codec === 'UNCOMPRESSED') {
    const bytes = memory.read(packed, body);
    const rest = decompress(codec, bytes.subarray(levelBytes), size - levelBytes);
    return { levels: bytes.subarray(0, levelBytes), rest };
  }
  budget.take(packed);
  const bytes = file.packed.read(packed, body);
  const rest = decompress(codec, bytes.subarray(levelBytes), size - levelBytes);
  budget.release(packed);
  return { levels: new Uint8Array(bytes.subarray(0, levelBytes)), rest };
}

/** Opens a data page of version 1. It is compressed as a whole. */
function firstVersion(
  source: Source,
  { leaf, codec }: Chunk,
  header: Header,
  count: number,
  convert: Convert,
  dictionary: Dictionary | undefined,
): Page {
  const { field_2: encoding, field_3: definitions, field_4: repetitions } = header.fields;
  let { rest } = unpack(source, header, codec);
  const levels = (max: number, encoding: unknown) => {
    if (max === 0) return levelsOf(rest, 0);
    const size = decoding('the levels', () =>
      new DataView(rest.buffer, rest.byteOffset, rest.byteLength).getUint32(0, true),
    );
    if (encoding !== RLE || size > rest.length - 4)
      throw new Malformed({ expected: 'run-length encoded levels', received: 'others' });
    const bytes = rest.subarray(4, 4 + size);
    rest = rest.subarray(4 + size);
    return levelsOf(bytes, max);
  };
  const page = {
    left: count,
    repetitions: levels(leaf.repetition, repetitions),
    definitions: levels(leaf.definition, definitions),
  };
  const values = presentIn(page.definitions, leaf.definition, count);
  return { ...page, values: valuesOf(rest, values, encoding, leaf.element, convert, dictionary) };
}

/** Opens a data page of version 2. Its levels are not compressed. */
function secondVersion(
  source: Source,
  { leaf, codec }: Chunk,
  header: Header,
  count: number,
  convert: Convert,
  dictionary: Dictionary | undefined,
): Page {
  const { field_4: encoding, field_5, field_6, field_7: isCompressed = true } = header.fields;
  const definitions = wholeNumber(field_5, 'size of levels');
  const repetitions = wholeNumber(field_6, 'size of levels');
  const size = repetitions + definitions;
  if (size > Math.min(header.packed, header.size))
    throw new Malformed({
      expected: `levels in a page of ${header.packed} bytes`,
      received: `${size} bytes`,
    });
  const isPacked = isCompressed !== false && header.packed > size;
  const { levels, rest } = unpack(source, header, isPacked ? codec : 'UNCOMPRESSED', size);
  const page = {
    left: count,
    repetitions: levelsOf(levels.subarray(0, repetitions), leaf.repetition),
    definitions: levelsOf(levels.subarray(repetitions), leaf.definition),
  };
  const values = presentIn(page.definitions, leaf.definition, count);
  return { ...page, values: valuesOf(rest, values, encoding, leaf.element, convert, dictionary) };
}

function levelsOf(bytes: Uint8Array, max: number): HybridReader {
  return new HybridReader(bytes, 32 - Math.clz32(max), max);
}

/** Counts the entries of a page that are not null. */
function presentIn(definitions: HybridReader, max: number, count: number): number {
  if (max === 0) return count;
  const levels = definitions.restart();
  let present = 0;
  for (let left = count; left > 0; ) {
    const taken = levels.take(max, left);
    present += taken;
    left -= taken;
    if (left > 0) left -= levels.take(levels.peek(), left);
  }
  return present;
}
