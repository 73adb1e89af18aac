// Turns files of tensors into rows. The rows are either padded or packed. Padded rows have the shape [B, T] (B rows of
// T tokens), and an action_mask that is 0 on padding. Packed rows follow one another without padding, and cu_seqlens
// holds the offsets at which they begin. All tensors are read at the same time, a few rows after another.
import { stat } from 'node:fs/promises';
import type { LossError, LossErrorCode } from '../../../base/errors.js';
import { adviceOnNear, type ColumnNames } from '../column-names.js';
import { COLUMNS, type RolloutColumn } from '../columns.js';
import { maxRowBytes, tooManyTokens } from '../limits.js';
import {
  cannotRead,
  type DetailsAtPlace,
  describeColumns,
  errorAt,
  type FileRow,
  type ReadRows,
  type RowLimits,
} from '../source.js';
import type { Elements } from './dtype.js';
import { type ByteReader, describeShape, sizeOfShape, type Tensor, type TensorFile } from './tensor.js';

/**
 * Returns a reader of rows for one format of tensor files.
 * @param open opens a file of this format, whose bytes are at a path.
 */
export function readTensors(open: (file: string, path: string) => Promise<TensorFile>): ReadRows {
  return async function* (file, names, onBytes, limits) {
    const path = limits.copy ?? file;
    let tensors: TensorFile | undefined;
    try {
      const { size } = await stat(path);
      tensors = await open(file, path);
      yield* rowsOf(file, tensors, names, limits, (share) => onBytes(share * size));
    } catch (error) {
      throw cannotRead(file, error);
    } finally {
      await tensors?.close();
    }
  };
}

/** Makes an error about the file that is being read. */
type MakeError = (code: LossErrorCode, details: DetailsAtPlace) => LossError;

async function* rowsOf(
  file: string,
  tensors: TensorFile,
  names: ColumnNames,
  limits: RowLimits,
  onShare: (share: number) => void,
): AsyncGenerator<Iterable<FileRow>> {
  const makeError: MakeError = (code, details) => errorAt({ file }, code, details);
  const layout = await readLayout(tensors, names, limits, makeError);
  const sources = await sourcesOf(tensors, names, layout, makeError);
  for (const source of sources) checkSize(source, 1, limits, makeError);
  const readers: ByteReader[] = [];
  try {
    for (const { tensor } of sources) readers.push(await tensor.open());
    const constants = await Promise.all(
      sources.map(({ tensor, per }, i) =>
        per === 'file' ? readElements(tensor, readers[i]!, 1) : undefined,
      ),
    );
    let first = 0;
    for await (const lengths of layout.lengths(blockOf(sources))) {
      const longest = lengths.reduce((most, length) => Math.max(most, length), 0);
      for (const source of sources) checkSize(source, longest, limits, makeError);
      const tokens = lengths.reduce((sum, length) => sum + length, 0);
      const elements = await Promise.all(
        sources.map(
          ({ tensor, per }, i) =>
            constants[i] ??
            readElements(tensor, readers[i]!, per === 'token' ? tokens : lengths.length * (per as number)),
        ),
      );
      yield rowsIn(file, first, lengths, sources, elements);
      first += lengths.length;
      onShare(lengths.length / layout.rows);
    }
  } finally {
    for (const reader of readers) await reader.close();
  }
}

/** The limits on a block of rows that is read at once. A longer row is a block of its own. */
interface Block {
  rows: number;
  tokens: number;
}

/** Returns how many rows and tokens to read at once. An element of text can take much memory. */
function blockOf(sources: readonly ColumnSource[]): Block {
  let [tokenBytes, rowBytes] = [1, 1];
  for (const { tensor, per } of sources)
    if (per === 'token') tokenBytes += tensor.dtype.bytes;
    else if (per !== 'file') rowBytes += per * tensor.dtype.bytes;
  const fitting = (bytes: number) => Math.max(1, Math.floor(BYTES_AT_ONCE / bytes));
  return { rows: fitting(rowBytes), tokens: fitting(tokenBytes) };
}

/** Checks what a tensor has for one row of the given number of tokens. */
function checkSize(
  { tensor, per }: ColumnSource,
  tokens: number,
  limits: RowLimits,
  makeError: MakeError,
): void {
  const elements = per === 'token' ? tokens : per === 'file' ? 1 : per;
  const bytes = elements * tensor.dtype.bytes;
  if (bytes > maxRowBytes(limits))
    throw makeError('ERR_INVALID_INPUT', {
      key: tensor.name,
      expected: `at most ${maxRowBytes(limits)} bytes per row`,
      received: String(bytes),
    });
}

