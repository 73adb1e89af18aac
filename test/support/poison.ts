/** Replaces the values of masked tokens with values that must not change a result. */
import { FLOAT_COLUMNS } from '../reference/batch.js';
import type { ReferenceBatch } from '../reference/index.js';

export const HOSTILE = [Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, 1e30, -1e30];

/**
 * Replaces the values of masked tokens with `value`. With `keepSigns`, masked advantages keep their signs. This is
 * needed for ppo's metric seq_mask/masked_tokens: as in Trinity, it also counts masked tokens whose advantage is
 * negative.
 */
export function poison(batch: ReferenceBatch, value: number, keepSigns = false): ReferenceBatch {
  const poisoned = { ...batch };
  const { actionMask, attentionMask } = batch;
  for (const name of FLOAT_COLUMNS) {
    const column = batch[name];
    if (column?.length !== actionMask.length) continue; // Absent, or one value per row.
    const out = new Float64Array(column); // much faster than Float64Array.from()
    for (let i = 0; i < out.length; i++) {
      if (actionMask[i] || attentionMask?.[i]) continue;
      if (!keepSigns || name !== 'advantages') out[i] = value;
      else out[i] = out[i]! < 0 ? -Math.abs(Number.isNaN(value) ? 1e30 : value) : Math.abs(value);
    }
    poisoned[name] = out;
  }
  return poisoned;
}
