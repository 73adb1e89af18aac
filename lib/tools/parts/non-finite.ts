// Finds the row that makes a loss or its gradient NaN or infinite.
import type { ComputedAdvantages } from '../../call/computed-advantages.js';
import { COLUMNS } from '../rollouts/columns.js';
import type { Place, RolloutColumn, RolloutPart } from '../rollouts/index.js';
import type { Subject, SubjectOptions, SubjectResult } from './subject.js';

/** A row whose loss or gradient is not finite. */
export interface NonFiniteRow {
  place: Place;
  /**
   * The row's first value that is not finite, among those of its unmasked tokens and its own; absent if all are finite. A
   * value of the row itself has no index.
   */
  value?: { column: RolloutColumn; index?: number; number: number };
}

/**
 * Returns the first row of a part whose loss or gradient is not finite; undefined if that is true of several rows
 * together, but of none alone. Computes the part again about log2(rows) times, each time with other rows masked.
 * @param advantages the advantages that were computed for the part, if any.
 * @param options the options with which the part was computed.
 */
export async function firstNonFiniteRow(
  part: RolloutPart,
  subject: Subject,
  advantages: ComputedAdvantages | undefined,
  options: SubjectOptions,
): Promise<NonFiniteRow | undefined> {
  const { batch, rows, places } = part;
  if (subject.variable === 'rewards') return firstNonFiniteReward(part, subject);
  const { cuSeqlens: starts, actionMask } = batch;
  const grad = new Float32Array(options.grad.length);
  const areFinite = async (from: number, to: number) => {
    const mask = new Uint8Array(actionMask.length);
    mask.set(actionMask.subarray(starts[from], starts[to]), starts[from]);
    return isFiniteResult(
      await subject.compute({ ...batch, actionMask: mask }, advantages, { ...options, grad }),
    );
  };
  let [from, to] = [0, rows];
  while (to - from > 1) {
    const middle = (from + to) >>> 1;
    if (await areFinite(from, middle)) from = middle;
    else to = middle;
  }
  if (rows === 0 || (await areFinite(from, to))) return undefined;
  const value = firstNonFiniteValue(part, subject, from);
  return { place: places[from]!, ...(value && { value }) };
}

// A mask does not take rows out of a loss of rewards.
function firstNonFiniteReward(part: RolloutPart, subject: Subject): NonFiniteRow | undefined {
  for (const [row, place] of part.places.entries()) {
    const value = firstNonFiniteValue(part, subject, row);
    if (value) return { place, value };
  }
  return undefined;
}

function isFiniteResult({ loss, grad, gradEntropy }: SubjectResult): boolean {
  return (
    Number.isFinite(loss) && [grad, gradEntropy].every((values) => values?.every(Number.isFinite) ?? true)
  );
}

function firstNonFiniteValue(
  { batch }: RolloutPart,
  { columns, variable }: Subject,
  row: number,
): NonFiniteRow['value'] | undefined {
  const [start, end] = [batch.cuSeqlens[row]!, batch.cuSeqlens[row + 1]!];
  for (const column of variable === 'logprob' ? (['logprobs', ...columns] as const) : columns) {
    const { key, per } = COLUMNS[column];
    const values = batch[key] as Float32Array | undefined;
    if (values && per === 'row') {
      if (!Number.isFinite(values[row])) return { column, number: values[row]! };
      continue;
    }
    for (let t = start; values && t < end; t++)
      if (batch.actionMask[t] !== 0 && !Number.isFinite(values[t]))
        return { column, index: t - start, number: values[t]! };
  }
  return undefined;
}
