// Computes log-probabilities from a tensor of logits that need not fit into memory, block by block.
import { LossError } from '../../base/errors.js';
import { ExactSum } from '../../base/exact-sum.js';
import { takeNow } from '../../base/steps.js';
import { type Logits, type LogprobsResult, logprobs } from '../../index.js';
import { badTarget, checkTargets, IGNORED } from '../../logits/inputs.js';
import { NamedTensor } from '../rollouts/tensor/named.js';
import { describeShape } from '../rollouts/tensor/tensor.js';
import type { EvaluationProgress } from './evaluation.js';

/** What to compute, and from which tensors. A tensor is named by its file, or as FILE:NAME. */
export interface LogitsFileOptions {
  /** Shape [N, V] or [B, T, V], of float32, float16 or bfloat16. */
  logits: string;
  /** The token ids, with the shape of the logits without V. −100 ignores a row. */
  targets: string;
  /** A number, or a tensor with the shape of the targets. The default is 1. */
  temperature?: number | string | undefined;
  softcap?: number | undefined;
  /** true requests the entropies. */
  entropy?: boolean | undefined;
  /** About how many bytes of logits are in memory at once in each of two blocks. A block has at least one row. */
  blockBytes?: number | undefined;
  progress?: EvaluationProgress | undefined;
}

/** The results of consecutive rows of logits. */
export interface LogprobsBlock extends LogprobsResult {
  /** 1 for each row whose target is not −100. */
  mask: Uint8Array;
}

/** The dimensions of the results. */
export interface LogprobsLayout {
  /** The shape of the logits without V: [N] or [B, T]. */
  shape: readonly number[];
  /** The number of logits per row. */
  vocabulary: number;
}

/** Sums over all rows that are not ignored. */
export interface LogprobsSums {
  /** The number of rows that are not ignored. */
  tokens: number;
  /** The mean log-probability and the mean entropy; NaN without such rows, or if a result is not finite. */
  logprob: number;
  entropy?: number;
}

// Large enough for full speed, and small compared to the memory of the program.
const BLOCK_BYTES = 2 ** 24;
// Targets are read once before the logits, in blocks of this many.
const TARGETS_AT_ONCE = 2 ** 16;
// A compressed file can claim rows of any length, and a row is in memory as a whole.
const MAX_VOCABULARY = 2 ** 26;

/** The dtypes of logits. */
export const LOGITS_DTYPES = {
  F32: {
    bytes: 4,
    of: (bytes) => new Float32Array(bytes.buffer as ArrayBuffer, bytes.byteOffset, bytes.length / 4),
  },
  F16: { bytes: 2, of: (bytes) => ({ data: sixteenBits(bytes), dtype: 'float16' }) },
  BF16: { bytes: 2, of: (bytes) => ({ data: sixteenBits(bytes), dtype: 'bfloat16' }) },
} as const satisfies Record<string, { bytes: number; of(bytes: Uint8Array): Logits }>;

function sixteenBits({ buffer, byteOffset, length }: Uint8Array) {
  return new Uint16Array(buffer as ArrayBuffer, byteOffset, length / 2);
}

export const INTEGERS = ['I16', 'I32', 'I64', 'U16', 'U32'];
export const FLOATS = ['F16', 'BF16', 'F32', 'F64'];

/**
 * Computes the log-probability of each target, as logprobs() does. A row's results have the same bits for any size of
 * the blocks. All targets are checked before the first logits are read.
 * @param begin is called with the results' shape once the tensors have been checked. It returns the function that gets
 * each block.
 * @throws LossError that names the file, the tensor and the row: `ERR_MISSING_INPUT` for a missing tensor,
 * `ERR_SHAPE_MISMATCH` for shapes that do not match, `ERR_INVALID_INPUT` for a wrong dtype, a target that is not in the
 * vocabulary or a file that cannot be read, `ERR_INVALID_OPTION` for a temperature or softcap that is not positive.
 */
