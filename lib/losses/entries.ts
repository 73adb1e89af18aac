// In a loss of logits, the loss of a token is computed from a row of entries: all tokens of the vocabulary, or those of a
// list. The formula of the loss is a program over a batch whose rows are the tokens and whose tokens are the
// entries.
import type { ColumnName, RowColumnName } from '../batch/columns.js';
import type { Layout } from '../batch/layout.js';
import type { LogitsInput } from '../logits/loss-inputs.js';
import type { Narrower, TeacherRows } from '../logits/vocabulary.js';
import { Expression, type Operand, type ProgramSymbols, programSymbolsOf } from '../program/expression.js';
import type { Graph } from '../program/graph.js';
import type { MetricExpression } from '../program/loss-program.js';

/** The entries of a token, and what is known of each. */
export interface Entries {
  /**
   * All tokens of the vocabulary, or a list: the list that the batch has (teacher_topk_ids), the `count` tokens with the
   * largest logits of the teacher or of the student, those of both, or none but the target.
   */
  readonly over: 'vocabulary' | 'given' | 'teacher' | 'student' | 'both' | 'none';
  /** The number of tokens of a list. Of a list that the batch has, all tokens by default. */
  readonly count?: number | undefined;
  /**
   * What `teacher` is over the vocabulary: the logits or the probabilities of the teacher, or the log-probabilities that the
   * batch's list has, and ABSENT elsewhere. In a list, it always is the log-probability. The list of the student alone has
   * it only with 'logits'.
   */
  readonly teacher?: 'logits' | 'probs' | 'list' | undefined;
  /** Whether `reference` is read: the logit of the reference policy. Only over the vocabulary. */
  readonly reference?: boolean | undefined;
  /**
   * Whether the target is read. In a list, it has a place of its own, after those of the list, or 'listed' if it is only
   * sought among these.
   */
  readonly target?: boolean | 'listed' | undefined;
  /** Whether the target's own place is part of the list, whose other places it leaves. */
  readonly isDistinct?: boolean | undefined;
  /** The student's logits are divided by this before the log-probabilities of a list are computed; 1 by default. */
  readonly temperature?: number | undefined;
  /** The teacher's logits are divided by this. */
  readonly teacherTemperature?: number | undefined;
  /** Whether `others` is read: the student's probability of all tokens that are not in the list. Only in a list. */
  readonly others?: boolean | undefined;
  /** Returns whether a token of the batch's list counts. By default, all do. */
  readonly counts?: ((logprob: number, place: number, isTarget: boolean) => boolean) | undefined;
  /**
   * Whether `entropy` is read: the entropy of the student at its temperature, which is a constant if `others` is read too. Only
   * in a list.
   */
  readonly entropy?: boolean | undefined;
  /** Whether `isTop` is read: whether the token is among as many tokens with the student's largest logits. Only in a list. */
  readonly top?: boolean | undefined;
  /**
   * Whose vocabulary may be the narrower one. By default, both must be equally wide. Over the vocabulary, ABSENT stands for the
   * logits that one of them lacks. The tokens of a list must be in both.
   */
  readonly narrower?: Narrower | undefined;
  /** The largest number of the teacher's logits that are read, from the first on. By default, all. */
  readonly teacherWidth?: number | undefined;
  /** An option of the loss that names tokens of the vocabulary. */
  readonly named?: { readonly option: string; readonly ids: readonly number[] } | undefined;
  /** Tokens of the batch's list with this id or a larger one are left out. */
  readonly vocabulary?: number | undefined;
  /**
   * Computes `helper`, a constant for each entry, on the host from what `student` and `teacher` are for a token. Over the
   * vocabulary, these must be in host memory.
   */
  readonly helper?: Helper | undefined;
  /** Returns with which entries of the teacher those of a token are compared. Only over the vocabulary. */
  readonly pairs?: ((inputs: PairingInputs) => Pairs) | undefined;
}

type Helper = (student: Float64Array, teacher: Float64Array, helper: Float32Array) => void;

/** The teacher's entries with which those of each token are compared, and what computes `helper` from both. */
export interface Pairs extends TeacherRows {
  readonly helper: Helper;
}

/** The inputs from which tokens are paired. */
export interface PairingInputs {
  readonly layout: Layout;
  /** The mask of the batch. */
  readonly mask: Uint8Array;
  readonly studentWidth: number;
  readonly teacherWidth: number;
  /** Returns a mask of the batch, one byte per token or row; undefined if the batch lacks it. */
  readonly flags: (name: LogitsInput, per: 'token' | 'row') => Uint8Array | undefined;
  /** Returns token ids of the batch that are less than `width`, and the key that they have in the batch. */
  readonly ids: (name: LogitsInput, width: number) => { readonly key: string; readonly ids: Int32Array };
}

/** Returns whether the entries are those of a list. */
export function isList({ over }: Entries): boolean {
  return over !== 'vocabulary';
}

/** Returns whether the target has a place of its own in a list. */
export function hasOwnPlace({ target }: Entries): boolean {
  return target === true;
}

