// The inputs on which all contenders are timed. The numbers are pseudo-random with a fixed seed, so every run uses the
// same ones.
import type { Batch, HalfColumn } from '../../lib/index.js';
import { generator } from '../../test/support/random.js';

/** The shape of a batch: the number of rows, and the number of tokens in each row. */
export type Shape = readonly [rows: number, columns: number];

/** The float columns that losses read. The keys are their names in a batch, and the values are Trinity-RFT's names. */
export const FLOAT_COLUMNS = {
  logprob: 'logprob',
  oldLogprob: 'old_logprob',
  refLogprob: 'ref_logprob',
  advantages: 'advantages',
  entropy: 'entropy',
  rolloutLogprob: 'rollout_logprob',
  proxLogprob: 'prox_logprob',
  teacherLogprob: 'teacher_logprob',
  oldEntropy: 'old_entropy',
  clipCovKeys: 'clip_cov_keys',
  values: 'values',
  oldValues: 'old_values',
  returns: 'returns',
  entropyOther: 'entropy_other',
} as const;

/** The numbers per row that losses read, in the same form. `chosen` has one per pair of rows. */
export const ROW_INPUTS = {
  rewards: 'rewards',
  vStar: 'v_star',
  probability: 'probability',
  logZ: 'log_z',
  sampleMask: 'sample_mask',
  margin: 'margin',
  lossMaskSum: 'loss_mask_sum',
  rolloutIds: 'rollout_ids',
  groupIds: 'group_ids',
  label: 'label',
  klEstimate: 'kl_estimate',
  chosen: 'chosen',
} as const;

/** The names of the inputs per row that are not floats. */
type Integers = 'sampleMask' | 'rolloutIds' | 'groupIds' | 'label' | 'chosen';

/** A batch with every input that losses and advantage functions can read. */
export interface Inputs
  extends Record<keyof typeof FLOAT_COLUMNS, Float32Array>,
    Record<Exclude<keyof typeof ROW_INPUTS, Integers>, Float64Array> {
  [key: string]: unknown;
  shape: Shape;
  actionMask: Uint8Array;
  attentionMask: Uint8Array;
  sampleMask: Uint8Array;
  rolloutIds: Int32Array;
  expertMask: Uint8Array;
  label: Uint8Array;
  chosen: Uint8Array;
  step: number;
  groupIds: Int32Array;
  runIds: Int32Array;
  rewardBaselines: Float64Array;
  tokenLevelRewards: Float32Array;
}

const FLOAT_KEYS = Object.keys(FLOAT_COLUMNS) as (keyof typeof FLOAT_COLUMNS)[];

/** The number of rows in each group. */
export const GROUP_SIZE = 8;

