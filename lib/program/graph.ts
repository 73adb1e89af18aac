// The graph of a user-defined loss. Its nodes are the loss's subexpressions. Equal expressions are one node, so a value
// that is used twice is computed once.
import { LossError } from '../base/errors.js';
import {
  COLUMNS,
  type ColumnName,
  type LossInput,
  ROW_COLUMNS,
  type RowColumnName,
} from '../batch/columns.js';
import {
  BATCH_SELECTIONS,
  type BatchSelection,
  type BinaryOp,
  isBatchReduction,
  isBelow,
  isConstant,
  isGroupReduction,
  isPositionOp,
  isRowReduction,
  isScan,
  type Level,
  type Node,
  type NodeFactory,
  type Op,
  POSITION_OPS,
  ROW_INPUTS,
  type UnaryOp,
} from './node.js';
import { canBeZeroTimesInfinity, isPositive, mayOverflow } from './overflow.js';
import { simplify } from './simplify.js';

/** The numbers that a program gets for the batch, in the order of BatchInput in native/program/program.h. */
const BATCH_INPUTS = ['tokens', 'rows', 'row_length'] as const;
export type BatchInput = (typeof BATCH_INPUTS)[number];

/** What a reduction combines: the tokens of a row, those of the batch, or the rows of the batch. */
export type Over = 'row' | 'batch' | 'rows';

// The number of places of a row: kPlacesPerRow in native/program/program.h.
const PLACES_PER_ROW = 2 ** 30;

// Enough for 10,000 subexpressions and their derivatives. A larger graph would not fit into a program anyway.
const MAX_NODES = 200_000;

/** The batches for which a loss is built, if it depends on what a batch has. */
export interface BatchForm {
  /** Columns, and numbers of rows, that the batch lacks. */
  readonly absent: readonly LossInput[];
  /** Columns with one value per row. */
  readonly perRow: readonly ColumnName[];
}

const ANY_BATCH: BatchForm = { absent: [], perRow: [] };

/**
 * What losses are differentiated by: a column, of tokens or of rows, and for log-probabilities a further column of tokens,
 * usually the entropies, and log_z.
 */
const VARIABLES = {
  logprob: { ofTokens: 'logprob', further: 'entropy', ofRows: 'log_z' },
  logprob_and_other: { ofTokens: 'logprob', further: 'entropy_other' },
  values: { ofTokens: 'values' },
  rewards: { ofRows: 'rewards' },
} as const satisfies Record<
  string,
  { readonly ofTokens?: ColumnName; readonly further?: ColumnName; readonly ofRows?: RowColumnName }
>;
/** What a loss is differentiated by. */
export type Variable = Exclude<keyof typeof VARIABLES, 'logprob_and_other'>;