async function readElements({ dtype }: Tensor, reader: ByteReader, count: number): Promise<Elements> {
  return dtype.decode(await reader.read(count * dtype.bytes));
}

function* rowsIn(
  file: string,
  first: number,
  lengths: readonly number[],
  sources: readonly ColumnSource[],
  elements: readonly Elements[],
): Generator<FileRow> {
  let start = 0;
  for (const [index, length] of lengths.entries()) {
    const begin = start;
    start += length;
    yield {
      place: { file, row: first + index + 1 },
      read: () =>
        Object.fromEntries(
          sources.map(({ name, per }, i) => {
            const all = elements[i]!;
            if (per === 'file') return [name, all[0]];
            if (per === 'token') return [name, all.slice(begin, begin + length)];
            return [name, per === 1 ? all[index] : all.slice(index * per, (index + 1) * per)];
          }),
        ),
    };
  }
}

/** How the rows are arranged in the file's tensors. */
interface Layout {
  rows: number;
  /** The shape of a tensor with one element per token: [B, T] for padded rows, [N] for packed ones. */
  shape: readonly number[];
  /** This shape and the name of a tensor that has it, as text for messages: '[2, 3], as logprobs'. */
  described: string;
  /** Yields the lengths of all rows, in tokens. Each list holds the lengths of the next rows that form a block. */
  lengths(block: Block): AsyncGenerator<readonly number[]>;
}

async function readLayout(
  tensors: TensorFile,
  names: ColumnNames,
  limits: RowLimits,
  makeError: MakeError,
): Promise<Layout> {
  // Without logprobs, any other column with one value per token shows the layout.
  const shown = names.columns.filter((column) => COLUMNS[column].per === 'token');
  const candidates = (names.needLogprobs ? ['logprobs' as const] : shown).flatMap((column) =>
    names.inTensors(column),
  );
  const tensor = await find(tensors, candidates);
  if (!tensor)
    throw makeError('ERR_MISSING_INPUT', {
      key: names.inTensors('logprobs').join(' or '),
      expected: 'a tensor [B, T], or [N] with cu_seqlens',
      received: describeColumns('a file', tensors.names),
      hint: adviceOnNear('logprobs', names.of('logprobs')[0], tensors.names),
    });
  const { name, shape } = tensor;
  const offsets = await find(tensors, OFFSETS);
  if (offsets) return packedLayout(tensor, offsets, limits, makeError);
  const received = describeShape(shape);
  if (shape.length !== 2)
    throw makeError('ERR_SHAPE_MISMATCH', {
      key: name,
      expected: '[B, T], or [N] with cu_seqlens',
      received: shape.length === 1 ? `${received} without cu_seqlens` : received,
    });
  const [rows, width] = shape as [number, number];
  // Rows without tokens take no bytes, so the file's size would not limit the number of such rows.
  if (width === 0 && rows > 0)
    throw makeError('ERR_SHAPE_MISMATCH', { key: name, expected: '[B, T] with T of at least 1', received });
  checkRowLength(width, name, limits, makeError);
  return {
    rows,
    shape,
    described: `${received}, as ${name}`,
    async *lengths(block) {
      const rowsAtOnce = Math.max(1, Math.min(block.rows, Math.floor(block.tokens / Math.max(width, 1))));
      for (let first = 0; first < rows; first += rowsAtOnce)
        yield new Array<number>(Math.min(rowsAtOnce, rows - first)).fill(width);
    },
  };
}

const OFFSETS = ['cu_seqlens', 'cuSeqlens'];
const BYTES_AT_ONCE = 1 << 21;
const OFFSETS_AT_ONCE = 1 << 12;

function packedLayout(
  { name, shape }: Tensor,
  offsets: Tensor,
  limits: RowLimits,
  makeError: MakeError,
): Layout {
  const [tokens] = shape;
  if (shape.length !== 1)
    throw makeError('ERR_SHAPE_MISMATCH', {
      key: name,
      expected: `[N], because the file has ${offsets.name}`,
      received: describeShape(shape),
    });
  const [count] = offsets.shape;
  const key = offsets.name;
  if (offsets.shape.length !== 1 || count! < 1)
    throw makeError('ERR_SHAPE_MISMATCH', {
      key,
      expected: '[B + 1] offsets',
      received: describeShape(offsets.shape),
    });
  const rows = count! - 1;
  return {
    rows,
    shape,
    described: `${describeShape(shape)}, as ${name}`,
    async *lengths(block) {
      const reader = await offsets.open();
      try {
        const [zero] = await readElements(offsets, reader, 1);
        if (zero !== 0)
          throw makeError('ERR_INVALID_INPUT', { key, index: 0, expected: '0', received: String(zero) });
        let last = 0;
        for (let row = 0; row < rows; ) {
          const ends = await readElements(offsets, reader, Math.min(OFFSETS_AT_ONCE, rows - row));
          let lengths: number[] = [];
          let sum = 0;
          for (const end of ends) {
            row++;
            if (typeof end !== 'number' || !(end >= last && end <= tokens!))
              throw makeError('ERR_INVALID_INPUT', {
                key,
                index: row,
                expected: `an offset from ${last} to ${tokens}`,
                received: String(end),
              });
            checkRowLength(end - last, key, limits, makeError);
            if (lengths.length === block.rows || (lengths.length > 0 && sum + end - last > block.tokens)) {
              yield lengths;
              lengths = [];
              sum = 0;
            }
            lengths.push(end - last);
            sum += end - last;
            last = end;
          }
          yield lengths;
        }
        if (last !== tokens)
          throw makeError('ERR_SHAPE_MISMATCH', {
            key,
            expected: `${tokens} as the last offset`,
            received: String(last),
          });
      } finally {
        await reader.close();
      }
    },
  };
}

