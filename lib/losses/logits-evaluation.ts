// Computes a loss of logits on a batch that was read: runs its program over the entries of the tokens, and writes the
// gradient with respect to the logits.
import type { NativeBatch } from '../../binding.js';
import { allocate, LossError } from '../base/errors.js';
import type { Steps } from '../base/steps.js';
import { COLUMNS, ROW_DATA } from '../batch/columns.js';
import { DTYPE_CODES, type NativeColumn } from '../batch/convert.js';
import type { Normalizer } from '../batch/counts.js';
import { emptyBatch } from '../batch/empty-batch.js';
import type { Layout } from '../batch/layout.js';
import type { Metrics, Result } from '../call/calls.js';
import type { Evaluator, ReadCall as EvaluatorCall } from '../call/evaluator.js';
import { type NativeDeviceLogits, offsetOf } from '../logits/device-logits.js';
import { isOnDevice } from '../logits/inputs.js';
import { amongOthers, type Lists, listedGradient, listedLogprobs } from '../logits/lists.js';
import { type EntryColumn, maskOfOnes, tokenBlocks } from '../logits/vocabulary.js';
import type { LossProgram } from '../program/loss-program.js';
import { ENTRY_COLUMNS, type Entries, hasOwnPlace, isTargetApart, TOKEN_NUMBERS } from './entries.js';
import {
  type EntryCall,
  type EntryColumns,
  helperOf,
  placesOfTargets,
  readBlocks,
  readLists,
} from './entry-inputs.js';
import { joinParts } from './logits-parts.js';

/** One form of a loss: its entries, and the program that computes the loss of the tokens from them. */
export interface LogitsLossForm {
  readonly entries: Entries;
  readonly program: LossProgram;
}

/** A batch whose inputs for tokens and rows were read. */
export interface ReadCall extends EntryCall {
  readonly layout: Layout;
  readonly form: LogitsLossForm;
  readonly evaluator: Evaluator;
  readonly device: number | undefined;
  /** The columns of tokens by their places, and the numbers of tokens by theirs. */
  readonly columns: readonly (NativeColumn | undefined)[];
  readonly numbers: readonly (Float64Array | undefined)[];
  readonly normalizer: Normalizer | undefined;
  readonly wantsPart: boolean;
}

/** The results for a batch without its gradient. */
export type Computed = Pick<Result<Metrics>, 'loss' | 'metrics' | 'part'>;

/** Computes a loss over lists, whose entries all fit into memory. */
export function* overLists(call: ReadCall): Steps<Computed> {
  const { form, tokens, out, normalizer, wantsPart } = call;
  const { entries } = form;
  const { lists, mask, columns } = yield* readLists(entries, call);
  const temperature = entries.temperature ?? 1;
  const width = lists.length;
  // Without the target's own place.
  const length = hasOwnPlace(entries) ? width - 1 : width;
  const topCount = entries.top ? length : undefined;
  const listed = yield* listedLogprobs(call, lists, temperature, entries.entropy === true, topCount);
  const numbers = [...call.numbers];
  const set = (name: keyof typeof TOKEN_NUMBERS, of: Float64Array) => {
    numbers[ROW_DATA.indexOf(TOKEN_NUMBERS[name])] = of;
  };
  if (listed.entropy) set(entries.others ? 'constantEntropy' : 'entropy', Float64Array.from(listed.entropy));
  const others = entries.others ? massOfOthers(entries, lists, listed.logprob) : undefined;
  if (others) set('others', others);
  if (entries.target) set('target', placesOfTargets(entries, lists, call.targets!));
  const student = { data: listed.logprob, dtype: DTYPE_CODES.float32 };
  const { helper: compute } = entries;
  const helper = listed.top
    ? { data: yield* amongOthers(lists, listed.top, call.vocabulary), dtype: DTYPE_CODES.float32 }
    : compute && helperOf(compute, { student, teacher: columns.teacher! }, width, length, call.kept);
  const gradients = out && {
    grad: new Float32Array(lists.ids.length),
    ...((listed.entropy || others) && { gradLogZ: new Float32Array(tokens) }),
  };
  const computed = yield* evaluate(call, {
    first: 0,
    last: tokens,
    width,
    entries: { ...columns, student, ...(helper && { helper }) },
    mask,
    numbers,
    gradients,
    inParts: wantsPart || normalizer !== undefined,
  });
  if (wantsPart) computed.part = joinParts(call, width, [computed.part!]);
  else delete computed.part;
  if (!out || !gradients) return computed;
  const gradOfToken = gradients.gradLogZ && Float64Array.from(gradients.gradLogZ);
  if (others && isTargetApart(entries))
    moveToTargets(lists, listed.logprob, others, gradOfToken!, gradients.grad);
  yield* listedGradient(call, lists, temperature, listed, {
    gradListLogprob: gradients.grad,
    gradEntropy: others ? undefined : gradOfToken,
    others,
    gradOthers: others && gradOfToken,
    ...out,
  });
  return computed;
}

