// The logits of a batch: one array, or blocks of rows that come one after another.

import { describeValue, LossError, type LossErrorCode } from '../base/errors.js';
import { type Steps, take, takeForCaller } from '../base/steps.js';
import { isDeviceColumn } from '../device/device-column.js';
import { floatsOf, type Logits, type NativeMatrix, readMatrix, readStride } from './inputs.js';

/** Logits in blocks of whole rows, one after another. */
export type LogitsBlocks = Iterable<Logits> | (() => Iterable<Logits>);

/**
 * Logits in blocks of whole rows, which can come one at a time. A loss whose gradient needs two passes over the logits
 * takes a function, which it calls twice.
 */
export type AsyncLogitsBlocks = LogitsBlocks | AsyncIterable<Logits> | (() => AsyncIterable<Logits>);

/** Some consecutive rows of logits. */
export interface Block {
  given: Logits;
  matrix: NativeMatrix;
  /** The index of the first row. */
  first: number;
  rows: number;
}

/** The logits of a batch. */
export interface LogitsSource {
  vocabulary: number;
  /** The index of the device that computes; undefined for the CPU. */
  device: number | undefined;
  /** The only block, if the logits are one array. */
  whole: Block | undefined;
  /** Whether each() can be called more than once. */
  canRepeat: boolean;
  /**
   * Does `use` for each block in turn.
   * @param targets tells which rows are ignored. A source may leave out blocks of ignored rows.
   */
  each(targets: Int32Array, use: (block: Block) => Steps<void>): Steps<void>;
}

/**
 * Reads the logits of a batch. Blocks are checked when they come.
 * @param rows the number of rows of all blocks.
 * @throws LossError `ERR_MISSING_INPUT`, `ERR_INVALID_INPUT`, `ERR_SHAPE_MISMATCH`
 */
export function readSource(
  logits: unknown,
  rows: number,
  vocabulary: number | undefined,
  rowStride: number | undefined,
  device: number | undefined,
): LogitsSource {
  const isFunction = typeof logits === 'function';
  if (!isFunction && !isIterable(logits)) return wholeSource(logits, rows, vocabulary, rowStride, device);
  const width = checkVocabulary(vocabulary, ', because the logits come in blocks');
  const stride = readStride(rowStride, width);
  const open = (): unknown => (isFunction ? logits() : logits);
  return {
    vocabulary: width,
    device,
    whole: undefined,
    canRepeat: isFunction || Array.isArray(logits),
    each: (_, use) => eachBlock(open, { rows, vocabulary: width, stride, device }, use),
  };
}

function wholeSource(
  logits: unknown,
  rows: number,
  given: number | undefined,
  rowStride: number | undefined,
  device: number | undefined,
): LogitsSource {
  const onDevice = isDeviceColumn(logits);
  const vocabulary =
    given === undefined && !onDevice
      ? vocabularyOf(logits, rows, rowStride)
      : checkVocabulary(given, ', because the logits are in memory of a device');
  const matrix = readMatrix(logits, rows, vocabulary, rowStride, device);
  const block: Block = { given: logits as Logits, matrix, first: 0, rows };
  return { vocabulary, device, whole: block, canRepeat: true, each: (_, use) => use(block) };
}

function vocabularyOf(logits: unknown, rows: number, rowStride: number | undefined): number {
  const { length } = floatsOf('logits', logits).data;
  if (rowStride != null)
    throw wrongVocabulary('ERR_MISSING_INPUT', undefined, ', because there is a rowStride');
  if (rows === 0) return 0;
  if (length % rows === 0) return length / rows;
  throw new LossError('ERR_SHAPE_MISMATCH', {
    key: 'logits',
    expected: `a multiple of ${rows} values, one row for each token`,
    received: String(length),
  });
}

// `why` says why the vocabulary cannot be missing.
function checkVocabulary(vocabulary: unknown, why: string): number {
  if (vocabulary === undefined) throw wrongVocabulary('ERR_MISSING_INPUT', vocabulary, why);
  if (Number.isInteger(vocabulary) && (vocabulary as number) > 0 && (vocabulary as number) < 2 ** 31)
    return vocabulary as number;
  throw wrongVocabulary('ERR_INVALID_INPUT', vocabulary, '');
}

