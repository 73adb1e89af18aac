// The inputs on which the form of a loss of logits depends, and the sums of parts of a batch, which tell the form.
import { native } from '../base/native.js';
import type { Batch } from '../batch/batch.js';
import type { InputName } from '../batch/columns.js';
import { MAX_PARTS } from '../batch/counts.js';
import type { KeyMapper } from '../batch/key-mapper.js';
import { checkParts, notAPart } from '../call/part-sums.js';
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

/** How many numbers of a part precede the sums. */
const HEAD = 2;

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

/**
 * Returns what joinParts() got.
 * @throws LossError `ERR_INVALID_INPUT` if a part is not one that joinParts() returned, or of a batch with other inputs.
 */
export function splitParts(parts: readonly ArrayLike<number>[]): {
  has: HasInput;
  width: number;
  sums: Float64Array[];
} {
  const length = native.partLength;
  const blocksOf = (numbers: number) => (numbers - HEAD) / length;
  const all = checkParts(parts, (numbers) => {
    const blocks = blocksOf(numbers);
    return Number.isInteger(blocks) && blocks >= 1 && blocks <= MAX_PARTS;
  });
  const bits = all[0]![0]!;
  const width = all[0]![1]!;
  for (const [index, part] of all.entries())
    if (part[0] !== bits || part[1] !== width) throw notAPart(parts[index], index);
  const sums = all.flatMap((part) =>
    Array.from({ length: blocksOf(part.length) }, (_, i) =>
      part.slice(HEAD + i * length, HEAD + (i + 1) * length),
    ),
  );
  const present: readonly string[] = FORM_INPUTS.filter((_, i) => Math.floor(bits / 2 ** i) % 2 === 1);
  return { has: (name) => present.includes(name), width, sums };
}
