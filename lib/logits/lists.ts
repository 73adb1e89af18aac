// Lists of tokens for each token of a batch: which they are, and their log-probabilities.
import { allocate } from '../base/errors.js';
import { native } from '../base/native.js';
import { inSlices, type Steps, takeCall } from '../base/steps.js';
import { IGNORED, type NativeMatrix } from './inputs.js';
import type { Matrix } from './loss-inputs.js';

/** The logits of all tokens of a batch. */
export interface TokenLogits {
  readonly matrix: NativeMatrix;
  readonly tokens: number;
  readonly vocabulary: number;
  /** One number per token, 0 if it is left out. */
  readonly kept: Uint32Array;
  readonly stream: bigint | undefined;
}

/** A list for each token. */
export interface Lists {
  /** The places of each list, one after another; −1 for none. */
  readonly ids: Int32Array;
  readonly length: number;
  /** The number of lists. */
  readonly tokens: number;
}

/** The results for lists. */
export interface ListedLogprobs {
  /** The log-probabilities of all places, 0 where there is none. */
  readonly logprob: Float32Array;
  readonly logsumexp: Float64Array;
  readonly entropy: Float32Array | undefined;
  /** The lists of the tokens with the largest logits, if they were wanted. */
  readonly top: Lists | undefined;
}

/** Returns the lists of the tokens with the largest logits. The CPU finds them if the logits are in host memory. */
export function* topTokens(logits: TokenLogits, count: number): Steps<Lists> {
  const { tokens, vocabulary, kept, stream } = logits;
  const { device, ...host } = logits.matrix;
  const matrix = areTogether(logits) ? logits.matrix : host;
  const lists = emptyLists(logits, count);
  const targets = Int32Array.from(kept, (isKept) => (isKept ? 0 : IGNORED));
  const rows = { rows: tokens, vocabulary, targets, temperature: 1, temperatures: undefined, softcap: 0 };
  if (lists.length > 0) yield* takeCall(native.logits, { ...matrix, ...rows, topIds: lists.ids, stream });
  return lists;
}

function emptyLists({ tokens, vocabulary }: TokenLogits, count: number): Lists {
  const length = Math.min(count, vocabulary);
  return { ids: allocate('lists of tokens', () => new Int32Array(tokens * length)), length, tokens };
}

// Returns whether the logits are where the call is computed.
function areTogether({ matrix: { data, device } }: TokenLogits): boolean {
  return (typeof data === 'bigint') === (device !== undefined);
}

/**
 * Returns lists with further places.
 * @param others lists for the same tokens. A token that is in the first list becomes −1 in the other one.
 */
export function* joined(lists: Lists, others: Lists, vocabulary: number): Steps<Lists> {
  const { tokens } = lists;
  const length = lists.length + others.length;
  const ids = allocate('lists of tokens', () => new Int32Array(tokens * length));
  const marks = new Marks(vocabulary);
  yield* inSlices(tokens, (begin, end) => {
    for (let token = begin; token < end; token++) {
      marks.set(token, placesOf(lists, token));
      const further = placesOf(others, token).map((id) => (marks.has(token, id) ? -1 : id));
      ids.set(placesOf(lists, token), token * length);
      ids.set(further, token * length + lists.length);
    }
  });
  return { ids, length, tokens };
}

/**
 * Returns the first places of lists, and after them a place for the target of each token, if there are targets.
 * @param isDistinct whether a target that is in the list too becomes −1 there.
 */
export function withTargets(
  lists: Lists,
  count: number,
  targets: Int32Array | undefined,
  isDistinct: boolean,
): Lists {
  const { tokens } = lists;
  const taken = Math.min(count, lists.length);
  const length = taken + (targets ? 1 : 0);
  if (length === lists.length && !targets) return lists;
  const ids = allocate('lists of tokens', () => new Int32Array(tokens * length));
  for (let token = 0; token < tokens; token++) {
    const target = targets?.[token];
    const places = placesOf(lists, token).subarray(0, taken);
    ids.set(isDistinct ? places.map((id) => (id === target ? -1 : id)) : places, token * length);
    if (target !== undefined) ids[token * length + taken] = target;
  }
  return { ids, length, tokens };
}

/** Returns 1 for each place of lists whose token is in other lists of the same tokens, and 0 for the others. */
export function* amongOthers(lists: Lists, others: Lists, vocabulary: number): Steps<Float32Array> {
  const { tokens } = lists;
  const found = allocate('lists of tokens', () => new Float32Array(lists.ids.length));
  const marks = new Marks(vocabulary);
  yield* inSlices(tokens, (begin, end) => {
    for (let token = begin; token < end; token++) {
      marks.set(token, placesOf(others, token));
      for (let at = token * lists.length; at < (token + 1) * lists.length; at++)
        found[at] = marks.has(token, lists.ids[at]!) ? 1 : 0;
    }
  });
  return found;
}

