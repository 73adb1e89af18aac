/** Draws logits for batches, and computes losses from them in three calls. */
import {
  type Logits,
  logprobsBackwardSync,
  logprobsSync,
  Objective,
  type PolicyLossFn,
} from '../../lib/index.js';
import { without } from './batch-keys.js';
import { EDGE_LENGTHS } from './draw.js';
import { copyOf, dataOf, type LogitsDType, stored } from './logits.js';
import { generator } from './random.js';

export type Fn = PolicyLossFn<Partial<Record<string, number>>> | Objective;

export const V = 37;
export const SPEC = { ...EDGE_LENGTHS, rows: 6, columns: 70, rowLengths: [1, 31, 70, 33, 64, 2] };

export interface Made {
  dtype: LogitsDType;
  /** The batch without the columns that come from logits. */
  columns: Record<string, unknown>;
  mask: Uint8Array;
  logits: ReturnType<typeof stored>['logits'];
  targets: Int32Array;
}

/** Adds logits to a batch. The logits and targets of tokens that are not read are such that they must not be read. */
export function withLogits(
  batch: object,
  dtype: LogitsDType = 'float32',
  mask = (batch as { actionMask: Uint8Array }).actionMask,
): Made {
  const { normal, integer } = generator(77);
  const columns = without(batch, 'logprob', 'entropy') as Record<string, unknown>;
  const numbers = Array.from({ length: mask.length * V }, (_, i) =>
    mask[Math.floor(i / V)] ? 3 * normal() : Number.NaN,
  );
  const targets = Int32Array.from(mask, (kept) => (kept ? integer(0, V - 1) : -7));
  return { dtype, columns, mask, logits: stored(numbers, dtype).logits, targets };
}

/**
 * Adds every input that a loss may read to a batch of six rows: weights, pairs in another order, sums of the reference, and
 * prompts in attentionMask. `read` is 1 for the tokens whose logits are read.
 */
export function withEveryInput(fn: PolicyLossFn<object>, batch: object): { given: object; read: Uint8Array } {
  const { optional, rowColumns, rowsOfPair, weights } = fn.reads;
  const { actionMask } = batch as { actionMask: Uint8Array };
  const { uniform } = generator(78);
  const attentionMask = actionMask.map(() => (uniform() < 0.8 ? 1 : 0));
  const readsPrompts = fn.selectKeys.includes('attention_mask');
  const pairIds = rowsOfPair === 3 ? [7, 9, 7, 9, 9, 7] : [7, 8, 8, 9, 7, 9];
  const given = {
    ...batch,
    attentionMask,
    ...(!weights.refused && { tokenWeights: Float32Array.from(actionMask, () => 2 * uniform()) }),
    ...(rowColumns.includes('pair_ids') && { pairIds }),
    ...(optional.includes('ref_logps') && { refLogps: [-9, -20, -3.5, -40, -1, -12] }),
  };
  const read = readsPrompts ? actionMask.map((flag, i) => flag || attentionMask[i]!) : actionMask;
  return { given, read };
}

const readsEntropy = (fn: Fn) =>
  fn instanceof Objective
    ? fn.entropyLossFn.entropyCoef !== 0 || fn.lossFn.reads.columns.includes('entropy')
    : fn.reads.columns.includes('entropy') && !fn.reads.optional.includes('entropy');

/** Whether gradEntropy is the gradient with respect to entropy_other, which is a constant for the logits. */
export const isByOther = (fn: Fn): boolean =>
  !(fn instanceof Objective) && fn.reads.columns.includes('entropy_other');

const dependsOnEntropy = (fn: Fn) =>
  fn instanceof Objective ? readsEntropy(fn) : fn.dependsOnEntropy && !isByOther(fn);

/** Computes a loss from logits in three calls. */
export function inThreeCalls(fn: Fn, { columns, mask, logits, targets }: Made, more: object = {}) {
  const shape = [mask.length, V] as const;
  const options = { ...more, shape, targets: targets.map((target, i) => (mask[i] ? target : -100)) };
  const { logprob, logsumexp, entropy } = logprobsSync(logits, { ...options, entropy: true });
  const batch = { ...columns, logprob, ...(readsEntropy(fn) && { entropy }) };
  const result = fn.computeSync(batch, { grad: true, gradEntropy: true });
  const gradLogits = logprobsBackwardSync(logits, {
    ...options,
    logsumexp,
    gradLogprob: result.grad!,
    ...(dependsOnEntropy(fn) && { entropy: entropy!, gradEntropy: result.gradEntropy! }),
    out: copyOf(logits),
  });
  return { ...result, logprob, gradLogits };
}

/** Divides logits into blocks of a number of rows, in memory of their own. */
export function inBlocks(logits: Made['logits'], rows: number): Logits[] {
  const data = dataOf(logits);
  const blocks: Logits[] = [];
  for (let at = 0; at < data.length; at += rows * V) {
    const part = data.slice(at, at + rows * V);
    blocks.push('dtype' in logits ? { ...logits, data: part as Uint16Array } : (part as Float32Array));
  }
  return blocks;
}