function checkRowLength(tokens: number, key: string, limits: RowLimits, makeError: MakeError): void {
  if (tokens > limits.maxRowTokens)
    throw makeError('ERR_INVALID_INPUT', { key, ...tooManyTokens(limits, tokens) });
}

/** A tensor from which a column of the rows is read. */
interface ColumnSource {
  /** The column's name in the rows that the reader yields. */
  name: string;
  tensor: Tensor;
  /**
   * What the elements belong to. 'token': one element per token. 'file': one element for all rows of the file. A
   * number: this many elements per row.
   */
  per: 'token' | 'file' | number;
}

async function sourcesOf(
  tensors: TensorFile,
  names: ColumnNames,
  layout: Layout,
  makeError: MakeError,
): Promise<ColumnSource[]> {
  const sources: ColumnSource[] = [];
  for (const column of names.columns) {
    const candidates = names.inTensors(column);
    const tensor = (await find(tensors, candidates)) ?? (await attentionMask(tensors, column, layout));
    if (!tensor) continue;
    const per = elementsPer(tensor, column, layout);
    if (per === undefined)
      throw makeError('ERR_SHAPE_MISMATCH', {
        key: tensor.name,
        expected: expectedShape(column, layout),
        received: describeShape(tensor.shape),
      });
    sources.push({ name: candidates[0]!, tensor, per });
  }
  for (const name of names.keep) {
    if (sources.some((source) => source.name === name)) continue;
    const candidates = name in COLUMNS ? names.inTensors(name as RolloutColumn) : [];
    const tensor = await find(tensors, [name, ...candidates]);
    const per =
      tensor && (elementsPerRow(tensor, layout) ?? (isPerToken(tensor, layout) ? 'token' : undefined));
    if (per !== undefined) sources.push({ name, tensor: tensor!, per });
  }
  return sources;
}

async function find(tensors: TensorFile, names: readonly string[]): Promise<Tensor | undefined> {
  const name = names.find((name) => tensors.names.includes(name));
  return name === undefined ? undefined : tensors.tensor(name);
}

/**
 * If the column is action_mask, returns the tensor attention_mask, which is read if the file has no action_mask. All
 * tokens except padding then count as unmasked.
 */
async function attentionMask(tensors: TensorFile, column: RolloutColumn, layout: Layout) {
  if (column !== 'action_mask') return undefined;
  const tensor = await find(tensors, ['attention_mask']);
  return tensor && isPerToken(tensor, layout) ? tensor : undefined;
}

/**
 * Returns how a tensor's elements are divided among rows and tokens, or undefined if the tensor's shape does not suit
 * the column.
 */
function elementsPer(tensor: Tensor, column: RolloutColumn, layout: Layout): ColumnSource['per'] | undefined {
  const { per } = COLUMNS[column];
  if (per !== 'row' && isPerToken(tensor, layout)) return 'token';
  const count = per === 'token' ? undefined : elementsPerRow(tensor, layout);
  return count === 1 || count === 'file' ? count : undefined;
}

function isPerToken({ shape }: Tensor, layout: Layout): boolean {
  return shape.length === layout.shape.length && shape.every((n, i) => n === layout.shape[i]);
}

function elementsPerRow({ shape }: Tensor, { rows }: Layout): ColumnSource['per'] | undefined {
  if (shape.length === 0) return 'file';
  return shape[0] === rows ? sizeOfShape(shape.slice(1)) : undefined;
}

function expectedShape(column: RolloutColumn, { rows, described }: Layout): string {
  const { per } = COLUMNS[column];
  if (per === 'token') return described;
  return per === 'row' ? `[${rows}], one per row` : `${described}, or [${rows}], one per row`;
}
