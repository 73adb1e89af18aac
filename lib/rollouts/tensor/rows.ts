// Files of tensors, row by row: [B, T] rows padded to one length, with action_mask 0 where they have ended, or packed
// rows with cu_seqlens. Each tensor is read from its beginning to its end, some rows at a time.
import { stat } from 'node:fs/promises';
import type { LossError, LossErrorCode } from '../../core/errors.js';
import type { ColumnNames } from '../column-names.js';
import { COLUMNS, type RolloutColumn } from '../columns.js';
import { at, cannotRead, type FileRow, listed, type ReadRows } from '../source.js';
import type { Elements } from './dtype.js';
import { type ByteReader, sizeOfShape, type Tensor, type TensorFile } from './tensor.js';

/** A reader of files of tensors that something opens. */
export function readTensors(open: (file: string) => Promise<TensorFile>): ReadRows {
  return async function* (file, names, onBytes) {
    let tensors: TensorFile | undefined;
    try {
      const { size } = await stat(file);
      tensors = await open(file);
      yield* rowsOf(file, tensors, names, (share) => onBytes(share * size));
    } catch (error) {
      throw cannotRead(file, error);
    } finally {
      await tensors?.close();
    }
  };
}

type Complain = (code: LossErrorCode, message: string) => LossError;

async function* rowsOf(
  file: string,
  tensors: TensorFile,
  names: ColumnNames,
  onShare: (share: number) => void,
): AsyncGenerator<Iterable<FileRow>> {
  const complain: Complain = (code, message) => at({ file }, code, message);
  const layout = await readLayout(tensors, names, complain);
  const roles = await rolesOf(tensors, names, layout, complain);
  const opened: ByteReader[] = [];
  try {
    for (const { tensor } of roles) opened.push(await tensor.open());
    const constants = await Promise.all(
      roles.map(({ tensor, share }, i) => (share === 'all' ? read(tensor, opened[i]!, 1) : undefined)),
    );
    let first = 0;
    for await (const lengths of layout.lengths()) {
      const tokens = lengths.reduce((sum, length) => sum + length, 0);
      const elements = await Promise.all(
        roles.map(
          ({ tensor, share }, i) =>
            constants[i] ??
            read(tensor, opened[i]!, share === 'token' ? tokens : lengths.length * (share as number)),
        ),
      );
      yield rowsIn(file, first, lengths, roles, elements);
      first += lengths.length;
      onShare(lengths.length / layout.rows);
    }
  } finally {
    for (const reader of opened) await reader.close();
  }
}

async function read({ dtype }: Tensor, reader: ByteReader, count: number): Promise<Elements> {
  return dtype.decode(await reader.read(count * dtype.bytes));
}

function* rowsIn(
  file: string,
  first: number,
  lengths: readonly number[],
  roles: readonly Role[],
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
          roles.map(({ key, share }, i) => {
            const all = elements[i]!;
            if (share === 'all') return [key, all[0]];
            if (share === 'token') return [key, all.slice(begin, begin + length)];
            return [key, share === 1 ? all[index] : all.slice(index * share, (index + 1) * share)];
          }),
        ),
    };
  }
}

/** How rows lie in the tensors. */
interface Layout {
  rows: number;
  /** Of the tensors that have an element per token. */
  shape: readonly number[];
  /** For messages. */
  described: string;
  /** The lengths of all rows, some at a time. */
  lengths(): AsyncGenerator<readonly number[]>;
}

async function readLayout(tensors: TensorFile, names: ColumnNames, complain: Complain): Promise<Layout> {
  const tensor = await find(tensors, names.inTensors('logprobs'));
  if (!tensor)
    throw complain(
      'ERR_MISSING_INPUT',
      `${names.inTensors('logprobs').join(' or ')}: expected a tensor [B, T], or [N] with cu_seqlens, and the file has ` +
        `only ${listed(tensors.names)}`,
    );
  const { shape } = tensor;
  const offsets = await find(tensors, OFFSETS);
  if (offsets) return packedLayout(tensor, offsets, complain);
  if (shape.length !== 2)
    throw complain(
      'ERR_SHAPE_MISMATCH',
      `${tensor.name}: expected [B, T], or [N] with cu_seqlens, not [${shape}]${shape.length === 1 ? ' without' : ''}`,
    );
  const [rows, width] = shape as [number, number];
  // No bytes bound how many rows there are without tokens.
  if (width === 0 && rows > 0)
    throw complain(
      'ERR_SHAPE_MISMATCH',
      `${tensor.name}: expected [B, T] with tokens in its rows, not [${shape}]`,
    );
  checkLength(width, tensor.name, complain);
  return {
    rows,
    shape,
    described: `[${rows}, ${width}], as ${tensor.name} has`,
    async *lengths() {
      const rowsAtOnce = Math.max(1, Math.floor(TOKENS_AT_ONCE / Math.max(width, 1)));
      for (let first = 0; first < rows; first += rowsAtOnce)
        yield new Array<number>(Math.min(rowsAtOnce, rows - first)).fill(width);
    },
  };
}

const OFFSETS = ['cu_seqlens', 'cuSeqlens'];
const TOKENS_AT_ONCE = 1 << 16;
const OFFSETS_AT_ONCE = 1 << 12;
// A file that says more has something else in it, or is meant to fill the memory.
const MOST_TOKENS_IN_A_ROW = 2 ** 26;

