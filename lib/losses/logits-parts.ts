// The inputs on which the form of a loss of logits depends, and the sums of parts of a batch, which tell the form.
import { describeValue, LossError } from '../base/errors.js';
import { native } from '../base/native.js';
import type { Batch } from '../batch/batch.js';
import type { InputName } from '../batch/columns.js';
import type { KeyMapper } from '../batch/key-mapper.js';
import type { LogitsInput } from '../logits/loss-inputs.js';

/** Returns whether a batch has an input. */
export type HasInput = (name: LogitsInput | InputName) => boolean;

/** The inputs on which the form of a loss may depend. */
export const FORM_INPUTS = [
  'teacher_topk_ids',
  'teacher_logits',
  'old_logprob',
  'advantages',
  'distill_mask',
  'token_weights',
  'target_probs',
] as const satisfies readonly (LogitsInput | InputName)[];

/** Returns whether a batch has an input. */
export function hasInput(batch: Batch, mapper: KeyMapper, name: LogitsInput | InputName): boolean {
  return mapper
    .keys(name)
    .some((key) => ((batch as Record<string, unknown>)[key] ?? undefined) !== undefined);
}

/** Returns what merge() needs of a part: which inputs the batch has, how many entries each token has, and the sums. */
export function joinParts(
  { batch, mapper }: { readonly batch: Batch; readonly mapper: KeyMapper },
  width: number,
  parts: readonly Float64Array[],
): Float64Array {
  const present = FORM_INPUTS.reduce(
    (bits, name, i) => bits + (hasInput(batch, mapper, name) ? 2 ** i : 0),
    0,
  );
  return Float64Array.from([present, width, ...parts.flatMap((part) => [...part])]);
}

/** Returns what joinParts() got. */
export function splitParts(parts: readonly ArrayLike<number>[]): {
  has: HasInput;
  width: number;
  sums: Float64Array[];
} {
  const length = native.partLength;
  const isPart = (part: ArrayLike<number> | null | undefined) =>
    part !== null && part !== undefined && part.length > 2 && (part.length - 2) % length === 0;
  const all = Array.isArray(parts) ? parts : [];
  const [first] = all;
  const wrong = all.findIndex((part) => !isPart(part) || part[0] !== first[0] || part[1] !== first[1]);
  if (all.length === 0 || wrong >= 0)
    throw new LossError('ERR_INVALID_INPUT', {
      key: 'parts',
      ...(wrong >= 0 && { index: wrong }),
      expected: 'the numbers that compute() returned as part, of batches with the same inputs',
      received: describeValue(all[wrong] ?? parts),
    });
  const sums = all.flatMap((part) =>
    Array.from({ length: (part.length - 2) / length }, (_, i) =>
      Float64Array.from({ length }, (_, j) => part[2 + i * length + j]),
    ),
  );
  const present: readonly string[] = FORM_INPUTS.filter((_, i) => Math.floor(first[0] / 2 ** i) % 2 === 1);
  return { has: (name) => present.includes(name), width: first[1], sums };
}