/** Creates the nodes of one loss, in simplified form. Nodes of different graphs must not be mixed. */
export class Graph implements NodeFactory {
  readonly #nodes = new Map<string, Node>();
  readonly #form: BatchForm;
  readonly #variables: {
    readonly ofTokens?: ColumnName;
    readonly further?: ColumnName;
    readonly ofRows?: RowColumnName;
  };

  constructor(form: BatchForm = ANY_BATCH, variable: keyof typeof VARIABLES = 'logprob') {
    this.#form = form;
    this.#variables = VARIABLES[variable];
  }

  /**
   * The nodes by which the loss is differentiated: a column of tokens, a further one, and a column of rows. Undefined if
   * there is none.
   */
  get variables(): { readonly [K in 'ofTokens' | 'further' | 'ofRows']: Node | undefined } {
    const { ofTokens, further, ofRows } = this.#variables;
    return {
      ofTokens: ofTokens && this.column(ofTokens),
      further: further && this.column(further),
      ofRows: ofRows && this.rowColumn(ofRows),
    };
  }

  constant(value: number): Node {
    return this.#intern('constant', [], value);
  }

  /** Returns a column. If the batch lacks the old policy's log-probabilities, the old policy is the current one. */
  column(name: ColumnName): Node {
    const { absent, perRow } = this.#form;
    if (name === 'old_logprob' && absent.includes(name)) return this.stopGradient(this.column('logprob'));
    return this.#intern(perRow.includes(name) ? 'column_of_row' : 'column', [], COLUMNS.indexOf(name));
  }

  /** Returns a number of the row that the batch gives. */
  rowColumn(name: RowColumnName): Node {
    return this.#intern('row_column', [], ROW_COLUMNS.indexOf(name));
  }

  /**
   * Returns the number of unmasked tokens of the whole batch, its number of rows (both count a row as often as it counts),
   * or the length of its rows.
   */
  batchInput(name: BatchInput): Node {
    return this.#intern('batch_input', [], BATCH_INPUTS.indexOf(name));
  }

  rowTokens(): Node {
    return this.#rowInput('tokens');
  }

  /** Returns how often the row counts. */
  rowRepeats(): Node {
    return this.#rowInput('repeats');
  }

  /** Returns the weight of the row's tokens in the loss. It includes how often the row counts. */
  rowWeight(): Node {
    return this.#rowInput('weight');
  }

  /** Returns 0 for the first row of a pair, 1 for the second one, and 2 for a row that has no other one. */
  placeInPair(): Node {
    return this.#rowInput('place_in_pair');
  }

  /** Returns the value that the chosen or the rejected row of the row's pair has. */
  ofPair(which: 'chosen' | 'rejected', a: Node): Node {
    const place = this.constant(which === 'chosen' ? 0 : 1);
    const isThere = this.apply('eq', this.placeInPair(), place);
    return this.apply('pair_sum', this.select(isThere, a, this.constant(0)));
  }

  /** Returns 1 for the tokens up to a position in the row, which counts masked tokens, and 0 for those after it. */
  isUpToPosition(position: Node): Node {
    const first = this.apply('mul', this.#rowInput('index'), this.constant(PLACES_PER_ROW));
    return this.isUpTo(this.apply('add', first, position));
  }

  /** Returns the position of the first unmasked token in the row, which counts masked tokens. */
  firstPosition(): Node {
    return this.apply('row_arg_max', this.constant(1));
  }

  /**
   * Returns a value of the row whose `other` has the rank that `own` has in this row, from 0 for the smallest. Equal values
   * rank in the order of their rows.
   */
  atSameRank(a: Node, own: Node, other: Node): Node {
    const rank = (x: Node) => this.apply('rank_of_row', this.stopGradient(x));
    return this.apply('at_rank', a, rank(own), rank(other));
  }

  unary(op: UnaryOp, a: Node): Node {
    if (op === 'square') return this.apply('mul', a, a);
    if (op === 'not') return this.apply('sub', this.constant(1), this.#condition(a));
    return this.apply(op, a);
  }

  binary(op: BinaryOp, a: Node, b: Node): Node {
    switch (op) {
      case 'mul':
        return this.apply(canBeZeroTimesInfinity(a, b) ? 'mul_no_nan' : 'mul', a, b);
      case 'gt':
        return this.apply('lt', b, a);
      case 'ge':
        return this.apply('le', b, a);
      case 'ne':
        return this.unary('not', this.apply('eq', a, b));
      case 'and':
        return this.apply('mul', this.#condition(a), this.#condition(b));
      case 'or':
        return this.apply('max', this.#condition(a), this.#condition(b));
      default:
        return this.apply(op, a, b);
    }
  }

  /** Returns `a` where the condition is true (neither 0 nor NaN), and `b` elsewhere. */
  select(condition: Node, a: Node, b: Node): Node {
    return this.apply('select', condition, a, b);
  }

  /** Returns min(max(x, low), high). */
  clip(x: Node, low: Node, high: Node): Node {
    return this.apply('clip', x, low, high);
  }

  /** Returns the value of `a` as a constant for the derivative. */
  stopGradient(a: Node): Node {
    return this.apply('stop', a);
  }

  /**
   * Reduces the unmasked tokens of each row, those of the whole batch, or the values of the batch's rows. The last two
   * count each row as often as it counts in the loss.
   */
  reduce(over: Over, op: 'sum' | 'mean' | 'min' | 'max', a: Node): Node {
    if (op === 'mean') return this.#mean(over, a);
    const row = over === 'rows' ? a : this.apply(`row_${op}`, a);
    if (over === 'row') return row;
    if (op === 'sum') return this.#sumOfRows(row);
    const isOfTokens = over === 'batch' && this.#variables.ofTokens !== undefined;
    return this.apply(`rows_${op}`, isOfTokens && !isBelow(a.level, 'row') ? this.#ofFilled(op, row) : row);
  }

  // Returns the smallest or largest value of a row, such that rows without tokens do not change that of the batch. It is 0 if
  // the batch has no tokens at all.
  #ofFilled(op: 'min' | 'max', row: Node): Node {
    const zero = this.constant(0);
    const ofEmpty = this.constant(op === 'min' ? Infinity : -Infinity);
    const none = this.select(this.apply('lt', zero, this.batchInput('tokens')), ofEmpty, zero);
    return this.select(this.apply('lt', zero, this.rowTokens()), row, none);
  }

  /**
   * Selects among the values of all unmasked tokens of the batch. The result is constant for the gradient.
   * @param by a number that is the same for all rows: a rank from 0 for the smallest value, or a bound.
   */
  selectOfBatch(op: BatchSelection, a: Node, by: Node): Node {
    return this.apply(op, this.apply('row_gather', a), by);
  }

  /** Returns the value of the row's tokens with a rank, from 0 for the smallest, as a constant for the gradient. */
  rowRanked(a: Node, rank: Node): Node {
    return this.apply('row_rank', this.apply('row_gather', a), rank);
  }

  /** Returns a quantile of the row's tokens, as a constant for the gradient; 0 for a row without tokens. */
  rowQuantile(a: Node, share: Node): Node {
    const constant = this.stopGradient(a);
    return this.quantile((rank) => this.rowRanked(constant, rank), this.rowTokens(), share);
  }

  /**
   * Returns a quantile of n values, with linear interpolation between the two nearest.
   * @param ranked returns the value with a rank, from 0 for the smallest.
   */
  quantile(ranked: (rank: Node) => Node, n: Node, share: Node): Node {
    const last = this.binary('sub', n, this.constant(1));
    const rank = this.binary('max', this.binary('mul', last, share), this.constant(0));
    const low = ranked(rank);
    const step = this.binary('sub', ranked(this.binary('add', rank, this.constant(1))), low);
    const fraction = this.binary('sub', rank, this.apply('floor', rank));
    return this.binary('add', low, this.binary('mul', step, fraction));
  }

  /**
   * Returns the rank of each token's value in its row, as a constant for the gradient. It is 0 for the smallest value, and
   * equal values rank in the order of their tokens.
   */
  tokenRanks(a: Node): Node {
    return this.apply('token_rank', this.stopGradient(a));
  }

  /** Returns the position of each token among the unmasked tokens of its row, from 0 on. */
  tokenPositions(): Node {
    const one = this.constant(1);
    return this.binary('sub', this.apply('prefix_sum', one, one), one);
  }

  /** Returns 1 for the tokens up to a place in the batch, which rows_rank_at gives, and 0 for those after it. */
  isUpTo(place: Node): Node {
    return this.apply('is_up_to', place);
  }

  /** Returns a random number for each token, from 0 to 1, that depends on a seed, on the row and on the position. */
  draw(seed: Node): Node {
    return this.apply('draw', seed);
  }

  /** Reduces the values of the rows of each group. Sums and means count each row as often as it counts in the loss. */
  reduceGroups(op: 'sum' | 'mean' | 'min' | 'max', a: Node): Node {
    switch (op) {
      case 'sum':
        return this.apply('group_sum', this.apply('mul', this.rowRepeats(), a));
      case 'mean':
        return this.binary('div', this.reduceGroups('sum', a), this.groupSize());
      case 'min':
        return this.unary('neg', this.reduceGroups('max', this.unary('neg', a)));
      case 'max':
        return this.apply('group_max', a);
    }
  }

  /** Returns the number of rows of the row's group. */
  groupSize(): Node {
    return this.reduceGroups('sum', this.constant(1));
  }

  apply(op: Op, ...operands: readonly Node[]): Node {
    return simplify(this, op, operands) ?? this.#intern(op, operands);
  }

  #mean(over: Over, a: Node): Node {
    if (over !== 'rows' && isBelow(a.level, over === 'row' ? 'token' : 'row')) return a;
    const counts = {
      row: () => this.rowTokens(),
      batch: () => this.#sumOfRows(this.rowTokens()),
      rows: () => this.batchInput('rows'),
    };
    return this.apply('div', this.reduce(over, 'sum', a), this.#atLeastOne(counts[over]()));
  }

  #atLeastOne(count: Node): Node {
    return this.apply('max', count, this.constant(1));
  }

  #sumOfRows(a: Node): Node {
    return this.apply('rows_sum', this.apply('mul', this.rowRepeats(), a));
  }

  #condition(a: Node): Node {
    return a.isCondition ? a : this.apply('lt', this.constant(0), this.apply('abs', a));
  }

  #isActive(op: Node['op'], operands: readonly Node[], value: number): boolean {
    const { ofTokens, further, ofRows } = this.#variables;
    if (op === 'column') return [ofTokens, further].some((name) => name && name === COLUMNS[value]);
    if (op === 'row_column') return ofRows !== undefined && ROW_COLUMNS[value] === ofRows;
    if (INACTIVE.has(op)) return false;
    if (isScan(op) || op === 'at_rank') return operands[0]!.isActive;
    return operands.slice(op === 'select' ? 1 : 0).some((x) => x.isActive);
  }

  #rowInput(name: (typeof ROW_INPUTS)[number]): Node {
    return this.#intern('row_input', [], ROW_INPUTS.indexOf(name));
  }

  #intern(op: Node['op'], operands: readonly Node[], value = 0): Node {
    const number = Object.is(value, -0) ? '-0' : String(value);
    const key = `${op} ${operands.length > 0 ? operands.map(({ id }) => id).join(' ') : number}`;
    const known = this.#nodes.get(key);
    if (known !== undefined) return known;
    if (this.#nodes.size >= MAX_NODES) throw tooLarge(`${MAX_NODES} subexpressions, with derivatives`);
    const node = {
      id: this.#nodes.size,
      op,
      operands,
      level: levelOf(op, operands),
      value,
      isActive: this.#isActive(op, operands, value),
      isCondition: isCondition(op, operands, value),
      mayOverflow: mayOverflow(op, operands, value),
      isPositive: isPositive(op, operands, value),
    };
    this.#nodes.set(key, node);
    return node;
  }
}

