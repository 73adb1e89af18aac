// Logits that the output head of a model computes from hidden states, a block of rows at a time. The gradient of each
// block is turned into those with respect to the hidden states and the head.
import type { NativeDeviceArray, NativeHead } from '../../binding.js';
import { allocate } from '../base/errors.js';
import { cuda, native } from '../base/native.js';
import { SLICE, type Steps, takeCall, takeNative } from '../base/steps.js';
import { DTYPE_CODES } from '../batch/convert.js';
import type { Block, LogitsSource } from './blocks.js';
import type { LogitsOut } from './from-logits.js';
import type { Head, HeadGradients } from './head.js';
import { type DeviceLogits, IGNORED, type Logits, readMatrix } from './inputs.js';

/** The most logits of a block, unless it has only one row. In float32, they take 64 MiB. */
const MOST_LOGITS = 2 ** 24;

// Consecutive rows of a batch. Those from `first` up to `last` have logits, unless they are ignored. The others are
// ignored.
interface Span {
  begin: number;
  first: number;
  last: number;
}

type Place = Pick<NativeHead, 'device' | 'stream'>;
type OnDevice = 'weightThere' | 'logits' | 'gradWeight' | 'gradBias';

/** The logits of a batch, computed from its hidden states. */
export class HeadSource implements LogitsSource {
  readonly vocabulary: number;
  readonly whole = undefined;
  readonly canRepeat = true;
  readonly #head: Head;
  readonly #tokens: number;
  // The most rows of a block.
  readonly #rows: number;
  readonly #gradients: HeadGradients;
  readonly #place: Place;
  // The arrays that stay on the device during the call.
  readonly #there = new Map<OnDevice, NativeDeviceArray>();
  // The logits of a block, on the CPU.
  #logits: Float32Array | undefined;
  // The rows whose logits were computed last, and the targets of all rows.
  #span: Span = { begin: 0, first: 0, last: 0 };
  #targets = new Int32Array(0);
  // Whether the gradients that are sums over tokens have begun.
  #adds = false;

  /** @param gradients the memory for the gradients that are wanted. */
  constructor(head: Head, tokens: number, gradients: HeadGradients, place: Place) {
    this.vocabulary = head.vocabulary;
    this.#head = head;
    this.#tokens = tokens;
    this.#rows = Math.min(tokens, Math.max(1, Math.floor(MOST_LOGITS / head.vocabulary)));
    this.#gradients = gradients;
    this.#place = place;
  }

  get device(): number | undefined {
    return this.#place.device;
  }

  /** Returns where the gradient of each block goes, or undefined if no gradient is wanted. */
  out(result: object): LogitsOut | undefined {
    const { gradHidden, ...sums } = this.#gradients;
    const written = { ...(gradHidden && { gradHidden: gradHidden.data }), ...sums };
    if (Object.keys(written).length === 0) return undefined;
    return { receive: () => this.#backward(this.#span, this.#gradients), written, result };
  }

  *each(targets: Int32Array, use: (block: Block) => Steps<void>): Steps<void> {
    this.#targets = targets as Int32Array<ArrayBuffer>;
    const { gradHidden } = this.#gradients;
    for (let begin = 0; begin < this.#tokens; begin = this.#span.last) {
      const span = yield* spanFrom(begin, targets, this.#rows);
      this.#span = span;
      if (span.first === span.last) {
        if (gradHidden) yield* this.#backward(span, { gradHidden });
      } else {
        yield* takeCall(native.head, this.#call(span));
        yield* use(this.#block(span));
      }
    }
  }

  /** Completes the gradients after all blocks. */
  *finish(): Steps<void> {
    const { gradHidden: _, ...sums } = this.#gradients;
    if (Object.keys(sums).length === 0) return;
    // Without a row that is not ignored, they are still to be set to 0.
    if (!this.#adds) yield* this.#backward({ begin: 0, first: 0, last: 0 }, sums);
    if (this.device === undefined) return;
    for (const [key, out] of Object.entries(sums) as ['gradWeight' | 'gradBias', Float32Array][])
      yield* takeNative(() => cuda.readDeviceArray(this.#there.get(key)!, out));
  }

  /** Frees the memory on the device. */
  release(): void {
    for (const array of this.#there.values()) cuda.releaseDeviceArray(array);
    this.#there.clear();
  }

  // Turns the gradient with respect to the logits of some rows into others.
  *#backward(span: Span, { gradHidden, ...sums }: HeadGradients): Steps<void> {
    const { size } = this.#head;
    const places = Object.entries(sums).map(([key, sum]) => {
      const isHere = this.device === undefined;
      return [key, isHere ? sum : this.#array(key as OnDevice, sum.length)];
    });
    yield* takeCall(native.head, {
      ...this.#call(span),
      ...Object.fromEntries(places),
      gradHidden: gradHidden?.data.subarray(span.begin * size, span.last * size),
      gradHiddenDtype: gradHidden && DTYPE_CODES[gradHidden.dtype],
      adds: this.#adds,
    });
    if (places.length > 0) this.#adds = true;
  }

  // Returns a call that computes the logits of a span.
  #call({ begin, first, last }: Span): NativeHead {
    const { size, vocabulary, hidden, weight, bias } = this.#head;
    return {
      rows: last - begin,
      vocabulary,
      size,
      targets: this.#targets.subarray(begin, last),
      hidden: hidden.data.subarray(begin * size, last * size),
      hiddenDtype: DTYPE_CODES[hidden.dtype],
      weight: weight.data,
      weightDtype: DTYPE_CODES[weight.dtype],
      bias: bias?.data,
      biasDtype: bias && DTYPE_CODES[bias.dtype],
      logits: this.#memory(last - first),
      ...(this.device !== undefined && {
        ...this.#place,
        weightThere: this.#array('weightThere', Math.ceil(weight.data.byteLength / 4)),
      }),
    };
  }

  // Returns the memory for the logits of a number of rows. All blocks use the same memory.
  #memory(rows: number): Float32Array | NativeDeviceArray {
    const most = this.#rows * this.vocabulary;
    if (this.device !== undefined) return this.#array('logits', most);
    this.#logits ??= allocate(`a block of ${most} logits`, () => new Float32Array(most));
    return this.#logits.subarray(0, rows * this.vocabulary);
  }

  #array(key: OnDevice, length: number): NativeDeviceArray {
    const array = this.#there.get(key) ?? cuda.deviceArray(this.device!, length, false);
    this.#there.set(key, array);
    return array;
  }

  // Returns the block of a span whose logits were computed.
  #block({ first, last }: Span): Block {
    const { vocabulary, device } = this;
    const rows = last - first;
    const given: Logits | DeviceLogits =
      device === undefined
        ? (this.#memory(rows) as Float32Array)
        : {
            pointer: cuda.deviceArrayAddress(this.#there.get('logits')!),
            dtype: 'float32',
            device: `cuda:${device}`,
            shape: [rows, vocabulary],
          };
    const matrix = readMatrix(given, rows, vocabulary, undefined, device);
    return { given: given as Logits, matrix, first, rows };
  }
}

// Returns the next rows that make a block: up to the `most`th row after the ignored ones.
function* spanFrom(begin: number, targets: Int32Array, most: number): Steps<Span> {
  let first = begin;
  while (first < targets.length && targets[first] === IGNORED) if (++first % SLICE === 0) yield;
  let last = Math.min(first + most, targets.length);
  while (last > first && targets[last - 1] === IGNORED) last--;
  return { begin, first, last };
}
