/** Writes safetensors and npz files, field by field. */
import { crc32, deflateRawSync } from 'node:zlib';
import { type RolloutRow, TOKEN_COLUMNS } from './content.js';
import type { Fields } from './fields.js';

/** How the rows are arranged: padded rows have the shape [B, T], packed rows follow one another. */
export type Layout = 'padded' | 'packed';

/** A tensor of a file. */
export interface Tensor {
  name: string;
  shape: number[];
  data: Buffer;
  /** The element type as safetensors and as NumPy name it. */
  dtype: readonly [safetensors: string, numpy: string];
}

export const F32 = ['F32', '<f4'] as const;
const U8 = ['U8', '|u1'] as const;
export const I64 = ['I64', '<i8'] as const;

function tensorsOf(rows: readonly RolloutRow[], layout: Layout): Tensor[] {
  const tokens = rows.flatMap(({ logprobs }) => logprobs).length;
  const perToken = layout === 'packed' ? [tokens] : [rows.length, rows[0]!.logprobs.length];
  const floats = (values: readonly number[]) => Buffer.from(Float32Array.from(values).buffer);
  const integers = (values: readonly number[]) => Buffer.from(BigInt64Array.from(values, BigInt).buffer);
  const columns = TOKEN_COLUMNS.map((name): Tensor => {
    const values = rows.flatMap((row) => row[name]);
    const isMask = name === 'action_mask';
    return {
      name,
      shape: perToken,
      data: isMask ? Buffer.from(values) : floats(values),
      dtype: isMask ? U8 : F32,
    };
  });
  const offsets = [0];
  for (const { logprobs } of rows) offsets.push(offsets.at(-1)! + logprobs.length);
  const perRow = [rows.length];
  return [
    ...columns,
    { name: 'reward', shape: perRow, data: floats(rows.map(({ reward }) => reward)), dtype: F32 },
    { name: 'task_id', shape: perRow, data: integers(rows.map(({ task_id }) => task_id)), dtype: I64 },
    ...(layout === 'packed'
      ? [{ name: 'cu_seqlens', shape: [rows.length + 1], data: integers(offsets), dtype: I64 }]
      : []),
  ];
}

/** Returns the pieces of a safetensors file with rollouts. */
export function safetensors(rows: readonly RolloutRow[], layout: Layout, fields: Fields): Buffer[] {
  return safetensorsOf(tensorsOf(rows, layout), fields);
}

/** Returns the pieces of a safetensors file. The header fits its tensors' data, even if a mutation changes the data. */
export function safetensorsOf(tensors: readonly Tensor[], fields: Fields): Buffer[] {
  const word = (value: unknown) => fields.text('word', JSON.stringify(value));
  const mark = (text: string) => fields.text('bytes', text);
  let end = 0;
  const data: Buffer[] = [];
  const entries = tensors.flatMap(({ name, shape, data: elements, dtype: [dtype] }, i) => {
    const pieces = fields.field('bytes', elements);
    const begin = end;
    end += pieces.reduce((sum, { length }) => sum + length, 0);
    data.push(...pieces);
    return [
      ...mark(i === 0 ? '{' : ','),
      ...word(name),
      ...mark(':{"dtype":'),
      ...word(dtype),
      ...mark(',"shape":['),
      ...shape.flatMap((n, axis) => [...(axis > 0 ? mark(',') : []), ...word(n)]),
      ...mark('],"data_offsets":['),
      ...word(begin),
      ...mark(','),
      ...word(end),
      ...mark(']}'),
    ];
  });
  const header = Buffer.concat([...entries, ...mark('}')]);
  return [fields.integer(header.length, 8), header, ...data];
}

/**
 * Returns the pieces of an npz file with rollouts.
 * @param isDeflated whether the arrays are compressed.
 */
export function npz(
  rows: readonly RolloutRow[],
  layout: Layout,
  isDeflated: boolean,
  fields: Fields,
): Buffer[] {
  return npzOf(tensorsOf(rows, layout), isDeflated, fields);
}

/** Returns the pieces of an npz file: a zip archive of arrays. */
export function npzOf(tensors: readonly Tensor[], isDeflated: boolean, fields: Fields): Buffer[] {
  const locals: Buffer[] = [];
  const directory: Buffer[] = [];
  for (const tensor of tensors) {
    const content = Buffer.concat(npy(tensor, fields));
    const data = isDeflated ? deflateRawSync(content) : content;
    const name = Buffer.concat(fields.text('name', `${tensor.name}.npy`));
    const shared = () => [
      fields.integer(20, 2),
      fields.integer(0, 2),
      fields.integer(isDeflated ? 8 : 0, 2),
      fields.integer(0, 4),
      fields.integer(crc32(content), 4),
      fields.integer(data.length, 4),
      fields.integer(content.length, 4),
      fields.integer(name.length, 2),
      fields.integer(0, 2),
    ];
    const offset = sizeOf(locals);
    locals.push(fields.integer(0x04034b50, 4), ...shared(), name, data);
    directory.push(
      fields.integer(0x02014b50, 4),
      fields.integer(20, 2),
      ...shared(),
      fields.integer(0, 2),
      fields.integer(0, 2),
      fields.integer(0, 2),
      fields.integer(0, 4),
      fields.integer(offset, 4),
      name,
    );
  }
  return [
    ...locals,
    ...directory,
    fields.integer(0x06054b50, 4),
    fields.integer(0, 2),
    fields.integer(0, 2),
    fields.integer(tensors.length, 2),
    fields.integer(tensors.length, 2),
    fields.integer(sizeOf(directory), 4),
    fields.integer(sizeOf(locals), 4),
    fields.integer(0, 2),
  ];
}

const sizeOf = (pieces: readonly Buffer[]) => pieces.reduce((sum, { length }) => sum + length, 0);

/** Returns the pieces of an npy file. */
export function npy({ shape, data, dtype: [, dtype] }: Tensor, fields: Fields): Buffer[] {
  const word = (text: string) => fields.text('word', text);
  const mark = (text: string) => fields.text('bytes', text);
  const header = Buffer.concat([
    ...mark("{'descr': "),
    ...word(`'${dtype}'`),
    ...mark(", 'fortran_order': "),
    ...word('False'),
    ...mark(", 'shape': "),
    ...word(`(${shape.join(', ')},)`),
    ...mark(', }\n'),
  ]);
  return [
    ...fields.field('bytes', Buffer.from('\x93NUMPY', 'latin1')),
    fields.integer(1, 1),
    fields.integer(0, 1),
    fields.integer(header.length % 65536, 2),
    header,
    ...fields.field('bytes', data),
  ];
}