/** Returns whether the target's own place is not part of the list. */
export function isTargetApart(entries: Entries): boolean {
  return hasOwnPlace(entries) && entries.isDistinct !== true;
}

/** Stands for the teacher's log-probability of a token that is not in its list, and for a logit that it lacks. */
export const ABSENT = Infinity;

/**
 * Where programs over entries find their numbers. They take the places that columns and numbers of rows have in other native
 * batches.
 */
export const ENTRY_COLUMNS = {
  student: 'logprob',
  teacher: 'prox_logprob',
  reference: 'ref_logprob',
  helper: 'rollout_logprob',
} as const satisfies Record<string, ColumnName>;
/** The place of the marks that a loss gives to tokens, for their weights. */
export const MARKS = 'clip_cov_keys' satisfies ColumnName;
/** The same for the numbers of a token. */
export const TOKEN_NUMBERS = {
  weight: 'rewards',
  otherWeight: 'v_star',
  thirdWeight: 'loss_mask_sum',
  target: 'probability',
  entropy: 'log_z',
  others: 'log_z',
  constantEntropy: 'label',
  tokens: 'sample_mask',
  sequences: 'margin',
} as const satisfies Record<string, RowColumnName>;

/**
 * What the formula of a loss of logits is built from. Reductions over rows are reductions over the entries of a token, and
 * `rowsMin()` and the like over the tokens of the batch. Columns with one value per token are values of rows.
 */
export interface EntrySymbols extends ProgramSymbols {
  /** The student's logit of an entry; in a list, its log-probability. */
  readonly student: Expression;
  /** The teacher's number for an entry; {@link Entries} says which. */
  readonly teacher: Expression;
  readonly reference: Expression;
  readonly helper: Expression;
  /** 1 for the tokens in a list that are among the student's largest. */
  readonly isTop: Expression;
  /** 1 for the entry of the target. */
  readonly isTarget: Expression;
  /** Returns 1 for the entry of a token, over the vocabulary. */
  readonly isAt: (id: number) => Expression;
  /** 1 for the entries of the list. The target's own place is none of them unless isDistinct is set. */
  readonly isListed: Expression;
  /** The weights of the token in the batch, which the statement of the loss gives. */
  readonly batchWeights: readonly [Expression, Expression, Expression];
  readonly entropy: Expression;
  /** The student's probability of all tokens that are not in the list. */
  readonly others: Expression;
  /** The number of unmasked tokens of the whole batch. */
  readonly count: Expression;
  /** The number of rows of the whole batch. */
  readonly sequences: Expression;
  /** Returns a weight times x; 0 where the weight is 0. */
  readonly weighted: (weight: Expression, x: Operand) => Expression;
  /** Returns the metric that is the sum over the tokens. */
  readonly total: (x: Expression) => MetricExpression;
  /** Returns the metric that is the mean over the unmasked tokens. */
  readonly mean: (x: Expression) => MetricExpression;
}

/** Returns the symbols of a formula for some entries, in a graph whose form has the columns of tokens as columns of rows. */
export function entrySymbolsOf(graph: Graph, entries: Entries): EntrySymbols {
  const symbols = programSymbolsOf(graph);
  const { rows, constant, select } = symbols;
  const column = (name: keyof typeof ENTRY_COLUMNS) =>
    new Expression(graph, graph.column(ENTRY_COLUMNS[name]));
  const number = (name: keyof typeof TOKEN_NUMBERS) =>
    new Expression(graph, graph.rowColumn(TOKEN_NUMBERS[name]));
  const isTarget = new Expression(graph, graph.apply('is_at', number('target').node));
  const teacher = column('teacher');
  const ofList = isTargetApart(entries) ? isTarget.not() : constant(1);
  const total = (x: Expression): MetricExpression => ({ row: x.mul(rows) });
  return {
    ...symbols,
    student: column('student'),
    teacher,
    reference: column('reference'),
    helper: column('helper'),
    isTop: column('helper'),
    isTarget,
    isAt: (id) => new Expression(graph, graph.apply('is_at', constant(id).node)),
    isListed: isList(entries) ? ofList : teacher.lt(LARGE),
    batchWeights: [number('weight'), number('otherWeight'), number('thirdWeight')],
    entropy: number(entries.others ? 'constantEntropy' : 'entropy'),
    others: number('others'),
    count: number('tokens'),
    sequences: number('sequences'),
    weighted: (weight, x) => select(weight.ne(0), weight.mul(x), 0),
    total,
    mean: (x) => total(x.div(number('tokens'))),
  };
}

// Every finite number that a program meets is less than this.
const LARGE = 3e38;

/** A logit with probability 0. */
export const LOWEST = -3e38;

/** Returns 1 for a number that is not ABSENT. */
export function isHere(x: Expression): Expression {
  return x.lt(LARGE);
}

/** Returns a logit, and `other` where the vocabulary lacks it. */
export function orAbsent({ select }: EntrySymbols, x: Expression, other: Operand): Expression {
  return select(isHere(x), x, other);
}
