// The nodes of a user-defined loss: their operations, and how often their values change.
import type { ArithmeticOp } from './arithmetic.js';

/**
 * How often a value changes: never, with the batch, with the row, or with the token. Values of the level 'counts' also
 * change with the batch, but depend only on its size. So they are known before the batch is read.
 */
export type Level = 'constant' | 'counts' | 'batch' | 'row' | 'token';
const RANKS: Record<Level, number> = { constant: 0, counts: 1, batch: 2, row: 3, token: 4 };

/** Returns whether values of level `a` change less often than those of level `b`. */
export function isBelow(a: Level, b: Level): boolean {
  return RANKS[a] < RANKS[b];
}

/**
 * The reductions from the tokens of a row to a value of the row. That of row_gather stands for the values of the tokens in
 * selections.
 */
export const ROW_REDUCTIONS = [
  'row_sum',
  'row_min',
  'row_max',
  'row_arg_min',
  'row_arg_max',
  'row_gather',
] as const;
/** The selections among the gathered values of all rows. Each row counts as often as its repeats say. */
export const BATCH_SELECTIONS = ['rows_rank', 'rows_rank_at', 'rows_under_mean', 'rows_under_fill'] as const;
export type BatchSelection = (typeof BATCH_SELECTIONS)[number];
/** The reductions from the rows' values to a value of the batch. Except in selections, each row counts once. */
export const BATCH_REDUCTIONS = [
  'rows_sum',
  'rows_min',
  'rows_max',
  'rows_arg_min',
  'rows_arg_max',
  ...BATCH_SELECTIONS,
] as const;
/** The operations on a token's position and a number that is the same for all tokens of its row. */
export const POSITION_OPS = ['is_at', 'is_up_to', 'draw'] as const;
type PositionOp = (typeof POSITION_OPS)[number];
export type ReductionOp = (typeof ROW_REDUCTIONS)[number] | (typeof BATCH_REDUCTIONS)[number];
/**
/**
 * The operations that compare a row with all rows: its rank among them, and a value of the row that has a given rank. The
 * last one has a derivative by the value.
 */
export const COMPARISONS = ['rank_of_row', 'at_rank'] as const;
/**
 * The reductions from the rows of a group, or of a pair, to a value that all of them have. Each row counts once.
 * group_arg_max gives the index of the first row that has the maximum.
 */
export const GROUP_REDUCTIONS = [
  'group_sum',
  'group_max',
  'group_arg_max',
  'pair_sum',
  ...COMPARISONS,
] as const;
/**
 * The scans: values of tokens that depend on other tokens of the row. The derivative of a sum is that of the first operand.
 * The second operand, the decay, is a constant for the derivative. So are ranks.
 */
export const SCANS = ['prefix_sum', 'suffix_sum', 'turn_sum', 'token_rank'] as const;

/** An operation with operands. The names are those of NativeEngine.programOps, and 'stop' for stopGradient(). */
export type Op =
  | ArithmeticOp
  | ReductionOp
  | PositionOp
  | (typeof GROUP_REDUCTIONS)[number]
  | (typeof SCANS)[number]
  | 'is_row'
  | 'row_rank'
  | 'stop';

/** The kinds of nodes without operands. `column_of_row` is a column that has one value per row. */
export type Leaf = 'constant' | 'column' | 'column_of_row' | 'row_input' | 'batch_input' | 'row_column';

/** The numbers that a program gets for each row, in the order of RowInput in native/program/program.h. */
export const ROW_INPUTS = ['tokens', 'weight', 'repeats', 'place_in_pair', 'index'] as const;

