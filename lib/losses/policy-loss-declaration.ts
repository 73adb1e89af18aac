// What a statement of a policy loss consists of: the types of its options, its declaration, and the properties that depend on
// the options. policy-loss-fn.ts has the class that runs it.
import type { NativeLossSpec } from '../../binding.js';
import type { FunctionDeclaration } from '../base/declaration.js';
import type { LossAggMode } from '../base/options.js';
import type { Steps } from '../base/steps.js';
import type { Batch } from '../batch/batch.js';
import type { ColumnName, LossInput } from '../batch/columns.js';
import type { KeyMapper } from '../batch/key-mapper.js';
import type { CallOptions } from '../call/calls.js';
import type { FormColumns } from '../call/forms.js';
import type { DeviceBatch } from '../device/device-batch.js';
import type { CompiledLoss } from '../program/compile.js';
import type { LossProgram } from '../program/loss-program.js';
import type { LossCorrectionOptions } from './loss-correction.js';

/** Options that every policy loss accepts. */
export interface PolicyLossOptions extends LossCorrectionOptions {
  /** The training framework whose key names a batch may use as well as Trinity-RFT's; 'verl' by default. */
  backend?: string | undefined;
}

/** Options of the policy losses for which the aggregation of the tokens' losses can be chosen. */
export interface AggregatedLossOptions extends PolicyLossOptions {
  /** How the losses of the tokens become one number; 'token-mean' unless the class states another default. */
  lossAggMode?: LossAggMode | null | undefined;
}

/** The declaration of a policy loss, as data. */
export interface PolicyLossDeclaration extends FunctionDeclaration {
  /** True if rows come in pairs of a chosen and a rejected answer, which alternate or which pair_ids finds. */
  readonly pairs?: true;
  /** True if the loss of a row, or of a group of rows, is not a sum of losses of its tokens. */
  readonly ofRows?: true;
  /**
   * True if the gradient treats a part of the loss that depends on logprob as constant. It then differs from the loss's
   * derivative.
   */
  readonly stopsGradient?: true;
  /** Inputs that a batch may lack. Without `old_logprob`, the old policy is the current one. */
  readonly optional?: readonly LossInput[];
  /** Columns that become values of rows, which rows without tokens have too, if the batch has one value per row. */
  readonly perRow?: readonly ColumnName[];
}

/** The properties of a policy loss that depend on its options and therefore cannot be part of the declaration. */
export interface PolicyLossVariant extends Partial<NativeLossSpec> {
  /** Keys in the declaration's `reads` that the loss does not read with the chosen options. */
  readonly unread?: readonly string[];
  /** Whether a loss of the native module finds its pairs by pair_ids. */
  readonly readsPairIds?: boolean;
  /** The number of rows that belong together in a batch without pair_ids, if that is not 2. */
  readonly rowsOfPair?: 2 | 3;
  /** Returns the batch that is computed for one in host memory. It must not depend on later changes of that one. */
  readonly prepared?: Prepare;
  /** Whether `prepared` reads what parts of a batch lack, so that a batch cannot be computed in parts. */
  readonly preparesWhole?: boolean;
  /** Whether one of the loss's metrics also reads the advantages of masked tokens. */
  readonly readsMaskedAdvantages?: boolean;
  /** The declaration's `stopsGradient`, if it depends on the options. */
  readonly stopsGradient?: boolean;
  /**
   * The compiled form of a loss that is defined by expressions. It runs instead of a loss of the native module. The
   * columns that it reads replace the declaration's `reads`.
   */
  readonly program?: LossProgram;
  /** The forms of a loss that depends on what a batch has. `program` is form 0. */
  readonly forms?: FormColumns & { program(form: number): LossProgram };
  /** Returns the variant in which what the gradient holds constant is computed from a column other than logprob. */
  readonly frozen?: (column: ColumnName) => PolicyLossVariant;
  /** Returns the variant for batches with token_weights. Undefined if the loss is not multiplied by them. */
  readonly multiplied?: (() => PolicyLossVariant) | undefined;
}

/**
 * Makes the batch that a loss reads of a caller's one. It returns a batch on a device as it is, or refuses it. isCorrected
 * tells whether the loss has masks or a correction, and hasTerms whether the KL loss or the entropy loss of an objective is
 * computed from that batch too.
 */
export type Prepare = (
  batch: Batch | DeviceBatch,
  mapper: KeyMapper,
  options: CallOptions,
  isCorrected: boolean,
  hasTerms: boolean,
) => Steps<Batch | DeviceBatch>;

/** Returns the batch keys that a compiled loss reads in addition to logprob. */
export function keysOfProgram({
  columns,
  rowColumns,
}: Pick<CompiledLoss, 'columns' | 'rowColumns'>): string[] {
  return [...columns.filter((column) => column !== 'logprob'), ...rowColumns, 'action_mask'];
}

/**
 * The batch keys of a loss that depends on advantages and on the probability ratio between the current policy and the
 * old one.
 */
export const RATIO_KEYS = ['old_logprob', 'action_mask', 'advantages'] as const;