export async function logprobsOfFile(
  options: LogitsFileOptions,
  begin: (layout: LogprobsLayout) => (block: LogprobsBlock) => Promise<void>,
): Promise<LogprobsSums> {
  const opened: NamedTensor[] = [];
  const open = async (text: string, usual: string) => {
    const tensor = await NamedTensor.open(text, usual);
    opened.push(tensor);
    return tensor;
  };
  try {
    const logits = await open(options.logits, 'logits');
    const layout = layoutOf(logits);
    const targets = await open(options.targets, 'targets');
    checkPerRow(targets, INTEGERS, 'integers', layout.shape, logits);
    const { temperature } = options;
    const temperatures = typeof temperature === 'string' ? await open(temperature, 'temperature') : undefined;
    if (temperatures) checkPerRow(temperatures, FLOATS, 'floats', layout.shape, logits);
    for await (const _ of targetBlocks(targets, layout, blocksOf(targets.size, TARGETS_AT_ONCE)));
    return await compute({ ...options, logits, targets, temperatures }, layout, begin(layout));
  } finally {
    for (const tensor of opened) await tensor.close();
  }
}

function layoutOf(logits: NamedTensor): LogprobsLayout {
  const { shape } = logits;
  if (shape.length !== 2 && shape.length !== 3) throw shapeError(logits, 'shape [N, V] or [B, T, V]');
  return { shape: shape.slice(0, -1), vocabulary: vocabularyOf(logits) };
}

/**
 * Returns the number of logits per row of a tensor.
 * @throws LossError for a tensor that is not one of logits.
 */
export function vocabularyOf(logits: NamedTensor): number {
  const { dtype, shape } = logits;
  if (!(dtype in LOGITS_DTYPES)) throw logits.error('dtype F32, F16 or BF16', dtype);
  const vocabulary = shape.at(-1) ?? 0;
  if (vocabulary > MAX_VOCABULARY) throw shapeError(logits, `at most ${MAX_VOCABULARY} logits per row`);
  if (logits.size === 0 && shape.slice(0, -1).every((n) => n > 0))
    throw shapeError(logits, 'at least one logit per row');
  return vocabulary;
}

/** Returns an error about the shape of a tensor. */
export function shapeError({ file, name, shape }: NamedTensor, expected: string): LossError {
  return new LossError('ERR_SHAPE_MISMATCH', {
    at: file,
    key: name,
    expected,
    received: describeShape(shape),
  });
}

function checkPerRow(
  tensor: NamedTensor,
  dtypes: readonly string[],
  what: string,
  shape: readonly number[],
  logits: NamedTensor,
): void {
  checkDtype(tensor, dtypes, what);
  if (tensor.shape.length !== shape.length || tensor.shape.some((n, i) => n !== shape[i]))
    throw shapeError(
      tensor,
      `${describeShape(shape)}, because ${logits.name} has shape ${describeShape(logits.shape)}`,
    );
}

/** @param what what the elements must be, for the error's message. */
export function checkDtype(tensor: NamedTensor, dtypes: readonly string[], what: string): void {
  if (!dtypes.includes(tensor.dtype))
    throw tensor.error(`${what} (dtype ${dtypes.join(', ')})`, tensor.dtype);
}

interface Inputs extends Omit<LogitsFileOptions, 'logits' | 'targets'> {
  logits: NamedTensor;
  targets: NamedTensor;
  temperatures: NamedTensor | undefined;
}

