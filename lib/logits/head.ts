// Reads and checks the output head of a model, its hidden states, and the requests for their gradients.
import { checkApart, fixedLength, isResizable } from '../base/arrays.js';
import { describeValue, LossError } from '../base/errors.js';
import { resultArray } from '../base/result-arrays.js';
import type { TaggedFloats } from '../batch/convert.js';
import { floatsOf, type Logits } from './inputs.js';

/** The hidden states of a batch and the head, as the caller gives them. */
export interface GivenHead {
  hidden: unknown;
  weight: unknown;
  bias: unknown;
}

/** The requests for gradients: true, or the array that receives one. */
export interface WantedGradients {
  gradHidden: unknown;
  gradWeight: unknown;
  gradBias: unknown;
}

/** The hidden states of a batch and the head that turns them into logits. */
export interface Head {
  /** The length of a hidden state. */
  size: number;
  vocabulary: number;
  hidden: TaggedFloats;
  weight: TaggedFloats;
  bias: TaggedFloats | undefined;
}

/** The gradients that are requested. Those of the weight and of the bias are float32, because they are sums over tokens. */
export interface HeadGradients {
  gradHidden?: TaggedFloats;
  gradWeight?: Float32Array;
  gradBias?: Float32Array;
}

/**
 * Reads the head and the hidden states of a number of tokens.
 * @throws LossError `ERR_INVALID_INPUT`, `ERR_SHAPE_MISMATCH`
 */
export function readHead(given: GivenHead, tokens: number): Head {
  const hidden = heldFloats('hidden', given.hidden);
  const weight = heldFloats('weight', given.weight);
  const bias = given.bias == null ? undefined : heldFloats('bias', given.bias);
  const states = hidden.data.length;
  if (tokens === 0 ? states > 0 : states === 0 || states % tokens !== 0)
    throw wrongLength('hidden', `[${tokens}, D], a hidden state for each token`, states);
  // Without tokens, any size will do.
  const size = tokens > 0 ? states / tokens : weight.data.length / (bias?.data.length || 1);
  const vocabulary = size > 0 ? weight.data.length / size : 0;
  if (!Number.isInteger(vocabulary) || (tokens > 0 && vocabulary === 0))
    throw wrongLength('weight', `[V, ${size}], rows with the length of a hidden state`, weight.data.length);
  if (bias && bias.data.length !== vocabulary)
    throw wrongLength('bias', `[${vocabulary}], a number for each row of the weight`, bias.data.length);
  return { size, vocabulary, hidden, weight, bias };
}

/**
 * Returns the memory for the gradients.
 * @throws LossError `ERR_INVALID_INPUT`, `ERR_SHAPE_MISMATCH`, `ERR_OUT_OF_MEMORY`
 */
export function readHeadGradients(wanted: WantedGradients, { hidden, weight, bias }: Head): HeadGradients {
  if (wanted.gradBias && !bias)
    throw new LossError('ERR_INVALID_INPUT', {
      key: 'gradBias',
      expected: 'a batch with bias',
      received: 'one without it',
    });
  const gradHidden = gradientLike('gradHidden', wanted.gradHidden, hidden, ['float32', hidden.dtype]);
  const gradWeight = gradientLike('gradWeight', wanted.gradWeight, weight, ['float32']);
  const gradBias = bias && gradientLike('gradBias', wanted.gradBias, bias, ['float32']);
  const written = { gradHidden: gradHidden?.data, gradWeight: gradWeight?.data, gradBias: gradBias?.data };
  const read = { hidden: hidden.data, weight: weight.data, bias: bias?.data };
  for (const [key, array] of Object.entries(written))
    checkApart(key, array, { ...read, ...written, [key]: undefined });
  return {
    ...(gradHidden && { gradHidden }),
    ...(gradWeight && { gradWeight: gradWeight.data as Float32Array }),
    ...(gradBias && { gradBias: gradBias.data as Float32Array }),
  };
}

function heldFloats(key: string, value: unknown): TaggedFloats {
  const { data, dtype } = floatsOf(key, value);
  return { data: fixedLength(data), dtype };
}

function wrongLength(key: string, expected: string, received: number): LossError {
  return new LossError('ERR_SHAPE_MISMATCH', { key, expected, received: `${received} values` });
}

// Returns the memory for a gradient that has the length of `input`; undefined if it is not wanted.
function gradientLike(
  key: string,
  wanted: unknown,
  input: TaggedFloats,
  dtypes: readonly TaggedFloats['dtype'][],
): TaggedFloats | undefined {
  const { length } = input.data;
  if (wanted == null || wanted === false) return undefined;
  if (wanted === true)
    return { data: resultArray(`a gradient of ${length} values`, length), dtype: 'float32' };
  const given = floatsOf(key, wanted);
  const wrong = (expected: string, received: string) =>
    new LossError('ERR_INVALID_INPUT', { key, expected, received });
  if (!dtypes.includes(given.dtype))
    throw wrong(`dtype ${[...new Set(dtypes)].join(' or ')}`, `dtype ${given.dtype}`);
  if (isResizable(given.data))
    throw wrong('an array whose ArrayBuffer has a fixed length', describeValue(wanted));
  if (given.data.length !== length) throw wrongLength(key, `${length} values`, given.data.length);
  return given;
}

/** Returns what the result of a call has for the gradients: the caller's own arrays, or new ones. */
export function resultOf(gradients: HeadGradients, wanted: WantedGradients): object {
  const { gradHidden, ...sums } = gradients;
  const own = wanted.gradHidden === true ? gradHidden?.data : (wanted.gradHidden as Logits);
  return { ...(gradHidden && { gradHidden: own }), ...sums };
}
