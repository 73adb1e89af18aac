// Gradients as tensors in a .safetensors file: a header in JSON that says what lies where, then one tensor after another.
import { type FileHandle, open } from 'node:fs/promises';
import { LossError } from '../../core/errors.js';
import type { WriteStaged } from './gradients.js';
import { bytesOf, type IdColumn, type StagedRow, type Staging } from './staging.js';

/** A tensor to write: what the header says of it, and each row's piece of it. */
interface Tensor {
  name: string;
  dtype: 'F32' | 'F64' | 'I64';
  shape: number[];
  piece(row: StagedRow): ArrayBufferView;
  /** What stands before the first row's. */
  before?: ArrayBufferView;
}

/** Writes tensors. */
export const writeSafetensors: WriteStaged = async (staging, file, { layout }) => {
  const metadata: Record<string, string> = {};
  const tensors = [
    ...perToken(staging, layout === 'padded'),
    layout === 'padded' ? lengths(staging) : cuSeqlens(staging),
  ];
  for (const column of staging.idColumns())
    tensors.push(column.kind === 'text' ? await named(staging, column, metadata) : numbers(staging, column));

  const target = await open(file, 'w');
  try {
    await target.appendFile(header(tensors, metadata));
    for (const tensor of tensors) await writeTensor(target, tensor, staging);
  } finally {
    await target.close();
  }
};

function header(tensors: readonly Tensor[], metadata: Record<string, string>): Buffer {
  const entries: Record<string, unknown> = { __metadata__: metadata };
  let offset = 0;
  for (const { name, dtype, shape } of tensors) {
    const end = offset + shape.reduce((product, n) => product * n, dtype === 'F32' ? 4 : 8);
    entries[name] = { dtype, shape, data_offsets: [offset, end] };
    offset = end;
  }
  const json = JSON.stringify(entries);
  // Tensors begin at a multiple of 8, so that readers can use them where they lie.
  const padded = Buffer.from(json + ' '.repeat((8 - (Buffer.byteLength(json) % 8)) % 8));
  if (padded.length > MOST_HEADER)
    throw new LossError(
      'ERR_INVALID_INPUT',
      `expected ids that fit in a header of ${MOST_HEADER} bytes, and they are too many different ones that are not ` +
        'numbers; Parquet and JSON lines have room for them',
    );
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(padded.length));
  return Buffer.concat([length, padded]);
}

// What the format's own library accepts.
const MOST_HEADER = 100_000_000;

function perToken({ rows, tokens, longest, hasEntropy }: Staging, padded: boolean): Tensor[] {
  const shape = padded ? [rows, longest] : [tokens];
  const piece = (values: Float32Array) => {
    if (!padded || values.length === longest) return values;
    const filled = new Float32Array(longest);
    filled.set(values);
    return filled;
  };
  const grad: Tensor = { name: 'grad', dtype: 'F32', shape, piece: (row) => piece(row.grad) };
  if (!hasEntropy) return [grad];
  return [grad, { ...grad, name: 'grad_entropy', piece: (row) => piece(row.gradEntropy!) }];
}

function cuSeqlens({ rows }: Staging): Tensor {
  let end = 0n;
  return {
    name: 'cu_seqlens',
    dtype: 'I64',
    shape: [rows + 1],
    before: new BigInt64Array(1),
    piece: ({ grad }) => {
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
    piece: ({ grad }) => BigInt64Array.of(BigInt(grad.length)),
  };
}

function numbers({ rows }: Staging, { name, kind }: IdColumn): Tensor {
  return {
    name,
    dtype: kind === 'integer' ? 'I64' : 'F64',
    shape: [rows],
    piece: ({ ids }) => {
      const value = ids[name] as number;
      return kind === 'integer' ? BigInt64Array.of(BigInt(value)) : Float64Array.of(value);
    },
  };
}

async function named(
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
    piece: ({ ids }) => BigInt64Array.of(indices.get(JSON.stringify(ids[name])) ?? -1n),
  };
}

async function writeTensor(file: FileHandle, { before, piece }: Tensor, staging: Staging): Promise<void> {
  let pieces = before ? [bytesOf(before)] : [];
  let length = 0;
  for await (const row of staging.read()) {
    const bytes = bytesOf(piece(row));
    pieces.push(bytes);
    length += bytes.length;
    if (length < BYTES_AT_ONCE) continue;
    await file.appendFile(Buffer.concat(pieces));
    pieces = [];
    length = 0;
  }
  await file.appendFile(Buffer.concat(pieces));
}

const BYTES_AT_ONCE = 1 << 20;
