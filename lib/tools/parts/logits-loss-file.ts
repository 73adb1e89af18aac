// Computes a loss of logits on tensors of files that need not fit into memory, a number of rows at a time.
import { LossError } from '../../base/errors.js';
import { toSnakeCase } from '../../base/options.js';
import { type InputName, inputRow } from '../../batch/columns.js';
import {
  type Counts,
  KeyMapper,
  type LogitsLossBatch,
  type LogitsLossFn,
  type Metrics,
  sumCounts,
} from '../../index.js';
import { LOGITS_INPUTS, type LogitsInput } from '../../logits/loss-inputs.js';
import { NamedTensor } from '../rollouts/tensor/named.js';
import { describeShape } from '../rollouts/tensor/tensor.js';
import type { EvaluationProgress } from './evaluation.js';
import {
  blocksOf,
  checkDtype,
  elementAt,
  FLOATS,
  INTEGERS,
  LOGITS_DTYPES,
  shapeError,
  vocabularyOf,
} from './logits-file.js';

const NUMBERS = ['BOOL', 'U8', 'I8', ...INTEGERS, ...FLOATS];

/** The elements that a tensor may have. Only logits may be too large for the memory. */
const KINDS = {
  logits: { dtypes: Object.keys(LOGITS_DTYPES), what: 'floats of 16 or 32 bits' },
  integers: { dtypes: INTEGERS, what: 'integers' },
  floats: { dtypes: FLOATS, what: 'floats' },
  flags: { dtypes: NUMBERS, what: 'numbers' },
} as const;

interface InputTensor {
  readonly kind: keyof typeof KINDS;
  /** The shapes that are allowed, with a letter per dimension. B and T are those of the logits. */
  readonly shapes: readonly string[];
}

/** The inputs of losses of logits that files may have. */
const TENSORS = {
  logits: { kind: 'logits', shapes: ['BTV'] },
  probs: { kind: 'logits', shapes: ['BTV'] },
  teacher_logits: { kind: 'logits', shapes: ['BTV'] },
  teacher_probs: { kind: 'logits', shapes: ['BTV'] },
  ref_logits: { kind: 'logits', shapes: ['BTV'] },
  teacher_topk_ids: { kind: 'integers', shapes: ['BTK'] },
  teacher_topk_logprobs: { kind: 'floats', shapes: ['BTK'] },
  targets: { kind: 'integers', shapes: ['BT'] },
  action_mask: { kind: 'flags', shapes: ['BT'] },
  old_logprob: { kind: 'floats', shapes: ['BT'] },
  teacher_logprob: { kind: 'floats', shapes: ['BT'] },
  advantages: { kind: 'floats', shapes: ['BT', 'B'] },
  token_weights: { kind: 'floats', shapes: ['BT', 'B'] },
  target_probs: { kind: 'floats', shapes: ['BT'] },
  sample_mask: { kind: 'flags', shapes: ['B'] },
  distill_mask: { kind: 'flags', shapes: ['BT'] },
  self_distillation_mask: { kind: 'flags', shapes: ['B'] },
  teacher_action_mask: { kind: 'flags', shapes: ['BT'] },
  student_matched_ids: { kind: 'integers', shapes: ['N'] },
  teacher_matched_ids: { kind: 'integers', shapes: ['N'] },
} as const satisfies Partial<Record<LogitsInput | InputName, InputTensor>>;

type TensorName = keyof typeof TENSORS;
const TENSOR_NAMES = Object.keys(TENSORS) as TensorName[];

/** The names of these inputs in files, and what they are. */
export const LOGITS_FILE_INPUTS: readonly { readonly name: string; readonly help: string }[] =
  TENSOR_NAMES.map((input) => ({ name: nameOf(input), help: helpOf(input) }));

function nameOf(input: TensorName): string {
  return isOfLogits(input) ? input : (inputRow(input).file ?? input);
}

function helpOf(input: TensorName): string {
  return isOfLogits(input) ? LOGITS_INPUTS[input].help : inputRow(input).help;
}

function isOfLogits(input: TensorName): input is TensorName & LogitsInput {
  return input in LOGITS_INPUTS;
}