/** A subexpression of a loss. */
export interface Node {
  /** The node's number in its graph. A node's operands have lower numbers. */
  readonly id: number;
  readonly op: Op | Leaf;
  readonly operands: readonly Node[];
  readonly level: Level;
  /** The value of a constant, or the index of another leaf in the list of its kind: COLUMNS, ROW_INPUTS, …. */
  readonly value: number;
  /** Whether the derivative by a variable of the loss can differ from 0. */
  readonly isActive: boolean;
  /** Whether the value is always 0 or 1. */
  readonly isCondition: boolean;
  /** Whether an exponential in it can overflow, so that the value is infinite. */
  readonly mayOverflow: boolean;
  /** Whether the value is always above 0. */
  readonly isPositive: boolean;
}

/** Makes the nodes of a graph. */
export interface NodeFactory {
  constant(value: number): Node;
  /** Returns the number of unmasked tokens of the row. It is 0 only in a loss for which all rows count. */
  rowTokens(): Node;
  /** Applies an operation of programs. Returns the simplest node that has the same value. */
  apply(op: Op, ...operands: readonly Node[]): Node;
}

/** The operations of one operand that the language has. */
export const UNARY_OPS = [
  'neg',
  'abs',
  'sign',
  'sqrt',
  'exp',
  'expm1',
  'log',
  'log1p',
  'tanh',
  'sigmoid',
  'logsigmoid',
  'square',
  'not',
] as const;
export type UnaryOp = (typeof UNARY_OPS)[number];

/** The operations of two operands that the language has. Comparisons and conditions give 1 or 0. */
export const BINARY_OPS = [
  'add',
  'sub',
  'mul',
  'div',
  'pow',
  'min',
  'max',
  'lt',
  'le',
  'gt',
  'ge',
  'eq',
  'ne',
  'and',
  'or',
] as const;
export type BinaryOp = (typeof BINARY_OPS)[number];

export function isLeaf({ operands }: Node): boolean {
  return operands.length === 0;
}

/** Returns whether a node is a number that the batch gives for each row. */
export function isNumberOfRow({ op }: Node): boolean {
  return op === 'row_column' || op === 'column_of_row';
}

export function isConstant(node: Node, value: number): boolean {
  return node.op === 'constant' && node.value === value;
}

/** Returns the nodes from which the given nodes are computed and these nodes themselves, operands first. */
export function reachable(roots: Iterable<Node>, isLeaf: (node: Node) => boolean = () => false): Node[] {
  const found = new Set<Node>(roots);
  for (const node of found) if (!isLeaf(node)) for (const operand of node.operands) found.add(operand);
  return [...found].sort((a, b) => a.id - b.id);
}

export function isPositionOp(op: string): op is PositionOp {
  return (POSITION_OPS as readonly string[]).includes(op);
}

export function isRowReduction(op: string): op is (typeof ROW_REDUCTIONS)[number] {
  return (ROW_REDUCTIONS as readonly string[]).includes(op);
}

export function isGroupReduction(op: string): op is (typeof GROUP_REDUCTIONS)[number] {
  return (GROUP_REDUCTIONS as readonly string[]).includes(op);
}

/** Returns whether an operation reduces the rows of the groups that the batch gives. Pairs need no such groups. */
export function readsGroups(op: string): boolean {
  return op === 'group_sum' || op === 'group_max' || op === 'group_arg_max';
}

/** Returns whether a value depends on which rows are pairs. */
export function readsPairs({ op, value }: Node): boolean {
  return op === 'pair_sum' || (op === 'row_input' && ROW_INPUTS[value] === 'place_in_pair');
}

/** Returns whether an operation compares a row with all rows. */
export function isComparison(op: string): boolean {
  return (COMPARISONS as readonly string[]).includes(op);
}

/** Returns whether an operation combines values of different rows. */
export function isOverRows(op: string): boolean {
  return isBatchReduction(op) || isGroupReduction(op);
}

export function isScan(op: string): op is (typeof SCANS)[number] {
  return (SCANS as readonly string[]).includes(op);
}

export function isBatchReduction(op: string): op is (typeof BATCH_REDUCTIONS)[number] {
  return (BATCH_REDUCTIONS as readonly string[]).includes(op);
}
