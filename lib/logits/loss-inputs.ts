// The inputs of losses that are computed from logits, under the names of their keys in a batch.
import { checkAttached } from '../base/arrays.js';
import { LossError } from '../base/errors.js';
import { isFloat64Array } from '../base/kinds.js';
import { inSlices, type Steps } from '../base/steps.js';
import { type Batch, find } from '../batch/batch.js';
import { DTYPE_CODES, type NativeColumn } from '../batch/convert.js';
import { copyIntegers } from '../batch/integers.js';
import type { KeyMapper } from '../batch/key-mapper.js';
import type { MaskColumn } from '../batch/values.js';
import { isDeviceColumn } from '../device/device-column.js';
import { type NativeDeviceLogits, readDeviceLogits } from './device-logits.js';
import { floatsOf, type Logits } from './inputs.js';

/** The inputs of these losses that no other function has, by their names in snake_case. */
export const LOGITS_INPUTS = {
  logits: {
    expected: 'V logits per token',
    help: 'shape [B, T, V]: the logits from which the model chose each token. Those of masked tokens are not read',
  },
  probs: {
    expected: 'V probabilities per token',
    help: 'shape [B, T, V]: the probabilities of all tokens of the vocabulary. Read by liger/tvd',
  },
  targets: {
    expected: 'a token id per token',
    help: 'shape [B, T]: the tokens that were sampled, or the labels. Those that are masked may be any whole numbers. In losses of fine-tuning, −100 is no label',
  },
  target_probs: {
    expected: 'a probability per token',
    help: 'shape [B, T]: how probable it is that a step is right, in place of targets. Read by openrlhf/prm',
  },
  teacher_logits: {
    expected: "the teacher's logits per token",
    help: "shape [B, T, V]: the teacher's logits",
  },
  teacher_probs: {
    expected: "the teacher's probabilities per token",
    help: "shape [B, T, V]: the teacher's probabilities",
  },
  teacher_topk_ids: {
    expected: 'K token ids per token',
    help: 'shape [B, T, K]: the tokens to which the teacher gives the largest probabilities; −1 for none',
  },
  teacher_topk_logprobs: {
    expected: 'K log-probabilities per token',
    help: 'shape [B, T, K]: their log-probabilities under the teacher',
  },
  ref_logits: {
    expected: "the reference policy's logits per token",
    help: "shape [B, T, V]: the reference policy's logits",
  },
  distill_mask: {
    expected: 'a mask per token',
    help: '0 leaves a token out of the distillation, but not out of the cross-entropy. Read by roll/distill, for which action_mask stands in',
  },
  teacher_action_mask: {
    expected: 'a mask per token',
    help: "shape [B, T]: the tokens of the teacher's rows that are compared. Read by trl/gold_uld, for which action_mask stands in",
  },
  student_matched_ids: {
    expected: 'token ids',
    help: "the student's ids of the tokens that both vocabularies have. Read by trl/gold_uld",
  },
  teacher_matched_ids: {
    expected: "the teacher's ids of the same tokens",
    help: "the teacher's ids of the same tokens",
  },
  self_distillation_mask: {
    expected: 'a mask per row',
    help: '0 leaves a row out of the distillation. If it is absent, all rows count. Read by trl/sdpo',
  },
} as const satisfies Record<string, { readonly expected: string; readonly help: string }>;
/** The name of one of these inputs. */
export type LogitsInput = keyof typeof LOGITS_INPUTS;
export const LOGITS_INPUT_NAMES = Object.keys(LOGITS_INPUTS) as LogitsInput[];

/**
 * The inputs of losses of logits. Each key may also be written in snake_case.
 * @typeParam Source what the logits and the probabilities may be.
 */
export interface LogitsInputs<Source> {
  /** Shape [B, T, V]: the logits from which the model chose each token. Those of masked tokens are not read. */
  logits?: Source | undefined;
  /** Shape [B, T, V]: the probabilities of all tokens of the vocabulary. Read by liger/tvd. */
  probs?: Source | undefined;
  /** Shape [B, T]: the tokens that were sampled, or the labels. Those that are masked may be any whole numbers. */
  targets?: Int32Array | readonly number[] | undefined;
  /** Shape [B, T]: how probable it is that a step is right, in place of targets. Read by openrlhf/prm. */
  targetProbs?: Logits | Float64Array | undefined;
  /** Shape [B, T, V]: the teacher's logits. */
  teacherLogits?: Source | undefined;
  /** Shape [B, T, V]: the teacher's probabilities. */
  teacherProbs?: Source | undefined;
  /** Shape [B, T, K]: the tokens to which the teacher gives the largest probabilities; −1 for none. */
  teacherTopkIds?: Int32Array | readonly number[] | undefined;
  /** Shape [B, T, K]: their log-probabilities under the teacher. */
  teacherTopkLogprobs?: Logits | Float64Array | undefined;
  /** Shape [B, T, V]: the reference policy's logits. */
  refLogits?: Source | undefined;
  /** 0 leaves a token out of the distillation, but not out of the cross-entropy. Read by roll/distill. */
  distillMask?: MaskColumn | undefined;
  /** The tokens of the teacher's rows that are compared. Read by trl/gold_uld, for which action_mask stands in. */
  teacherActionMask?: MaskColumn | undefined;
  /** The student's ids of the tokens that both vocabularies have, and the teacher's. Read by trl/gold_uld. */
  studentMatchedIds?: Int32Array | readonly number[] | undefined;
  teacherMatchedIds?: Int32Array | readonly number[] | undefined;
  /** 0 leaves a row out of the distillation. Read by trl/sdpo. */
  selfDistillationMask?: MaskColumn | undefined;
}