/** What to compute, and from which tensors. */
export interface LogitsLossFileOptions {
  /** The loss, and its name for messages. */
  loss: LogitsLossFn<Partial<Metrics>>;
  name: string;
  /** The tensors by the names of the inputs in files, each as FILE or FILE:NAME. */
  tensors: Readonly<Record<string, string | undefined>>;
  /** The largest number of bytes of logits in a part. A part has at least one row. The next one is read at the same time. */
  batchBytes?: number | undefined;
  /** The device on which to compute; 'cpu' by default. */
  device?: string | undefined;
  progress?: EvaluationProgress | undefined;
}

/** The loss of a whole batch. */
export interface LogitsLossEvaluation {
  loss: number;
  metrics: Partial<Metrics>;
  rows: number;
  /** The number of tokens that the loss does not leave out. */
  tokens: number;
  vocabulary: number;
  /** The number of parts in which the rows were computed. */
  parts: number;
}

/** The gradient's name in files, and its shape. */
export interface LogitsGradient {
  name: 'grad_logits' | 'grad_probs';
  shape: readonly number[];
}

/** The default of `batchBytes`. */
export const BATCH_BYTES = 2 ** 28;

/**
 * Computes a loss of logits. The loss, the metrics and the gradient have the bits of a single call on all rows. Several parts
 * lack the metrics that need the whole batch.
 * @param begin requests the gradient. It is called once the tensors have been checked, and returns the function that gets
 * the gradient of each part.
 * @throws LossError that names the file, the tensor and the element: `ERR_MISSING_INPUT` for a missing tensor,
 * `ERR_SHAPE_MISMATCH` for shapes that do not match, `ERR_INVALID_INPUT` for a wrong dtype or value or a file that cannot be
 * read, `ERR_INVALID_OPTION` for an input that is missing or that the loss does not read, and for too large a batch if the
 * loss reduces over all rows.
 */
export async function logitsLossOfFiles(
  options: LogitsLossFileOptions,
  begin?: (gradient: LogitsGradient) => (values: Float32Array) => Promise<void>,
): Promise<LogitsLossEvaluation> {
  const opened = new Map<TensorName, NamedTensor>();
  try {
    for (const input of inputsOf(options)) {
      const name = nameOf(input);
      opened.set(input, await NamedTensor.open(options.tensors[name]!, name));
    }
    return await compute(options, opened, begin);
  } finally {
    for (const tensor of opened.values()) await tensor.close();
  }
}

// Returns the inputs that are given, that of the loss itself first.
function inputsOf({ loss, name, tensors }: LogitsLossFileOptions): TensorName[] {
  const { variable, selectKeys, backend } = loss;
  const keys: readonly string[] = selectKeys.map((key) => KeyMapper.get(backend).toTrinity(key));
  // Every loss is multiplied by these if it gets them.
  const reads = [...keys, 'token_weights'];
  if (tensors[variable] === undefined) throw missing(variable, LOGITS_INPUTS[variable].expected);
  const others = TENSOR_NAMES.filter((input) => input !== variable && tensors[nameOf(input)] !== undefined);
  const unread = others.find((input) => !reads.includes(input));
  if (unread !== undefined)
    throw new LossError('ERR_INVALID_OPTION', {
      option: nameOf(unread),
      expected: `only what ${name} reads`,
      received: 'a tensor that it does not read',
    });
  return [variable, ...others];
}

function missing(input: TensorName, expected: string): LossError {
  return new LossError('ERR_INVALID_OPTION', { option: nameOf(input), expected, received: 'nothing' });
}

type Tensors = ReadonlyMap<TensorName, NamedTensor>;