// Returns for each token the probability of all tokens that are not in its list, precisely also where it is small.
function massOfOthers(entries: Entries, { ids, length, tokens }: Lists, logprob: Float32Array): Float64Array {
  const count = length - (isTargetApart(entries) ? 1 : 0);
  return Float64Array.from({ length: tokens }, (_, token) => {
    let largest = Number.NEGATIVE_INFINITY;
    let sum = 0;
    for (let i = token * length; i < token * length + count; i++) {
      if (ids[i]! < 0) continue;
      const x = logprob[i]!;
      sum += Math.exp(Math.min(x, largest));
      largest = Math.max(largest, x);
    }
    return Math.max(0, -Math.expm1(largest) - sum);
  });
}

// Moves a target that is one of the other tokens from these to its own place.
function moveToTargets(
  { ids, length, tokens }: Lists,
  logprob: Float32Array,
  others: Float64Array,
  gradOthers: Float64Array,
  grad: Float32Array,
): void {
  for (let token = 0; token < tokens; token++) {
    const at = (token + 1) * length - 1;
    if (ids.subarray(token * length, at).includes(ids[at]!)) continue;
    const p = Math.exp(logprob[at]!);
    others[token]! -= p;
    grad[at]! += gradOthers[token]! * p;
  }
}

/** Computes a loss over the vocabulary, a block of tokens at a time. */
export function* overVocabulary(call: ReadCall): Steps<Computed> {
  const { form, tokens, vocabulary, kept, out, matrix } = call;
  const { width, read } = yield* readBlocks(form.entries, call);
  const onDevice = out && isOnDevice(out) ? out : undefined;
  const onHost = out && !isOnDevice(out) ? out : undefined;
  if (onDevice && width !== vocabulary) throw mustBeOnHost();
  // A loss over the tokens of a row cannot be divided.
  const isWhole = call.evaluator.readsWholeBatch;
  const parts: Float64Array[] = [];
  let whole: Computed | undefined;
  for (const { first, last } of tokenBlocks(tokens, isWhole ? 0 : width)) {
    const to = onHost?.out.subarray(first * vocabulary, last * vocabulary);
    const isEmpty = !kept.subarray(first, last).includes(1);
    if (isEmpty && first > 0 && !onDevice) {
      to?.fill(0);
      continue;
    }
    // The gradient may be written in place of the logits, which the CPU reads several times. A device reads a copy.
    const isInPlace = typeof matrix.data !== 'bigint' && onHost?.out.buffer === matrix.data.buffer;
    const isDirect = width === vocabulary && !isInPlace;
    const length = (last - first) * width;
    const grad = to && (isDirect ? to : emptyLike(to, length));
    const computed = yield* evaluate(call, {
      first,
      last,
      width,
      entries: read({ first, last }),
      mask: maskOfOnes(length),
      numbers: call.numbers,
      gradients: grad && { grad: gradientOf(grad, onHost!.outDtype) },
      there: onDevice && {
        grad: onDevice.out + offsetOf(first * vocabulary, onDevice.outDtype),
        gradDtypes: onDevice.outDtype,
        gradHandle: onDevice.outHandle,
      },
      inParts: !isWhole,
    });
    whole = computed;
    if (computed.part) parts.push(computed.part);
    if (!to || !grad || isDirect) continue;
    for (let i = 0; i < last - first; i++)
      to.set(grad.subarray(i * width, i * width + vocabulary), i * vocabulary);
  }
  if (isWhole) return whole!;
  const merged = call.evaluator.merge<Metrics>(parts, normalizerOf(call, width));
  return { ...merged, ...(call.wantsPart && { part: joinParts(call, width, parts) }) };
}

