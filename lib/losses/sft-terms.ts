// What the losses of fine-tuning from logits share: which tokens have labels, and what labels cost.
import { integer, number } from '../base/option.js';
import type { Expression, ProgramSymbols } from '../program/expression.js';
import { atTarget, perItem } from './distillation-terms.js';
import type { Entries, EntrySymbols } from './entries.js';
import type { MaskInputs } from './logits-loss-fn.js';

/** The target of a token without a label. */
export const NO_LABEL = -100;

/** Leaves out the tokens without a label. */
export function maskUnlabelled(mask: Uint8Array, _options: unknown, { targets }: MaskInputs): undefined {
  for (const [i, target] of targets().entries()) if (target === NO_LABEL) mask[i] = 0;
}

/** Returns 1 for each token with a label, and −1 for the others. */
export function marksOfLabels({ targets }: MaskInputs): Float32Array {
  return Float32Array.from(targets(), (target) => (target === NO_LABEL ? -1 : 1));
}

export const NUMERICS = {
  range: 'any logits; a logit of −Infinity has probability 0',
  outside: 'the loss is infinite where the logit of a label is −Infinity',
};

/** The inputs that all these losses read. */
export const LABELS = ['targets', 'action_mask'] as const;

/** The option of the losses that are divided by the number of labels in all micro-batches. */
export const ITEMS = {
  numItemsInBatch: integer({
    atLeast: 1,
    typical: [1, 200],
    help: 'the loss is divided by this, the number of labels in all micro-batches; by those of the batch if absent',
  }),
};

/** The option that mixes labels with the uniform distribution. */
export const SMOOTHING = {
  atLeast: 0,
  atMost: 1,
  typical: [0, 0.3],
  help: 'ε: the share of the labels that is spread over the vocabulary',
} as const;
export const labelSmoothing = number({ ...SMOOTHING, default: 0 });

/** The entries of a loss that reads the log-probabilities of labels alone. */
export const LABEL_ALONE = { over: 'none', target: true } as const satisfies Entries;
/** Those of one that reads all entries. */
export const ALL = { over: 'vocabulary', target: true } as const satisfies Entries;

/** Returns the weights of losses that are divided by num_items_in_batch. */
export const byItems = (
  symbols: ProgramSymbols,
  { numItemsInBatch }: { readonly numItemsInBatch?: number | undefined },
): [Expression] => [perItem(symbols, numItemsInBatch)];

/** Returns the NLL of a label with this log-probability times its probability, which is a constant. */
export function dynamic({ exp, sg }: ProgramSymbols, logprob: Expression): Expression {
  return sg(exp(logprob)).mul(logprob).neg();
}

/** Returns the NLL of the label where it is smoothed. */
export function smoothed(symbols: EntrySymbols, s: Expression, epsilon: number): Expression {
  const nll = atTarget(symbols, s).neg();
  return epsilon === 0 ? nll : nll.mul(1 - epsilon).sub(symbols.rowMean(s).mul(epsilon));
}

/** Returns whether the label has the largest logit, the first of equal ones. */
export function isRight(symbols: EntrySymbols, logit: Expression): Expression {
  const isLargest = logit.ge(symbols.rowMax(logit));
  return atTarget(symbols, isLargest.mul(symbols.prefixSum(isLargest, 1).eq(1)));
}