function packedLayout({ name, shape }: Tensor, offsets: Tensor, complain: Complain): Layout {
  const [tokens] = shape;
  if (shape.length !== 1)
    throw complain(
      'ERR_SHAPE_MISMATCH',
      `${name}: expected [N], as ${offsets.name} is there, not [${shape}]`,
    );
  const [count] = offsets.shape;
  if (offsets.shape.length !== 1 || count! < 1)
    throw complain('ERR_SHAPE_MISMATCH', `${offsets.name}: expected [B + 1] offsets, not [${offsets.shape}]`);
  const rows = count! - 1;
  return {
    rows,
    shape,
    described: `[${tokens}], as ${name} has`,
    async *lengths() {
      const reader = await offsets.open();
      try {
        const [zero] = await read(offsets, reader, 1);
        if (zero !== 0)
          throw complain('ERR_INVALID_INPUT', `${offsets.name}: expected 0 at first, not ${zero}`);
        let last = 0;
        for (let row = 0; row < rows; ) {
          const ends = await read(offsets, reader, Math.min(OFFSETS_AT_ONCE, rows - row));
          let lengths: number[] = [];
          let sum = 0;
          for (const end of ends) {
            row++;
            if (typeof end !== 'number' || !(end >= last && end <= tokens!))
              throw complain(
                'ERR_INVALID_INPUT',
                `${offsets.name}[${row}]: expected an offset from ${last} to ${tokens}, not ${end}`,
              );
            checkLength(end - last, offsets.name, complain);
            if (lengths.length > 0 && sum + end - last > TOKENS_AT_ONCE) {
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
          throw complain('ERR_SHAPE_MISMATCH', `${offsets.name}: expected ${tokens} at last, not ${last}`);
      } finally {
        await reader.close();
      }
    },
  };
}

function checkLength(tokens: number, name: string, complain: Complain): void {
  if (tokens > MOST_TOKENS_IN_A_ROW)
    throw complain(
      'ERR_INVALID_INPUT',
      `${name}: expected at most ${MOST_TOKENS_IN_A_ROW} tokens in a row, not ${tokens}`,
    );
}

/** A tensor's part in rows: its name there, and how its elements are shared out. */
interface Role {
  key: string;
  tensor: Tensor;
  /** One a token; all rows the same one; or so many a row. */
  share: 'token' | 'all' | number;
}

async function rolesOf(
  tensors: TensorFile,
  names: ColumnNames,
  layout: Layout,
  complain: Complain,
): Promise<Role[]> {
  const roles: Role[] = [];
  for (const column of names.columns) {
    const candidates = names.inTensors(column);
    const tensor = (await find(tensors, candidates)) ?? (await attention(tensors, column, layout));
    if (!tensor) continue;
    const share = shareOf(tensor, column, layout);
    if (share === undefined)
      throw complain(
        'ERR_SHAPE_MISMATCH',
        `${tensor.name}: expected ${expectedShape(column, layout)}, not [${tensor.shape}]`,
      );
    roles.push({ key: candidates[0]!, tensor, share });
  }
  for (const name of names.keep) {
    if (roles.some(({ key }) => key === name)) continue;
    const candidates = name in COLUMNS ? names.inTensors(name as RolloutColumn) : [];
    const tensor = await find(tensors, [name, ...candidates]);
    const share = tensor && (perRow(tensor, layout) ?? (perToken(tensor, layout) ? 'token' : undefined));
    if (share !== undefined) roles.push({ key: name, tensor: tensor!, share });
  }
  return roles;
}

async function find(tensors: TensorFile, names: readonly string[]): Promise<Tensor | undefined> {
  const name = names.find((name) => tensors.names.includes(name));
  return name === undefined ? undefined : tensors.tensor(name);
}

// Where nothing says which tokens count, those that are no padding do.
async function attention(tensors: TensorFile, column: RolloutColumn, layout: Layout) {
  if (column !== 'action_mask') return undefined;
  const tensor = await find(tensors, ['attention_mask']);
  return tensor && perToken(tensor, layout) ? tensor : undefined;
}

function shareOf(tensor: Tensor, column: RolloutColumn, layout: Layout): Role['share'] | undefined {
  const { per } = COLUMNS[column];
  if (per !== 'row' && perToken(tensor, layout)) return 'token';
  const share = per === 'token' ? undefined : perRow(tensor, layout);
  return share === 1 || share === 'all' ? share : undefined;
}

function perToken({ shape }: Tensor, layout: Layout): boolean {
  return shape.length === layout.shape.length && shape.every((n, i) => n === layout.shape[i]);
}

function perRow({ shape }: Tensor, { rows }: Layout): Role['share'] | undefined {
  if (shape.length === 0) return 'all';
  return shape[0] === rows ? sizeOfShape(shape.slice(1)) : undefined;
}

function expectedShape(column: RolloutColumn, { rows, described }: Layout): string {
  const { per } = COLUMNS[column];
  if (per === 'token') return described;
  return per === 'row' ? `[${rows}], one per row` : `${described}, or [${rows}], one per row`;
}
