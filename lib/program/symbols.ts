// The names of the language in which users define losses: the columns, the values derived from them, and the functions.
// The text of an expression and the TypeScript form use the same names.
import { COLUMNS, type ColumnName, inputRow, ROW_COLUMNS, type RowColumnName } from '../batch/columns.js';
import type { Graph, Over } from './graph.js';
import type { BatchSelection, BinaryOp, Level, Node, Op, UnaryOp } from './node.js';

type Value = (graph: Graph) => Node;

function column(name: ColumnName): Value {
  return (graph) => graph.column(name);
}

function rowColumn(name: RowColumnName): Value {
  return (graph) => graph.rowColumn(name);
}

// Returns the names of an input in expressions; none if only the losses of this package can name it.
function named(name: ColumnName | RowColumnName, value: Value): (readonly [string, Value])[] {
  const { symbol } = inputRow(name);
  return symbol === undefined ? [] : [[symbol, value] as const, [name, value] as const];
}

function logRatio(graph: Graph): Node {
  return graph.binary('sub', graph.column('logprob'), graph.column('old_logprob'));
}

/** The values that an expression can name: functions that return a value's node in a graph. */
export const VALUES: ReadonlyMap<string, Value> = new Map<string, Value>([
  ...COLUMNS.flatMap((name) => named(name, column(name))),
  ...ROW_COLUMNS.flatMap((name) => named(name, rowColumn(name))),
  ['d', logRatio],
  ['r', (graph) => graph.unary('exp', logRatio(graph))],
  ['n', (graph) => graph.rowTokens()],
  ['t', (graph) => graph.tokenPositions()],
  ['group_size', (graph) => graph.groupSize()],
]);

// The language has a function chosen().
function symbolOfRow(name: RowColumnName): string {
  return name === 'chosen' ? 'first_is_chosen' : name;
}

/** The values that only the losses of this package can name. */
export const OWN_VALUES: ReadonlyMap<string, Value> = new Map<string, Value>([
  ...(['tokens', 'rows', 'row_length'] as const).map((name): [string, Value] => [
    name,
    (graph) => graph.batchInput(name),
  ]),
  ...ROW_COLUMNS.filter(isOwn).map((name): [string, Value] => [symbolOfRow(name), rowColumn(name)]),
  ...COLUMNS.filter(isOwn).map((name): [string, Value] => [name, column(name)]),
  ['repeats', (graph) => graph.rowRepeats()],
  ['place_in_pair', (graph) => graph.placeInPair()],
  ['first_position', (graph) => graph.firstPosition()],
]);

function isOwn(name: ColumnName | RowColumnName): boolean {
  return inputRow(name).symbol === undefined;
}

/** A function of the language. */
export interface LanguageFunction {
  /** The names of the parameters, for error messages. */
  readonly parameters: readonly string[];
  /** The highest levels of the arguments; 'token' for all of them if absent. */
  readonly levels?: readonly Level[];
  /** Whether the function also takes more arguments than it has named parameters. */
  readonly variadic?: true;
  /** Returns the node of a call. */
  build(graph: Graph, args: readonly Node[]): Node;
}

function unary(op: UnaryOp): LanguageFunction {
  return { parameters: ['x'], build: (graph, [x]) => graph.unary(op, x!) };
}

function fold(op: BinaryOp): LanguageFunction {
  return {
    parameters: ['x', 'y'],
    variadic: true,
    build: (graph, args) => args.reduce((first, second) => graph.binary(op, first, second)),
  };
}

function reduction(over: Over, op: 'sum' | 'mean' | 'min' | 'max'): LanguageFunction {
  return { parameters: ['x'], build: (graph, [x]) => graph.reduce(over, op, x!) };
}

function applied(op: Op, ...parameters: string[]): LanguageFunction {
  return { parameters, build: (graph, args) => graph.apply(op, ...args) };
}

const UNARY = [
  'exp',
  'expm1',
  'log',
  'log1p',
  'sqrt',
  'abs',
  'sign',
  'tanh',
  'sigmoid',
  'logsigmoid',
  'square',
] as const satisfies readonly UnaryOp[];

const REDUCTIONS = ['sum', 'mean', 'min', 'max'] as const;

