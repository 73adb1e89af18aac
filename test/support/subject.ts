/**
 * Policy losses, KL functions and entropy losses with their references: a subject has the calls of the library's function
 * for a whole batch, and the formula and results of the reference. The functions at the end convert between the reference's batches and the library's.
 */
import type { Batch, DeviceBatch } from '../../lib/index.js';
import { FLOAT_COLUMNS, type Formula } from '../reference/batch.js';
import {
  type Args,
  type Evaluate,
  formulas,
  type ReferenceBatch,
  type ReferenceResult,
  referenceEntropyLosses,
  referenceKl,
  referencePolicyLosses,
  referenceRewardLosses,
  referenceValueLosses,
} from '../reference/index.js';
import { type Countable, countable, type Family, type Wanted } from './countable.js';

export type { Family } from './countable.js';
export interface Computed {
  loss: number;
  metrics: Record<string, number>;
  grad: Float32Array;
}

/** Returns a result whose metrics include what the loss remembers, under the names of the references. */
export function withState<T extends { metrics: Readonly<Record<string, number>> }>(
  computed: T & { state?: Readonly<Record<string, number>> },
): T {
  const state = Object.entries(computed.state ?? {}).map(([option, value]) => [`state/${option}`, value]);
  return { ...computed, metrics: { ...computed.metrics, ...Object.fromEntries(state) } };
}

export interface Subject {
  family: Family;
  name: string;
  args: Args;
  formula: Formula;
  sync(batch: Batch | DeviceBatch, grad?: Float32Array): Computed;
  async(batch: Batch | DeviceBatch, options?: Wanted): Promise<Computed>;
  reference(batch: ReferenceBatch): ReferenceResult;
}

/** The losses that read inputs that stay in host memory. */
export const HOST_ONLY: readonly string[] = [
  'slime/value',
  'miles/value',
  'easyr1/value',
  'trl/kto',
  'trl/orpo',
  'trl/tpo',
  'openrlhf/kto',
  'llamafactory/kto',
];

export const LOSS_FAMILIES: readonly Family[] = ['policy', 'kl', 'entropy', 'value', 'reward'];
export const isLossFamily = (family: string): family is Family => LOSS_FAMILIES.includes(family as Family);

/** Returns what evaluates a loss in float64. */
export function evaluateOf(family: Family, name: string): Evaluate {
  if (family === 'kl') return referenceKl[name]!.loss;
  const others = {
    policy: referencePolicyLosses,
    entropy: referenceEntropyLosses,
    value: referenceValueLosses,
    reward: referenceRewardLosses,
  };
  return others[family][name]!;
}

export function subject(family: Family, name: string, args: Args): Subject {
  const on = countable(family, name, args);
  return {
    family,
    name,
    args,
    formula: formulas[family][name]!,
    sync: (batch, grad) => withGrad(on.sync(batch, undefined, { grad: grad ?? true })),
    async: async (batch, options) => withGrad(await on.async(batch, undefined, options)),
    reference: (batch) => evaluateOf(family, name)(args, batch),
  };
}

/** The gradient of a loss of rewards has one value per row. */
const withGrad = ({ gradRewards, ...result }: Awaited<ReturnType<Countable['async']>>): Computed =>
  ({ ...result, ...(gradRewards && { grad: gradRewards }) }) as Computed;

export const ROW_COLUMNS = [
  'rewards',
  'vStar',
  'probability',
  'logZ',
  'sampleMask',
  'margin',
  'lossMaskSum',
  'label',
  'refLogps',
  'probDesirable',
  'chosen',
  'klRefLogps',
  'klEstimate',
] as const;
const FLAGS: readonly string[] = ['sampleMask', 'label', 'chosen'];
/** The columns of mismatched rows, which are never packed. */
const OTHER_ROWS = ['klLogprob', 'klRefLogprob'] as const;

/** Returns a batch in the library's padded layout, in typed arrays that the library reads without a copy. */
export function paddedBatch(batch: ReferenceBatch): Batch & Record<string, unknown> {
  return { shape: [batch.rows, batch.columns], ...typedColumns(batch, (column) => column) };
}

/** Returns a batch in the library's packed layout: rows end to end, without padding. */
export function packedBatch(batch: ReferenceBatch): Batch & Record<string, unknown> {
  const cuSeqlens = new Int32Array(batch.rows + 1);
  for (let b = 0; b < batch.rows; b++) cuSeqlens[b + 1] = cuSeqlens[b]! + rowLength(batch, b);
  return { cuSeqlens, ...typedColumns(batch, (column) => pack(batch, column)) };
}

function typedColumns(batch: ReferenceBatch, layout: (column: ArrayLike<number>) => ArrayLike<number>) {
  const columns: Record<string, unknown> = { actionMask: new Uint8Array(layout(batch.actionMask)) };
  for (const name of FLOAT_COLUMNS) {
    const column = batch[name];
    if (column) columns[name] = new Float32Array(layout(column));
  }
  for (const name of ['clipCovKeys', 'answerMask'] as const)
    if (batch[name]) columns[name] = Float32Array.from(layout(batch[name]));
  if (batch.expertMask) columns.expertMask = Uint8Array.from(batch.expertMask);
  for (const name of ROW_COLUMNS)
    if (batch[name]) columns[name] = (FLAGS.includes(name) ? Uint8Array : Float64Array).from(batch[name]);
  for (const name of OTHER_ROWS) if (batch[name]) columns[name] = Float32Array.from(batch[name]);
  if (batch.klActionMask) columns.klActionMask = Uint8Array.from(batch.klActionMask);
  if (batch.attentionMask) columns.attentionMask = Uint8Array.from(layout(batch.attentionMask));
  if (batch.rolloutIds) columns.rolloutIds = Array.from(batch.rolloutIds);
  if (batch.groupIds) columns.groupIds = Array.from(batch.groupIds);
  if (batch.step) columns.step = Array.from(batch.step);
  return columns;
}

const rowLength = (batch: ReferenceBatch, b: number) => batch.rowLengths?.[b] ?? batch.columns;

/** Returns the values of a column that belong to rows, end to end. */
export function pack(batch: ReferenceBatch, column: ArrayLike<number>): Float64Array {
  let tokens = 0;
  for (let b = 0; b < batch.rows; b++) tokens += rowLength(batch, b);
  const packed = new Float64Array(tokens);
  let at = 0;
  for (let b = 0; b < batch.rows; b++) {
    const first = b * batch.columns;
    const length = rowLength(batch, b);
    for (let t = 0; t < length; t++) packed[at++] = column[first + t]!;
  }
  return packed;
}

/** Returns a packed result in the padded layout B×T (rows × columns), with 0 beyond the end of each row. */
export function unpack(batch: ReferenceBatch, packed: ArrayLike<number>): Float32Array {
  const out = new Float32Array(batch.rows * batch.columns);
  let at = 0;
  for (let b = 0; b < batch.rows; b++) {
    for (let t = 0; t < rowLength(batch, b); t++) out[b * batch.columns + t] = packed[at++]!;
  }
  return out;
}