async function compute(
  options: LogitsLossFileOptions,
  opened: Tensors,
  begin: ((gradient: LogitsGradient) => (values: Float32Array) => Promise<void>) | undefined,
): Promise<LogitsLossEvaluation> {
  const { loss, device = 'cpu', progress } = options;
  const logits = opened.get(loss.variable)!;
  for (const [input, tensor] of opened) check(tensor, TENSORS[input], logits);
  const vocabulary = vocabularyOf(logits);
  const [rows, length] = logits.shape as readonly [number, number, number];
  const blocks = [...blocksOf(rows, rowsAtOnce(options, opened, rows))];
  const small = await readSmall(opened);
  // The logits do not decide which tokens count.
  const ofCounts = new Map([...opened].filter(([input]) => TENSORS[input].kind !== 'logits'));
  const counted: Counts[] = [];
  for await (const { batch, first } of batchesOf(ofCounts, small, length, blocks))
    counted.push(await located(loss.count(batch), opened, first));
  const normalizer = sumCounts(counted);
  const inParts = blocks.length > 1 && { normalizer, part: true };
  const write = begin?.({ name: `grad_${loss.variable}`, shape: logits.shape });
  const given = { device, gradLogits: begin !== undefined, ...inParts };
  const parts: Float64Array[] = [];
  let whole: Pick<LogitsLossEvaluation, 'loss' | 'metrics'> | undefined;
  progress?.begin('computing');
  for await (const { batch, first } of batchesOf(opened, small, length, blocks)) {
    const computed = await located(loss.compute(batch, given), opened, first);
    await write?.((computed.gradLogits ?? computed.gradProbs) as Float32Array);
    whole = computed;
    if (computed.part) parts.push(computed.part);
    const done = first + batch.shape![0];
    progress?.advance(done / Math.max(1, rows), done, done * length);
  }
  const { loss: value, metrics } = inParts ? loss.merge(parts, normalizer) : whole!;
  return { loss: value, metrics, rows, tokens: normalizer.tokens, vocabulary, parts: blocks.length };
}

function check(tensor: NamedTensor, { kind, shapes }: InputTensor, logits: NamedTensor): void {
  const { dtypes, what } = KINDS[kind];
  checkDtype(tensor, dtypes, what);
  const [B, T] = logits.shape;
  const known: Readonly<Record<string, number | undefined>> = tensor === logits ? {} : { B, T };
  const fits = (dimensions: string) =>
    dimensions.length === tensor.shape.length &&
    tensor.shape.every((n, i) => n === (known[dimensions[i]!] ?? n));
  if (!shapes.some(fits)) {
    const expected = shapes
      .map((dimensions) => `[${Array.from(dimensions, (one) => known[one] ?? one).join(', ')}]`)
      .join(' or ');
    const because =
      tensor === logits ? '' : `, because ${logits.name} has shape ${describeShape(logits.shape)}`;
    throw shapeError(tensor, expected + because);
  }
  if (kind === 'logits') vocabularyOf(tensor);
}

// A tensor of three dimensions is read in parts, the others as a whole.
const isLarge = ({ shape }: NamedTensor) => shape.length === 3;
// Tensors without a row for each row of the logits have one dimension of their own.
const isPerRow = (input: TensorName) => TENSORS[input].shapes.every((dimensions) => dimensions !== 'N');
const perRow = ({ shape }: NamedTensor) => shape.slice(1).reduce((product, n) => product * n, 1);

type Inputs = Partial<Record<TensorName, unknown>>;

async function readSmall(opened: Tensors): Promise<Inputs> {
  const read: Inputs = {};
  for (const [input, tensor] of opened) {
    if (isLarge(tensor)) continue;
    for await (const numbers of tensor.numbers([tensor.size]))
      read[input] = valuesOf(input, tensor, numbers, 0);
  }
  return read;
}

function valuesOf(
  input: TensorName,
  tensor: NamedTensor,
  numbers: ArrayLike<number | string>,
  first: number,
): ArrayLike<number> {
  const { kind } = TENSORS[input];
  if (kind === 'floats') return numbers as ArrayLike<number>;
  const isFlag = kind === 'flags';
  const checked = (value: number | string, i: number): number => {
    const id = Number(value);
    if (isFlag ? id === 0 || id === 1 : id === (id | 0)) return id;
    const expected = isFlag ? '0 or 1' : 'an integer of 32 bits';
    throw tensor.error(expected, String(value), elementAt(first + i, tensor.shape));
  };
  return isFlag
    ? Uint8Array.from(numbers as ArrayLike<number>, checked)
    : Int32Array.from(numbers as ArrayLike<number>, checked);
}