function wrongVocabulary(code: LossErrorCode, vocabulary: unknown, why: string): LossError {
  return new LossError(code, {
    key: 'vocabulary',
    expected: `the number of logits per row${why}`,
    received: typeof vocabulary === 'number' ? String(vocabulary) : describeValue(vocabulary),
  });
}

// Whether a value yields blocks. An array of logits is also iterable, but yields numbers.
function isIterable(value: unknown): value is Iterable<unknown> | AsyncIterable<unknown> {
  if (value === null || typeof value !== 'object' || ArrayBuffer.isView(value)) return false;
  return (Symbol.iterator in value || Symbol.asyncIterator in value) && !('dtype' in value);
}

// What all blocks have in common. `rows` is the number of their rows.
interface Shape {
  rows: number;
  vocabulary: number;
  stride: number;
  device: number | undefined;
}

function* eachBlock(open: () => unknown, shape: Shape, use: (block: Block) => Steps<void>): Steps<void> {
  const { rows } = shape;
  const iterator = iteratorOf(open());
  let first = 0;
  // Whether the iterator must be closed after an error: not if it failed itself.
  let isOpen = false;
  try {
    for (;;) {
      const next = yield* takeForCaller('the next block of logits could not be read', ({ later }) =>
        later ? iterator.next() : nextNow(iterator),
      );
      if (isDone(next)) break;
      isOpen = true;
      const block = blockOf(next.value, first, shape);
      yield* use(block);
      first += block.rows;
      isOpen = false;
    }
  } catch (error) {
    if (isOpen) yield* close(iterator);
    throw error;
  }
  if (first !== rows) throw wrongRows(rows, first);
}

function isDone(next: unknown): next is IteratorReturnResult<unknown> {
  if (typeof next === 'object' && next !== null) return (next as IteratorResult<unknown>).done === true;
  throw new LossError('ERR_INVALID_INPUT', {
    key: 'logits',
    expected: 'an iterator whose next() returns an object',
    received: describeValue(next),
  });
}

// Closes an iterator after an error. An error of its own does not replace that one.
function* close(iterator: AnyIterator): Steps<void> {
  try {
    yield* take<unknown>(({ later }) => {
      const closed = iterator.return?.();
      return later ? Promise.resolve(closed) : ignored(closed);
    });
  } catch {}
}

/** Returns whether a value is a promise. If it is, nobody will wait for it, so its rejection is ignored. */
export function ignored(value: unknown): boolean {
  const isPromise = typeof (value as PromiseLike<unknown> | null | undefined)?.then === 'function';
  if (isPromise) Promise.resolve(value).catch(() => {});
  return isPromise;
}

type AnyIterator = Iterator<unknown> | AsyncIterator<unknown>;

function iteratorOf(source: unknown): AnyIterator {
  if (isIterable(source))
    return Symbol.asyncIterator in source ? source[Symbol.asyncIterator]() : source[Symbol.iterator]();
  throw new LossError('ERR_INVALID_INPUT', {
    key: 'logits',
    expected: 'logits, or an iterable of blocks of them',
    received: describeValue(source),
  });
}

function nextNow(iterator: AnyIterator): IteratorResult<unknown> {
  const next = iterator.next();
  if (!ignored(next)) return next as IteratorResult<unknown>;
  throw new LossError('ERR_INVALID_INPUT', {
    key: 'logits',
    expected: 'blocks that are there at once, because the call is synchronous',
    received: 'an async iterable',
  });
}

function blockOf(value: unknown, first: number, { rows, vocabulary, stride, device }: Shape): Block {
  const { length } = floatsOf('logits', value).data;
  const count = length < vocabulary ? 0 : Math.floor((length - vocabulary) / stride) + 1;
  if (first + count > rows) throw wrongRows(rows, first + count);
  const matrix = readMatrix(value, count, vocabulary, stride, device);
  return { given: value as Logits, matrix, first, rows: count };
}

function wrongRows(rows: number, received: number): LossError {
  return new LossError('ERR_SHAPE_MISMATCH', {
    key: 'logits',
    expected: `blocks with ${rows} rows in all, one for each token`,
    received: received > rows ? `at least ${received}` : String(received),
  });
}
