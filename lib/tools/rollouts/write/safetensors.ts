// Writes gradients as a .safetensors file: a JSON header with each tensor's position, followed by the tensors' bytes.
import { type FileHandle, open } from 'node:fs/promises';
import { LossError } from '../../../base/errors.js';
import { MAX_HEADER } from '../tensor/safetensors.js';
import { rounded } from './half.js';
import {
  bytesOf,
  type GradientDtype,
  type IdColumn,
  type StagedRow,
  type Staging,
  type WriteStaged,
} from './staging.js';

/** The entry of a tensor in the header. */
export interface TensorEntry {
  name: string;
  dtype: keyof typeof BYTES;
  shape: readonly number[];
}

const BYTES = { U8: 1, F16: 2, BF16: 2, F32: 4, F64: 8, I64: 8 } as const;

const DTYPES = { float32: 'F32', float16: 'F16', bfloat16: 'BF16' } as const;

/** Returns the size of a tensor in bytes. */
export const bytesOfTensor = ({ dtype, shape }: TensorEntry) =>
  shape.reduce((product, n) => product * n, BYTES[dtype] as number);

/** A tensor to write. */
interface Tensor extends TensorEntry {
  /** Returns the tensor's elements for one row. It is called once per row, in the order of the rows. */
  data(row: StagedRow): ArrayBufferView;
  /** The elements that come before the elements of the first row. */
  prefix?: ArrayBufferView;
}

/** Writes tensors. */
export const writeSafetensors: WriteStaged = async (staging, file, { layout, dtype }) => {
  const metadata: Record<string, string> = {};
  const tensors = [layout === 'padded' ? lengths(staging) : cuSeqlens(staging)];
  for (const column of staging.idColumns())
    tensors.push(
      column.kind === 'text' ? await indexTensor(staging, column, metadata) : numberTensor(staging, column),
    );
  // Tensors with wider numbers come first, so that all are aligned.
  tensors.push(...perToken(staging, layout === 'padded', dtype));

  const target = await open(file, 'w');
  try {
    await target.appendFile(header(tensors, metadata));
    for (const tensor of tensors) await writeTensor(target, tensor, staging);
  } finally {
    await target.close();
  }
};

/** Returns the header of a file in which these tensors follow one another. */
export function header(tensors: readonly TensorEntry[], metadata: Record<string, string>): Buffer {
  const entries: Record<string, unknown> = { __metadata__: metadata };
  let offset = 0;
  for (const tensor of tensors) {
    const { name, dtype, shape } = tensor;
    const end = offset + bytesOfTensor(tensor);
    entries[name] = { dtype, shape, data_offsets: [offset, end] };
    offset = end;
  }
  const json = JSON.stringify(entries);
  // The header is padded with spaces, so that the tensors begin at a multiple of 8 bytes. Readers can then use the
  // tensors without copying them.
  const padded = Buffer.from(json + ' '.repeat((8 - (Buffer.byteLength(json) % 8)) % 8));
  if (padded.length > MAX_HEADER)
    throw new LossError('ERR_INVALID_INPUT', {
      at: 'ids',
      expected: `values that fit into a header of ${MAX_HEADER} bytes`,
      received: `${padded.length} bytes, because too many different ids are not numbers`,
      hint: 'Parquet and JSON lines have no such limit',
    });
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(padded.length));
  return Buffer.concat([length, padded]);
}

function perToken(
  { rows, tokens, longest, hasEntropy }: Staging,
  padded: boolean,
  dtype: GradientDtype,
): Tensor[] {
  const shape = padded ? [rows, longest] : [tokens];
  const data = (values: Float32Array) => {
    const row = dtype === 'float32' ? values : rounded(values, dtype);
    if (!padded || row.length === longest) return row;
    const filled = dtype === 'float32' ? new Float32Array(longest) : new Uint16Array(longest);
    filled.set(row);
    return filled;
  };
  const grad: Tensor = { name: 'grad', dtype: DTYPES[dtype], shape, data: (row) => data(row.grad) };
  if (!hasEntropy) return [grad];
  return [grad, { ...grad, name: 'grad_entropy', data: (row) => data(row.gradEntropy!) }];
}

function cuSeqlens({ rows }: Staging): Tensor {
  let end = 0n;
  return {
    name: 'cu_seqlens',
    dtype: 'I64',
    shape: [rows + 1],
    prefix: new BigInt64Array(1),
    data: ({ grad }) => {
      end += BigInt(grad.length);
      return BigInt64Array.of(end);
    },
  };
}

function lengths({ rows }: Staging): Tensor {
  return {
    name: 'lengths',
    dtype: 'I64',
    shape: [rows],
    data: ({ grad }) => BigInt64Array.of(BigInt(grad.length)),
  };
}

function numberTensor({ rows }: Staging, { name, kind }: IdColumn): Tensor {
  return {
    name,
    dtype: kind === 'integer' ? 'I64' : 'F64',
    shape: [rows],
    data: ({ ids }) => {
      const value = Number(ids[name]);
      return kind === 'integer' ? BigInt64Array.of(BigInt(value)) : Float64Array.of(value);
    },
  };
}

/**
 * Makes the tensor of an id column that is not numeric. The different ids become a list in the metadata, and the tensor
 * holds each row's index into this list.
 */
async function indexTensor(
  staging: Staging,
  { name }: IdColumn,
  metadata: Record<string, string>,
): Promise<Tensor> {
  const indices = new Map<string, bigint>();
  for await (const { ids } of staging.read()) {
    const json = JSON.stringify(ids[name]);
    if (json !== undefined && !indices.has(json)) indices.set(json, BigInt(indices.size));
  }
  metadata[name] = `[${[...indices.keys()].join(',')}]`;
  return {
    name,
    dtype: 'I64',
    shape: [staging.rows],
    data: ({ ids }) => BigInt64Array.of(indices.get(JSON.stringify(ids[name])) ?? -1n),
  };
}

async function writeTensor(file: FileHandle, { prefix, data }: Tensor, staging: Staging): Promise<void> {
  let buffers = prefix ? [bytesOf(prefix)] : [];
  let length = 0;
  for await (const row of staging.read()) {
    const bytes = bytesOf(data(row));
    buffers.push(bytes);
    length += bytes.length;
    if (length < WRITE_BYTES) continue;
    await file.appendFile(Buffer.concat(buffers));
    buffers = [];
    length = 0;
  }
  await file.appendFile(Buffer.concat(buffers));
}

const WRITE_BYTES = 1 << 20;