// Returns how many rows a part has.
function rowsAtOnce(options: LogitsLossFileOptions, opened: Tensors, rows: number): number {
  const { loss, name, batchBytes = BATCH_BYTES } = options;
  const logits = [...opened]
    .filter(([input]) => TENSORS[input].kind === 'logits')
    .map(([, tensor]) => tensor);
  const bytes = logits.reduce((sum, each) => sum + perRow(each) * formatOf(each).bytes, 0);
  const most = Math.max(1, Math.floor(batchBytes / Math.max(1, bytes)));
  if (!loss.readsWholeBatch || rows <= most) return most;
  throw new LossError('ERR_INVALID_OPTION', {
    option: 'batchBytes',
    expected: `at least ${rows * bytes}, because ${name} reduces over all rows, which must be in one part`,
    received: String(batchBytes),
  });
}

function formatOf({ dtype }: NamedTensor) {
  return LOGITS_DTYPES[dtype as keyof typeof LOGITS_DTYPES];
}

/**
 * Yields the batches of consecutive rows.
 * @param small what was read as a whole.
 * @param blocks the number of rows of each batch.
 */
async function* batchesOf(
  opened: Tensors,
  small: Inputs,
  length: number,
  blocks: readonly number[],
): AsyncGenerator<{ batch: LogitsLossBatch; first: number }> {
  const streams = [...opened]
    .filter(([, tensor]) => isLarge(tensor))
    .map(([input, tensor]) => ({ input, values: valuesInBlocks(input, tensor, blocks) }));
  let first = 0;
  try {
    for (const rows of blocks) {
      const next = await Promise.all(streams.map(({ values }) => values.next()));
      const large = next.map(({ value }, i) => [streams[i]!.input, value]);
      const batch = {
        ...sliced(small, opened, first, rows),
        ...Object.fromEntries(large),
        shape: [rows, length],
      };
      yield { batch: batch as LogitsLossBatch, first };
      first += rows;
    }
  } finally {
    for (const { values } of streams) await values.return(undefined);
  }
}

// Returns what some rows have of the tensors that were read as a whole.
function sliced(small: Inputs, opened: Tensors, first: number, count: number): Inputs {
  const slices = Object.entries(small).map(([name, values]) => {
    const input = name as TensorName;
    const size = perRow(opened.get(input)!);
    const of = values as Float64Array;
    return [input, isPerRow(input) ? of.subarray(first * size, (first + count) * size) : of];
  });
  return Object.fromEntries(slices);
}

async function* valuesInBlocks(
  input: TensorName,
  tensor: NamedTensor,
  blocks: readonly number[],
): AsyncGenerator<unknown, undefined> {
  const sizes = blocks.map((rows) => rows * perRow(tensor));
  if (TENSORS[input].kind === 'logits') {
    for await (const bytes of tensor.blocks(sizes)) yield formatOf(tensor).of(bytes);
    return;
  }
  let first = 0;
  for await (const numbers of tensor.numbers(sizes)) {
    yield valuesOf(input, tensor, numbers, first);
    first += numbers.length;
  }
}

// Waits for the result of a part. Its errors name a tensor.
async function located<T>(result: Promise<T>, opened: Tensors, firstRow: number): Promise<T> {
  try {
    return await result;
  } catch (error) {
    throw inTensor(error, opened, firstRow);
  }
}

/** Returns an error about a part with the file, the tensor and the element that it is about. */
function inTensor(error: unknown, opened: Tensors, firstRow: number): unknown {
  if (!(error instanceof LossError) || error.key === undefined) return error;
  const input = TENSOR_NAMES.find((name) => name === toSnakeCase(error.key!));
  const tensor = input && opened.get(input);
  if (!input || !tensor)
    return input && error.code === 'ERR_MISSING_INPUT' ? missing(input, error.expected!) : error;
  const first = isPerRow(input) ? firstRow * perRow(tensor) : 0;
  const element = error.index === undefined ? '' : elementAt(first + error.index, tensor.shape);
  return error.with({ at: tensor.file, key: tensor.name + element, index: undefined });
}