/** The functions of the language, by their names in texts. */
export const FUNCTIONS: ReadonlyMap<string, LanguageFunction> = new Map<string, LanguageFunction>([
  ...UNARY.map((op) => [op, unary(op)] as const),
  ['pow', { parameters: ['x', 'y'], build: (graph, [x, y]) => graph.binary('pow', x!, y!) }],
  ['min', fold('min')],
  ['max', fold('max')],
  [
    'clip',
    { parameters: ['x', 'low', 'high'], build: (graph, [x, low, high]) => graph.clip(x!, low!, high!) },
  ],
  ['sg', { parameters: ['x'], build: (graph, [x]) => graph.stopGradient(x!) }],
  ...REDUCTIONS.map((op) => [`row_${op}`, reduction('row', op)] as const),
  ...REDUCTIONS.map((op) => [`batch_${op}`, reduction('batch', op)] as const),
  ...REDUCTIONS.map((op) => [`group_${op}`, ofRows((graph, x) => graph.reduceGroups(op, x))] as const),
  ['chosen', ofRows((graph, x) => graph.ofPair('chosen', x))],
  ['rejected', ofRows((graph, x) => graph.ofPair('rejected', x))],
  [
    'row_quantile',
    {
      parameters: ['x', 'q'],
      levels: ['token', 'row'],
      build: (graph, [x, q]) => graph.rowQuantile(x!, q!),
    },
  ],
  ['row_rank', { parameters: ['x'], build: (graph, [x]) => graph.tokenRanks(x!) }],
]);

// A function of a value that rows have.
function ofRows(build: (graph: Graph, x: Node) => Node): LanguageFunction {
  return { parameters: ['x'], levels: ['row'], build: (graph, [x]) => build(graph, x!) };
}

function selection(op: BatchSelection, by: string): LanguageFunction {
  return { parameters: ['x', by], build: (graph, [x, y]) => graph.selectOfBatch(op, x!, y!) };
}

/** The functions that only the losses of this package can call. */
export const OWN_FUNCTIONS: ReadonlyMap<string, LanguageFunction> = new Map<string, LanguageFunction>([
  ...REDUCTIONS.map((op) => [`rows_${op}`, reduction('rows', op)] as const),
  ['pair_sum', applied('pair_sum', 'x')],
  [
    'at_same_rank',
    {
      parameters: ['x', 'own', 'other'],
      build: (graph, [x, own, other]) => graph.atSameRank(x!, own!, other!),
    },
  ],
  [
    'is_up_to_position',
    { parameters: ['position'], build: (graph, [position]) => graph.isUpToPosition(position!) },
  ],
  ['prefix_sum', applied('prefix_sum', 'x', 'decay')],
  ['suffix_sum', applied('suffix_sum', 'x', 'decay')],
  ['turn_sum', applied('turn_sum', 'x')],
  ['floor', applied('floor', 'x')],
  ['row_ranked', { parameters: ['x', 'rank'], build: (graph, [x, rank]) => graph.rowRanked(x!, rank!) }],
  ['batch_ranked', selection('rows_rank', 'rank')],
  ['batch_rank_at', selection('rows_rank_at', 'rank')],
  ['batch_under_mean', selection('rows_under_mean', 'mean')],
  ['batch_under_fill', selection('rows_under_fill', 'sum')],
  ['is_up_to', { parameters: ['place'], build: (graph, [place]) => graph.isUpTo(place!) }],
  ['draw', { parameters: ['seed'], build: (graph, [seed]) => graph.draw(seed!) }],
]);

/** Describes the arguments that a function takes, for error messages. */
export function describeArguments({ parameters, variadic }: LanguageFunction): string {
  const count = parameters.length;
  if (variadic) return `${count} or more arguments`;
  return count === 1 ? '1 argument' : `${count} arguments (${parameters.join(', ')})`;
}

/** Describes a value whose level is higher than it may be, for error messages. */
export function describeLevel(
  node: Node,
  most: Level,
): { expected: string; received: string; hint?: string } {
  return {
    expected: `one value per ${most}`,
    received: `a value for each ${node.level}`,
    ...(node.level === 'token' && most === 'row' && { hint: 'Reduce it first, with row_sum or row_mean' }),
  };
}

/** Returns whether a function takes this number of arguments. */
export function takesArguments({ parameters, variadic }: LanguageFunction, count: number): boolean {
  return count === parameters.length || (variadic === true && count > parameters.length);
}