/**
 * Makes a batch of random inputs. No token is masked, and every second row is marked as an expert's. For about one
 * token in five, the ratio is outside PPO's clip range. The mean advantage is not 0, because otherwise a loss could be
 * a small difference of large numbers, which has a large rounding error. Some rows have a positive mean advantage and
 * others a negative one. The distance of proxLogprob from oldLogprob is so large that m2po drops tokens. One value in five
 * is farther than 0.5 from the old one.
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
  const ofRows = () => Float64Array.from({ length: rows }, random);
  const shift = ofRows();
  const inputs = {
    shape,
    logprob: near(),
    oldLogprob,
    refLogprob: near(),
    advantages: column((i) => 4 * random() + 2 * shift[Math.floor(i / columns)]! - 2.6),
    entropy: column(() => 2 * random()),
    rolloutLogprob: near(),
    proxLogprob: column((i) => oldLogprob[i]! + 0.8 * (random() - 0.65)),
    teacherLogprob: near(),
    oldEntropy: column(() => 2 * random()),
    clipCovKeys: column(random),
    actionMask: new Uint8Array(tokens).fill(1),
    expertMask: Uint8Array.from({ length: rows }, (_, b) => b % 2),
    step: 1,
    rewards: ofRows(),
    vStar: ofRows(),
    probability: ofRows(),
    logZ: ofRows(),
    groupIds: Int32Array.from({ length: rows }, (_, b) => Math.floor(b / GROUP_SIZE)),
    runIds: Int32Array.from({ length: rows }, (_, b) => b >> 1),
    rewardBaselines: new Float64Array(rows),
    tokenLevelRewards: column(() => random() - 0.5),
    values: column(() => random() - 0.5),
    sumPiSquared: column((i) => Math.exp(2 * oldLogprob[i]!) + 0.1),
  };
  const { values } = inputs;
  return {
    ...inputs,
    oldValues: column((i) => values[i]! + 1.25 * (random() - 0.5)),
    returns: column((i) => values[i]! + 3 * (random() - 0.5)),
    attentionMask: new Uint8Array(tokens).fill(1),
    sampleMask: new Uint8Array(rows).fill(1),
    margin: Float64Array.from({ length: rows }, (_, b) => (b >> 1) / rows),
    lossMaskSum: new Float64Array(rows).fill(columns),
    rolloutIds: Int32Array.from({ length: rows }, (_, b) => b >> 1),
    entropyOther: column(() => -2 * random()),
    label: Uint8Array.from({ length: rows }, (_, b) => Number(b % 3 !== 0)),
    klEstimate: new Float64Array(rows).fill(0.5),
    chosen: Uint8Array.from({ length: rows / 2 }, (_, pair) => pair % 2),
  };
}

/**
 * Adds special cases to the inputs, for checks of results. About one token in eight is masked, and one pair of rows in
 * four does not count. In every second pair of rows, about one token in sixteen has so high a ratio that PPO's dual clip
 * applies if the advantage is negative. The other rows stay close to the old policy, because losses that multiply a row's
 * ratios could be 0 otherwise.
 */
export function withCorners(inputs: Inputs): Inputs {
  const [, columns] = inputs.shape;
  const random = generator(1).uniform;
  return {
    ...inputs,
    actionMask: inputs.actionMask.map(() => (random() < 1 / 8 ? 0 : 1)),
    sampleMask: inputs.sampleMask.map((_, b) => Number((b >> 1) % 4 !== 1)),
    oldLogprob: inputs.oldLogprob.map((x, i) => {
      const isFar = Math.floor(i / (2 * columns)) % 2 === 1;
      return isFar && random() < 1 / 16 ? x - 1.5 : x;
    }),
  };
}

/**
 * Masks turns: about half of the tokens, in runs of 64 to 512 tokens, as in conversations of several turns and with
 * calls of tools.
 */
export function withTurns(inputs: Inputs): Inputs {
  const { integer } = generator(1);
  const actionMask = new Uint8Array(inputs.actionMask.length);
  for (let at = 0, unmasked = 1; at < actionMask.length; unmasked = 1 - unmasked) {
    const end = at + integer(64, 512);
    actionMask.fill(unmasked, at, end);
    at = end;
  }
  return { ...inputs, actionMask };
}

/** Returns the batch with its float columns converted to a 16-bit dtype. */
export function inHalf(inputs: Inputs, dtype: HalfColumn['dtype']): Batch {
  const batch: Batch & Record<string, unknown> = { ...inputs };
  const convert = dtype === 'bfloat16' ? toBfloat16 : toFloat16;
  for (const key of FLOAT_KEYS) batch[key] = { data: convert(inputs[key]), dtype };
  return batch;
}

/** Rounds numbers to bfloat16. */
export function toBfloat16(values: Float32Array): Uint16Array {
  const bits = new Uint32Array(values.buffer, values.byteOffset, values.length);
  return Uint16Array.from(bits, (x) => (x + 0x7fff + ((x >>> 16) & 1)) >>> 16);
}

// Converts numbers to float16. Numbers below float16's normal range become 0.
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