/** Several numbers for each token, in host memory. */
export interface Matrix extends NativeColumn {
  /** How many numbers each token has. */
  readonly width: number;
}

/** Logits, or probabilities, of all tokens: in host memory, or at an address in that of the device. */
export type TokenMatrix = Matrix | (NativeDeviceLogits & { readonly data: bigint; readonly width: number });

/** Returns whether logits are in host memory. */
export function isOnHost(matrix: TokenMatrix): matrix is Matrix {
  return typeof matrix.data !== 'bigint';
}

/** The value that a batch has for one of these inputs. */
export function findLogitsInput(batch: Batch, mapper: KeyMapper, name: LogitsInput) {
  return find(batch, mapper.keys(name));
}

/** @throws LossError `ERR_MISSING_INPUT` */
export function needed(batch: Batch, mapper: KeyMapper, name: LogitsInput): { key: string; value: unknown } {
  const found = findLogitsInput(batch, mapper, name);
  if (found) return found;
  throw new LossError('ERR_MISSING_INPUT', {
    key: mapper.keys(name)[0],
    expected: LOGITS_INPUTS[name].expected,
    received: 'a batch without it',
  });
}

/**
 * Reads an input with several numbers for each token, which it does not copy unless they are float64.
 * @throws LossError `ERR_MISSING_INPUT`, `ERR_INVALID_INPUT`, `ERR_SHAPE_MISMATCH`
 */
export function readTokenMatrix(batch: Batch, mapper: KeyMapper, name: LogitsInput, tokens: number): Matrix {
  const { key, value } = needed(batch, mapper, name);
  if (isDeviceColumn(value))
    throw new LossError('ERR_INVALID_INPUT', {
      key,
      expected: 'an array in host memory',
      received: 'memory of a device',
    });
  const { data, dtype } = floatsOf(key, isFloat64Array(value) ? Float32Array.from(value) : value);
  checkAttached(key, data);
  return { data, dtype: DTYPE_CODES[dtype], width: widthOf(key, data.length, tokens) };
}

/**
 * Reads logits, or probabilities, of all tokens, which may be in memory of the device that computes the call.
 * @param device the index of that device; undefined for the CPU.
 * @throws LossError as readTokenMatrix() does.
 */
export function readTokenLogits(
  batch: Batch,
  mapper: KeyMapper,
  name: LogitsInput,
  tokens: number,
  device: number | undefined,
): TokenMatrix {
  const { key, value } = needed(batch, mapper, name);
  if (!isDeviceColumn(value)) return readTokenMatrix(batch, mapper, name, tokens);
  const dimensions: readonly number[] = Array.isArray(value.shape) ? value.shape : [];
  const size = dimensions.length > 0 ? dimensions.reduce((product, n) => product * n, 1) : Number.NaN;
  const width = widthOf(key, size, tokens);
  const memory = readDeviceLogits(key, value, { rows: tokens, vocabulary: width }, width, device);
  return { ...memory, data: memory.data as bigint, width };
}

/**
 * Reads several token ids for each token.
 * @throws LossError `ERR_MISSING_INPUT`, `ERR_INVALID_INPUT`, `ERR_SHAPE_MISMATCH`
 */
export function* readTokenIds(
  batch: Batch,
  mapper: KeyMapper,
  name: LogitsInput,
  tokens: number,
): Steps<{ ids: Int32Array; width: number }> {
  const { key, value } = needed(batch, mapper, name);
  let width = 0;
  const ids = yield* copyIntegers(key, value, -(2 ** 31), (length) => {
    width = widthOf(key, length, tokens);
  });
  return { ids, width };
}

function widthOf(key: string, length: number, tokens: number): number {
  if (tokens === 0 && length === 0) return 1;
  if (length > 0 && length % tokens === 0) return length / tokens;
  throw new LossError('ERR_SHAPE_MISMATCH', {
    key,
    expected: `a multiple of ${tokens} values, the same number for each token`,
    received: String(length),
  });
}

/**
 * Checks the ids of the tokens that count.
 * @param isCounted one number per token, not 0 for those that count.
 * @param least the least id that is allowed.
 */
export function* checkIds(
  key: string,
  ids: Int32Array,
  width: number,
  { isCounted, vocabulary, least }: { isCounted: ArrayLike<number>; vocabulary: number; least: number },
): Steps<void> {
  yield* inSlices(isCounted.length, (begin, end) => {
    for (let i = begin * width; i < end * width; i++) {
      const id = ids[i]!;
      if ((id >= least && id < vocabulary) || isCounted[Math.floor(i / width)] === 0) continue;
      throw new LossError('ERR_INVALID_INPUT', {
        key,
        index: i,
        expected: `a token id from 0 to ${vocabulary - 1}${least < 0 ? ', or −1 for none' : ''}`,
        received: String(id),
      });
    }
  });
}