function placesOf({ ids, length }: Lists, token: number): Int32Array {
  return ids.subarray(token * length, (token + 1) * length);
}

// Sets of tokens of the vocabulary, one at a time.
class Marks {
  // For each token of the vocabulary, the last set that has it, counted from 1.
  readonly #last: Int32Array;

  constructor(vocabulary: number) {
    this.#last = allocate(`a set of ${vocabulary} tokens`, () => new Int32Array(vocabulary));
  }

  set(number: number, ids: Int32Array): void {
    for (let i = 0; i < ids.length; i++) {
      const id = ids[i]!;
      if (id >= 0 && id < this.#last.length) this.#last[id] = number + 1;
    }
  }

  has(number: number, id: number): boolean {
    return this.#last[id] === number + 1;
  }
}

/** Returns the numbers of lists whose places are the first of these lists, in rows that are as long as these; 0 elsewhere. */
export function spread(numbers: Matrix, lists: Lists): Matrix {
  const { data, dtype, width } = numbers;
  if (width === lists.length) return numbers;
  const { tokens } = lists;
  const wide = allocate('lists of numbers', () =>
    data instanceof Float32Array
      ? new Float32Array(tokens * lists.length)
      : new Uint16Array(tokens * lists.length),
  );
  const taken = Math.min(width, lists.length);
  for (let token = 0; token < tokens; token++)
    wide.set(data.subarray(token * width, token * width + taken), token * lists.length);
  return { data: wide, dtype, width: lists.length };
}

/**
 * Computes the log-probabilities of the tokens in lists.
 * @param wantsEntropy whether the entropies of the whole distributions are computed too.
 * @param topCount how many of the tokens with the largest logits are listed too, if any.
 */
export function* listedLogprobs(
  logits: TokenLogits,
  lists: Lists,
  temperature: number,
  wantsEntropy: boolean,
  topCount?: number,
): Steps<ListedLogprobs> {
  const { tokens } = logits;
  const found = topCount !== undefined && areTogether(logits) ? emptyLists(logits, topCount) : undefined;
  const result = allocate(`the log-probabilities of ${lists.ids.length} tokens`, () => ({
    logprob: new Float32Array(lists.ids.length),
    logsumexp: new Float64Array(tokens),
    entropy: wantsEntropy ? new Float32Array(tokens) : undefined,
  }));
  const { logprob: listLogprob, ...perToken } = result;
  const call = { ...callOf(logits, lists, temperature), ...perToken, listLogprob, topIds: found?.ids };
  yield* takeCall(native.logits, call);
  const top = topCount !== undefined && !found ? yield* topTokens(logits, topCount) : found;
  return { ...result, top };
}

/** The gradients of a loss with respect to the log-probabilities of lists, and where those of the logits are written. */
export interface ListedGradients {
  readonly gradListLogprob: Float32Array;
  /** With respect to the entropies. */
  readonly gradEntropy: Float64Array | undefined;
  /** The probabilities of all tokens that are not listed, and the gradients with respect to them. */
  readonly others: Float64Array | undefined;
  readonly gradOthers: Float64Array | undefined;
  readonly out: Float32Array | Uint16Array | bigint;
  readonly outDtype: number;
  readonly outStride: number;
}

/** Computes the gradient with respect to the logits from what listedLogprobs() computed. */
export function* listedGradient(
  logits: TokenLogits,
  lists: Lists,
  temperature: number,
  { logprob: listLogprob, logsumexp, entropy }: ListedLogprobs,
  gradients: ListedGradients,
): Steps<void> {
  const call = { ...callOf(logits, lists, temperature), logsumexp, entropy, listLogprob, ...gradients };
  yield* takeCall(native.logits, call);
}

function callOf(
  { matrix, tokens, vocabulary, kept, stream }: TokenLogits,
  lists: Lists,
  temperature: number,
) {
  // The native module takes a target for each token. That of a list is its first token.
  const targets = Int32Array.from(kept, (isKept, token) =>
    isKept ? Math.max(0, placesOf(lists, token).find((id) => id >= 0) ?? 0) : IGNORED,
  );
  const rows = { rows: tokens, vocabulary, targets, temperature, temperatures: undefined, softcap: 0 };
  return { ...matrix, ...rows, listIds: lists.ids, stream };
}
