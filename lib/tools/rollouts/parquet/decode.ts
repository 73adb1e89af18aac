// Has hyparquet decode values. It gets a file that is written here, with one page of one column, so that it never meets a
// header, a count or a level that was not checked.
import { type ColumnMetaData, parquetRead, type SchemaElement } from 'hyparquet';
import { Malformed } from './malformed.js';

/**
 * Decodes values. They stay as they are stored: byte arrays are not text, and 96-bit timestamps are nanoseconds.
 * @param encoding the number of the encoding.
 * @param count the number of values, at least 1.
 */
export async function decodeValues(
  { type, type_length }: SchemaElement,
  encoding: number,
  count: number,
  bytes: Uint8Array,
): Promise<ArrayLike<never>> {
  const header = pageHeader(bytes.length, count, encoding);
  const file = new Uint8Array(header.length + bytes.length);
  file.set(header);
  file.set(bytes, header.length);
  const size = BigInt(file.length);
  const num_rows = BigInt(count);
  const meta_data: ColumnMetaData = {
    type: type!,
    encodings: [],
    path_in_schema: ['values'],
    codec: 'UNCOMPRESSED',
    num_values: num_rows,
    total_uncompressed_size: size,
    total_compressed_size: size,
    data_page_offset: 0n,
  };
  const column: SchemaElement = { name: 'values', repetition_type: 'REQUIRED', type: type! };
  const chunks: ArrayLike<unknown>[] = [];
  try {
    await parquetRead({
      // All of it is asked for at once. A slice would be a copy.
      file: { byteLength: file.length, slice: () => file.buffer },
      metadata: {
        version: 1,
        schema: [
          { name: 'root', num_children: 1 },
          { ...column, type_length: type_length! },
        ],
        num_rows,
        row_groups: [{ columns: [{ file_offset: 0n, meta_data }], total_byte_size: size, num_rows }],
        metadata_length: 0,
      },
      onChunk: ({ columnData }) => chunks.push(columnData),
      utf8: false,
      parsers: { timestampFromNanoseconds: (nanos) => nanos },
    });
  } catch (error) {
    throw Malformed.because('values', error);
  }
  const [values] = chunks;
  if (values?.length !== count) throw new Malformed(`a page of ${count} values`, `${values?.length}`);
  return values as ArrayLike<never>;
}

// The beginnings of the fields of a page's header in Thrift's compact protocol: an integer, and the details of the page.
const [INTEGER, DETAILS, END] = [0x15, 0x2c, 0];
const [DATA_PAGE, RLE] = [0, 3];

function pageHeader(size: number, values: number, encoding: number): number[] {
  const integers = [DATA_PAGE, size, size, values, encoding, RLE, RLE].map((value) => [
    INTEGER,
    ...varint(2 * value),
  ]);
  return [...integers.slice(0, 3).flat(), DETAILS, ...integers.slice(3).flat(), END, END];
}

function varint(value: number): number[] {
  return value < 128 ? [value] : [(value & 127) | 128, ...varint(Math.floor(value / 128))];
}