/** Returns the error for a loss that exceeds a limit on the size of programs. */
export function tooLarge(limit: string, received?: string): LossError {
  return new LossError('ERR_INVALID_OPTION', {
    at: 'the loss is too large',
    expected: `at most ${limit}`,
    received,
  });
}

function levelOf(op: Node['op'], operands: readonly Node[]): Level {
  if (op === 'column' || isPositionOp(op) || isScan(op)) return 'token';
  if (op === 'row_input' || op === 'row_column' || op === 'column_of_row') return 'row';
  if (op === 'is_row' || op === 'row_rank' || isRowReduction(op) || isGroupReduction(op)) return 'row';
  if (op === 'batch_input') return 'counts';
  if (isBatchReduction(op)) return 'batch';
  return operands.reduce<Level>((level, x) => (isBelow(level, x.level) ? x.level : level), 'constant');
}

const INACTIVE = new Set<string>([
  ...['stop', 'sign', 'floor', 'lt', 'le', 'eq', 'is_row', 'row_gather', 'row_rank', 'rank_of_row'],
  ...[...POSITION_OPS, ...BATCH_SELECTIONS],
  ...['row_arg_min', 'row_arg_max', 'rows_arg_min', 'rows_arg_max', 'group_arg_max', 'token_rank'],
]);

function isCondition(op: Node['op'], operands: readonly Node[], value: number): boolean {
  switch (op) {
    case 'constant':
      return value === 0 || value === 1;
    case 'lt':
    case 'le':
    case 'eq':
    case 'is_at':
    case 'is_up_to':
    case 'is_row':
      return true;
    case 'sub':
      return isConstant(operands[0]!, 1) && operands[1]!.isCondition;
    case 'select':
      return operands[1]!.isCondition && operands[2]!.isCondition;
    case 'select_lt':
    case 'select_le':
    case 'select_eq':
      return operands[2]!.isCondition && operands[3]!.isCondition;
    case 'mul':
    case 'min':
    case 'max':
    case 'stop':
      return operands.every((x) => x.isCondition);
    default:
      return false;
  }
}