function mustBeOnHost(): LossError {
  return new LossError('ERR_INVALID_INPUT', {
    key: 'gradLogits',
    expected: "true or an array in host memory, because the teacher's vocabulary is the larger one",
    received: 'memory of a device',
  });
}

function* evaluate(call: ReadCall, block: EntryBlock): Steps<Computed> {
  const { first, last, width, entries, mask, numbers, gradients, there, inParts } = block;
  const count = last - first;
  const layout = { rows: count, rowLength: width, tokens: count * width, offsets: undefined };
  const view: NativeBatch = emptyBatch(layout);
  const arrays = [...(call.out && isOnDevice(call.out) ? (call.out.arrays ?? []) : [])];
  const pointers: (bigint | undefined)[] = [];
  const handles: (Uint8Array | undefined)[] = [];
  const set = (at: number, { data, dtype, ...memory }: EntryColumn) => {
    view.dtypes[at] = dtype;
    if (typeof data !== 'bigint') {
      view.data[at] = data;
      return;
    }
    pointers[at] = data;
    const { dataHandle, arrays: own = [] } = memory as NativeDeviceLogits;
    handles[at] = dataHandle;
    arrays.push(...own);
  };
  call.columns.forEach((column, at) => {
    if (column) set(at, { ...column, data: column.data.subarray(first, last) });
  });
  for (const [name, column] of Object.entries(entries))
    set(COLUMNS.indexOf(ENTRY_COLUMNS[name as keyof typeof ENTRY_COLUMNS]), column);
  if (pointers.length > 0 || arrays.length > 0) Object.assign(view, { pointers, handles, arrays });
  view.mask = mask;
  view.repeats = call.kept.subarray(first, last);
  view.rowData = numbers.map((of) => of?.subarray(first, last));
  const input = { native: view, layout, device: call.device, step: undefined };
  const options = {
    stream: call.stream,
    ...(inParts && { normalizer: normalizerOf(call, width), part: true }),
  };
  const { loss, metrics, part } = yield* call.evaluator.evaluate<Metrics>({
    input,
    gradients: gradients ?? {},
    options,
    coefficients: {},
    there,
  });
  return { loss, metrics, ...(part && { part }) };
}

// The entries of some tokens.
interface EntryBlock {
  first: number;
  last: number;
  width: number;
  entries: EntryColumns;
  mask: Uint8Array;
  numbers: readonly (Float64Array | undefined)[];
  gradients: { grad: ReturnType<typeof gradientOf>; gradLogZ?: Float32Array } | undefined;
  there?: EvaluatorCall['there'];
  inParts: boolean;
}

// Returns the counts of the whole batch as programs over entries see it: its rows are the unmasked tokens.
function normalizerOf({ kept, normalizer }: ReadCall, width: number): Normalizer {
  const rows = normalizer?.tokens ?? kept.reduce((sum, x) => sum + x, 0);
  return { rows, tokens: rows * width, columns: width };
}

function gradientOf(data: Float32Array | Uint16Array, dtype: number) {
  return data instanceof Float32Array
    ? data
    : { data, dtype: dtype === 1 ? ('float16' as const) : ('bfloat16' as const) };
}

function emptyLike(array: Float32Array | Uint16Array, length: number): Float32Array | Uint16Array {
  return allocate(`a gradient of ${length} values`, () =>
    array instanceof Float32Array ? new Float32Array(length) : new Uint16Array(length),
  );
}