async function compute(
  inputs: Inputs,
  layout: LogprobsLayout,
  write: (block: LogprobsBlock) => Promise<void>,
): Promise<LogprobsSums> {
  const { logits, targets, temperatures, blockBytes = BLOCK_BYTES, progress } = inputs;
  const { softcap, entropy } = inputs;
  const { vocabulary } = layout;
  const { bytes, of } = LOGITS_DTYPES[logits.dtype as keyof typeof LOGITS_DTYPES];
  const rowsAtOnce = Math.max(1, Math.floor(blockBytes / (vocabulary * bytes)));
  // A file without rows is computed too, so that its options are checked.
  const blocks = [...blocksOf(targets.size, rowsAtOnce)];
  const ofTargets = targetBlocks(targets, layout, blocks);
  const ofTemperatures = temperatures?.numbers(blocks);
  const sums = { logprob: new Mean(), entropy: new Mean() };
  progress?.begin('computing');
  let first = 0;
  try {
    for await (const block of logits.blocks(blocks.map((rows) => rows * vocabulary))) {
      const ids = (await ofTargets.next()).value!;
      const each = (await ofTemperatures?.next())?.value;
      const temperature = each ? Float64Array.from(each as ArrayLike<number>) : inputs.temperature;
      const shape = [ids.length, vocabulary] as const;
      const given = { shape, targets: ids, temperature: temperature as number, softcap, entropy };
      const result = await logprobs(of(block), given).catch((error) => {
        throw inRow(error, temperatures ?? logits, layout, first);
      });
      const mask = Uint8Array.from(ids, (id) => (id === IGNORED ? 0 : 1));
      sums.logprob.add(result.logprob, mask);
      if (result.entropy) sums.entropy.add(result.entropy, mask);
      await write({ ...result, mask });
      first += ids.length;
      progress?.advance(first / Math.max(1, targets.size), first, first);
    }
  } finally {
    await ofTargets.return(undefined);
    await ofTemperatures?.return(undefined);
  }
  return {
    tokens: sums.logprob.count,
    logprob: sums.logprob.value,
    ...(entropy && { entropy: sums.entropy.value }),
  };
}

/** Yields the targets in blocks, and checks them. */
async function* targetBlocks(
  targets: NamedTensor,
  layout: LogprobsLayout,
  blocks: Iterable<number>,
): AsyncGenerator<Int32Array, undefined> {
  let first = 0;
  for await (const numbers of targets.numbers(blocks)) {
    try {
      const ids = Int32Array.from(numbers as ArrayLike<number>, (id, i) => {
        if (id === (id | 0)) return id;
        throw badTarget(i, layout.vocabulary, id);
      });
      takeNow(checkTargets(ids, layout.vocabulary));
      yield ids;
    } catch (error) {
      throw inRow(error, targets, layout, first);
    }
    first += numbers.length;
  }
}

/** Returns an error about a block with the file, the tensor and the row that it is about. */
function inRow(error: unknown, { file, name }: NamedTensor, { shape }: LogprobsLayout, first: number) {
  if (!(error instanceof LossError) || error.index === undefined) return error;
  return error.with({ at: file, key: name + elementAt(first + error.index, shape), index: undefined });
}

/** Returns the place of an element, such as '[1, 3]'. */
export function elementAt(index: number, shape: readonly number[]): string {
  let rest = index;
  const place = shape.toReversed().map((n) => {
    const at = rest % n;
    rest = (rest - at) / n;
    return at;
  });
  return describeShape(place.toReversed());
}

/** Divides a number of rows into blocks. There is at least one block. */
export function* blocksOf(rows: number, most: number): Generator<number> {
  yield Math.min(most, rows);
  for (let begin = most; begin < rows; begin += most) yield Math.min(most, rows - begin);
}

/** The mean of the results of all rows that are not ignored. It does not depend on the blocks. */
class Mean {
  count = 0;
  #isFinite = true;
  readonly #sum = new ExactSum();

  add(values: Float32Array, mask: Uint8Array): void {
    for (const [i, value] of values.entries()) {
      if (mask[i] === 0) continue;
      this.count++;
      if (Number.isFinite(value)) this.#sum.add(value);
      else this.#isFinite = false;
    }
  }

  get value(): number {
    return this.#isFinite ? this.#sum.value / this.count : Number.NaN;
  }
}
