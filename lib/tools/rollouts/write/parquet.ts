// Writes gradients as Parquet, one row group after another.
import type { SchemaElement } from 'hyparquet';
import type { GradientDtype, IdColumn, IdKind, StagedRow, WriteStaged } from './staging.js';

/** Writes Parquet. */
export const writeParquet: WriteStaged = async (staging, file, { dtype }) => {
  const { fileWriter, ParquetWriter } = await import('hyparquet-writer');
  const columns = [...staging.idColumns().map(idColumn), gradColumn('grad', dtype, ({ grad }) => grad)];
  if (staging.hasEntropy) columns.push(gradColumn('grad_entropy', dtype, ({ gradEntropy }) => gradEntropy!));
  const root = { name: 'gradients', num_children: columns.length };
  const schema = [root, ...columns.flatMap((column) => column.schema)];
  const writer = new ParquetWriter({ writer: fileWriter(file), schema, statistics: false });
  const writeGroup = (rows: readonly StagedRow[]) =>
    writer.write({
      columnData: columns.map(({ name, encoding, value }) => ({
        name,
        data: rows.map(value),
        ...(encoding && { encoding }),
      })),
      rowGroupSize: rows.length,
    });

  let rows: StagedRow[] = [];
  let tokens = 0;
  for await (const row of staging.read()) {
    rows.push(row);
    tokens += row.grad.length;
    if (rows.length < GROUP_ROWS && tokens < GROUP_TOKENS) continue;
    writeGroup(rows);
    rows = [];
    tokens = 0;
  }
  if (rows.length > 0) writeGroup(rows);
  writer.finish();
};

// The limits on a row group, which is in memory while it is written.
const GROUP_ROWS = 1 << 16;
const GROUP_TOKENS = 1 << 19;

interface Column {
  name: string;
  schema: SchemaElement[];
  encoding?: 'PLAIN';
  value: (row: StagedRow) => unknown;
}

const TYPES: Readonly<Record<IdKind, Omit<SchemaElement, 'name'>>> = {
  integer: { type: 'INT64', repetition_type: 'REQUIRED' },
  number: { type: 'DOUBLE', repetition_type: 'REQUIRED' },
  text: { type: 'BYTE_ARRAY', converted_type: 'UTF8', repetition_type: 'OPTIONAL' },
};

function idColumn({ name, kind }: IdColumn): Column {
  return { name, schema: [{ name, ...TYPES[kind] }], value: ({ ids }) => idValue(ids[name], kind) };
}

// The writer rounds numbers to float16: to nearest, with ties to even.
const FLOAT16 = { type: 'FIXED_LEN_BYTE_ARRAY', type_length: 2, logical_type: { type: 'FLOAT16' } } as const;

function gradColumn(name: string, dtype: GradientDtype, gradOf: (row: StagedRow) => Float32Array): Column {
  const number = dtype === 'float16' ? FLOAT16 : ({ type: 'FLOAT' } as const);
  const schema: SchemaElement[] = [
    { name, converted_type: 'LIST', repetition_type: 'REQUIRED', num_children: 1 },
    { name: 'list', repetition_type: 'REPEATED', num_children: 1 },
    { name: 'element', ...number, repetition_type: 'REQUIRED' },
  ];
  return { name, schema, encoding: 'PLAIN', value: (row) => Array.from(gradOf(row)) };
}

function idValue(value: unknown, kind: IdKind): bigint | number | string | null {
  if (kind === 'integer') return BigInt(value as number);
  if (kind === 'number') return Number(value);
  if (value === undefined) return null;
  return typeof value === 'string' ? value : JSON.stringify(value);
}
