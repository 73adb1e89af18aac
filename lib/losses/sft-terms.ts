// What the losses of supervised fine-tuning from logits share: the labels, and what a label costs.
import { integer } from '../base/option.js';
import { find } from '../batch/batch.js';
import type { Expression, ProgramSymbols } from '../program/expression.js';
import type { Entries, EntrySymbols } from './entries.js';
import type { MaskInputs } from './logits-loss-fn.js';

/** The target of a token that has no label. */
const NO_LABEL = -100;

/** Leaves out the tokens without a label. */
export function maskLabels(mask: Uint8Array, { batch, mapper }: MaskInputs): void {
  const targets = find(batch, mapper.keys('targets'))?.value as ArrayLike<number> | undefined;
  if (targets?.length === mask.length)
    for (let i = 0; i < mask.length; i++) if (targets[i] === NO_LABEL) mask[i] = 0;
}

/** The options of a loss that is divided by the number of labels. */
export const ITEMS = {
  numItemsInBatch: integer({
    atLeast: 1,
    typical: [1, 200],
    help: 'the number of labels in all micro-batches, by which the loss is divided; by default, that of the batch',
  }),
};

/** Returns the weight of a label: 1 / num_items_in_batch. */
export function perItem(
  { tokens, max, constant }: ProgramSymbols,
  { numItemsInBatch }: { numItemsInBatch?: number | undefined },
): Expression {
  return constant(1).div(numItemsInBatch ?? max(tokens, 1));
}

/** The entries of a loss that reads nothing but the log-probabilities of labels. */
export const LABELS = { over: 'student', count: 0, target: true } as const satisfies Entries;

/** What a loss is computed from: the log-probabilities of all entries, or of a list. */
export interface Scores {
  /** The log-probability of each entry. */
  readonly s: Expression;
  /** That of the label. */
  readonly label: Expression;
  readonly logsumexp: Expression;
}

/** Returns the log-probabilities of a list, which ends with the label. */
export function listed({ student, isTarget, rowSum, select, constant }: EntrySymbols): Scores {
  return { s: student, label: rowSum(select(isTarget, student, 0)), logsumexp: constant(0) };
}

/** The NLL of a label, or that of dynamic fine-tuning, which is multiplied by the label's probability. */
export function nll({ exp, sg }: EntrySymbols, label: Expression, isDynamic: boolean): Expression {
  return isDynamic ? sg(exp(label)).mul(label).neg() : label.neg();
}
