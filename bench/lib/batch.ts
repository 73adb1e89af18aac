// The inputs that everybody is timed on: drawn from a fixed sequence, so that every run has the same work, and views of
// them as native calls take them.
import type { NativeBatch } from '../../binding.js';
import type { Batch } from '../../lib/core/batch.js';
import { BatchReader, type ColumnName, type InputName } from '../../lib/core/batch-reader.js';
import { KeyMapper } from '../../lib/core/key-mapper.js';
import type { HalfColumn } from '../../lib/index.js';
import { generator } from '../../test/support/random.js';

/** B rows of T tokens. */
export type Shape = readonly [rows: number, columns: number];

/** A batch with all that losses and advantage functions read. */
export interface Inputs {
  [key: string]: unknown;
  shape: Shape;
  logprob: Float32Array;
  oldLogprob: Float32Array;
  refLogprob: Float32Array;
  advantages: Float32Array;
  entropy: Float32Array;
  actionMask: Uint8Array;
  expertMask: Uint8Array;
  step: number;
  rewards: Float64Array;
  groupIds: Int32Array;
  runIds: Int32Array;
  rewardBaselines: Float64Array;
  tokenLevelRewards: Float32Array;
  values: Float32Array;
  teacherLogprob: Float32Array;
}

/** The float columns of losses, by their names in a batch and in Trinity-RFT. */
export const FLOAT_COLUMNS = {
  logprob: 'logprob',
  oldLogprob: 'old_logprob',
  refLogprob: 'ref_logprob',
  advantages: 'advantages',
  entropy: 'entropy',
} as const;

/**
 * No token masked; every second row an expert's. About one ratio in five is outside PPO's clip range, and the mean
 * advantage is not 0, so that the losses are no differences of large numbers and can be compared.
 */
export function makeInputs(shape: Shape): Inputs {
  const [rows, columns] = shape;
  const tokens = rows * columns;
  const random = generator(1).uniform;
  const column = (value: (i: number) => number) => {
    const out = new Float32Array(tokens);
    for (let i = 0; i < tokens; i++) out[i] = value(i);
    return out;
  };
  const oldLogprob = column(() => -3 * random() - 0.3);
  const near = () => column((i) => oldLogprob[i]! + 0.5 * (random() - 0.5));
  return {
    shape,
    logprob: near(),
    oldLogprob,
    refLogprob: near(),
    advantages: column(() => 4 * random() - 1.6),
    entropy: column(() => 2 * random()),
    actionMask: new Uint8Array(tokens).fill(1),
    expertMask: Uint8Array.from({ length: rows }, (_, b) => b % 2),
    step: 1,
    rewards: Float64Array.from({ length: rows }, random),
    groupIds: Int32Array.from({ length: rows }, (_, b) => b >> 3),
    runIds: Int32Array.from({ length: rows }, (_, b) => b >> 1),
    rewardBaselines: new Float64Array(rows),
    tokenLevelRewards: column(() => random() - 0.5),
    values: column(() => random() - 0.5),
    teacherLogprob: near(),
  };
}

/**
 * The same as only a check needs it: one token in eight masked, and one in sixteen with so high a ratio that PPO's dual
 * clip has a say.
 */
export function withCorners(inputs: Inputs): Inputs {
  const random = generator(1).uniform;
  return {
    ...inputs,
    actionMask: inputs.actionMask.map(() => (random() < 1 / 8 ? 0 : 1)),
    oldLogprob: inputs.oldLogprob.map((x) => (random() < 1 / 16 ? x - 1.5 : x)),
  };
}

/** The same under masks that end early: rows of half the length on average, from one token to all. */
export function withPrefixMasks(inputs: Inputs): { inputs: Inputs; lengths: Int32Array } {
  const [rows, columns] = inputs.shape;
  const random = generator(1).uniform;
  const lengths = Int32Array.from({ length: rows }, () => 1 + Math.floor(random() * columns));
  const actionMask = new Uint8Array(rows * columns);
  lengths.forEach((length, b) => {
    actionMask.fill(1, b * columns, b * columns + length);
  });
  return { inputs: { ...inputs, actionMask }, lengths };
}

/** A batch of the same values in packed rows of these lengths. */
export function packed(inputs: Inputs, lengths: Int32Array): Batch {
  const [, columns] = inputs.shape;
  const cuSeqlens = new Int32Array(lengths.length + 1);
  lengths.forEach((length, b) => {
    cuSeqlens[b + 1] = cuSeqlens[b]! + length;
  });
  const tokens = cuSeqlens.at(-1)!;
  const batch: Batch = {
    cuSeqlens,
    actionMask: new Uint8Array(tokens).fill(1),
    expertMask: inputs.expertMask,
    step: inputs.step,
  };
  for (const name of Object.keys(FLOAT_COLUMNS) as (keyof typeof FLOAT_COLUMNS)[]) {
    const column = new Float32Array(tokens);
    lengths.forEach((length, b) => {
      column.set(inputs[name].subarray(b * columns, b * columns + length), cuSeqlens[b]);
    });
    batch[name] = column;
  }
  return batch;
}

/** The same with columns of 16 bits. */
export function inHalf(inputs: Inputs, dtype: HalfColumn['dtype']): Batch {
  const batch: Batch = { ...inputs };
  const convert = dtype === 'bfloat16' ? toBfloat16 : toFloat16;
  for (const name of Object.keys(FLOAT_COLUMNS) as (keyof typeof FLOAT_COLUMNS)[])
    batch[name] = { data: convert(inputs[name]), dtype };
  return batch;
}

function toBfloat16(values: Float32Array): Uint16Array {
  const bits = new Uint32Array(values.buffer, values.byteOffset, values.length);
  return Uint16Array.from(bits, (x) => (x + 0x7fff + ((x >>> 16) & 1)) >>> 16);
}

// Of numbers that float16 has in its normal range; smaller ones become 0.
function toFloat16(values: Float32Array): Uint16Array {
  const bits = new Uint32Array(values.buffer, values.byteOffset, values.length);
  return Uint16Array.from(bits, (x) => {
    const sign = (x >>> 16) & 0x8000;
    const exponent = ((x >>> 23) & 255) - 112;
    if (exponent <= 0) return sign;
    const rest = (exponent << 23) | (x & 0x7fffff);
    return sign | ((rest + 0xfff + ((rest >>> 13) & 1)) >>> 13);
  });
}

const TRINITY = KeyMapper.get('verl');

/** A batch as native calls take it, with these columns of it and no others. */
export function nativeBatch(batch: Batch, columns: readonly ColumnName[], expertMask: boolean): NativeBatch {
  const masks: InputName[] = expertMask ? ['action_mask', 'expert_mask'] : ['action_mask'];
  return new BatchReader(TRINITY, { inputs: [...columns, ...masks] }).readHost(batch).native;
}
