// Compiles a graph to the programs that the engines run (see native/program/program.h).
import type { NativeProgram } from '../../binding.js';
import { native } from '../base/native.js';
import { COLUMNS, type ColumnName, ROW_DATA, type RowDataName } from '../batch/columns.js';
import { type Derivatives, differentiate } from './differentiate.js';
import { splitProduct } from './factors.js';
import { type Graph, tooLarge } from './graph.js';
import {
  isBatchReduction,
  isBelow,
  isComparison,
  isConstant,
  isLeaf,
  isNumberOfRow,
  isScan,
  type Node,
  type Op,
  reachable,
  readsGroups,
  readsPairs,
} from './node.js';
import { assignRegisters, hasRegister, registerCount, type Use } from './registers.js';
import { schedule } from './schedule.js';

/** A loss in the form that the engines run. */
export interface CompiledLoss {
  readonly withGrad: NativeProgram;
  /** Computes the same bits of the loss and of the metrics. */
  readonly withoutGrad: NativeProgram;
  /** The columns that the programs read, in native order. Among them always is the one of the loss's gradient. */
  readonly columns: readonly ColumnName[];
  /** The data of rows that the programs read, in native order. */
  readonly rowColumns: readonly RowDataName[];
  /**
   * Whether the loss, or a metric of tokens or rows, reduces over the whole batch or over groups of rows. Such a loss
   * cannot be computed in parts. Metrics of the batch do not matter: they are left out of the results of parts.
   */
  readonly readsWholeBatch: boolean;
  /** Whether the programs compare the rows of pairs, which must stay in the same part of a batch. */
  readonly readsPairs: boolean;
  /** Whether the programs read the length of the rows, which includes masked tokens. */
  readonly readsRowLength: boolean;
  /** Whether the loss has a gradient with respect to the entropies. */
  readonly dependsOnEntropy: boolean;
}

/** What a metric has one value for. It is the mean of the values of the tokens or rows, or the value of the batch. */
export type MetricPer = (typeof METRIC_PER)[number];
export const METRIC_PER = ['token', 'row', 'batch'] as const;

/** A loss as nodes of a graph. The whole loss is Σ weight · loss over the tokens, plus Σ repeats · rowLoss over the rows. */
export interface LossNodes {
  /** The loss of a token; 0 if absent. */
  readonly loss?: Node | undefined;
  /** The loss of a row; 0 if absent. Its level is at most 'row'. */
  readonly rowLoss?: Node | undefined;
  /** The metrics. Their levels are at most what they are `per`. */
  readonly metrics: readonly { readonly node: Node; readonly per: MetricPer }[];
  /** Whether rows without unmasked tokens also take part in the reductions, losses and metrics of rows. */
  readonly allRows?: boolean | undefined;
}

// The limits on the size of a program, as native/program/program.h states them.
const MAX_REGISTERS = 32;
const MAX_INSTRUCTIONS = 4096;
const MAX_VALUES = 256;
const MAX_SCANNED = 16;
const MAX_BATCH_SEGMENTS = 60;
const MAX_GATHERED = 4;
const MAX_COLUMNS = 9;

/**
 * Compiles a loss and its metrics.
 * @throws LossError `ERR_INVALID_OPTION` if the loss is too large for a program.
 */
export function compileLoss(graph: Graph, nodes: LossNodes): CompiledLoss {
  const zero = graph.constant(0);
  const { loss = zero, rowLoss = zero, metrics, allRows = false } = nodes;
  const roots = [loss, rowLoss, ...metrics.map(({ node }) => node)];
  const derivatives = differentiate(graph, loss, rowLoss);
  const lowering = new Lowering(graph, [...roots, ...Object.values(derivatives)], allRows);
  const [value, rowValue, ...metricValues] = lowering.of(roots) as [Node, Node, ...Node[]];
  const uses = {
    tokens: [{ op: 'loss', out: 0, operands: factorsOf(graph, value) }],
    rows: rowValue === zero ? [] : [{ op: 'row_loss', out: 0, operands: [rowValue] }],
    batch: [],
  };
  const withMetrics = addMetrics(graph, uses, metrics, metricValues);
  const allUses = addGradients(graph, withMetrics, derivatives, lowering);
  const precise = preciseSums(allUses);
  const withoutGrad = encode(withMetrics, metrics, allRows, precise);
  const withGrad = encode(allUses, metrics, allRows, precise);
  const { ofTokens } = graph.variables;
  const computed = reachable(operandsOf(Object.values(allUses).flat()));
  checkSize('columns', computed.filter(isColumn).length, MAX_COLUMNS);
  const read = reachable([...computed, ...(ofTokens ? [ofTokens] : [])]);
  const columns = COLUMNS.filter((_, i) => read.some((node) => isColumn(node) && node.value === i));
  return {
    withGrad: withGrad.program,
    withoutGrad: withoutGrad.program,
    columns,
    rowColumns: ROW_DATA.filter((name, i) =>
      read.some((node) => {
        if (name === 'group_ids') return readsGroups(node.op);
        if (name === 'pair_ids') return readsPairs(node);
        return node.op === 'row_column' && node.value === i;
      }),
    ),
    readsWholeBatch: withGrad.readsWholeBatch,
    readsPairs: read.some(readsPairs),
    readsRowLength: read.includes(graph.batchInput('row_length')),
    dependsOnEntropy: allUses.tokens.some(({ op }) => op === 'grad_entropy'),
  };
}

function isColumn({ op }: Node): boolean {
  return op === 'column' || op === 'column_of_row';
}

// What a program outputs for tokens, for rows and for the batch.
type Uses = Readonly<Record<'tokens' | 'rows' | 'batch', readonly Use[]>>;

function operandsOf(uses: readonly Use[]): Node[] {
  return uses.flatMap(({ operands }) => operands);
}

const METRIC_USES = {
  token: { op: 'metric', list: 'tokens' },
  row: { op: 'row_metric', list: 'rows' },
  batch: { op: 'batch_metric', list: 'batch' },
} as const;

// Adds the outputs of the metrics. Those of tokens and rows are numbered together, and those of the batch separately. A
// metric of tokens that is always 0 needs no output, because a sum without terms is 0.
function addMetrics(graph: Graph, uses: Uses, metrics: LossNodes['metrics'], values: readonly Node[]): Uses {
  const result = { tokens: [...uses.tokens], rows: [...uses.rows], batch: [...uses.batch] };
  for (const [i, { per }] of metrics.entries()) {
    const { op, list } = METRIC_USES[per];
    const out = metrics.slice(0, i).filter((other) => (other.per === 'batch') === (per === 'batch')).length;
    const value = values[i]!;
    if (per !== 'token') result[list].push({ op, out, operands: [value] });
    else if (!isConstant(value, 0)) result[list].push({ op, out, operands: factorsOf(graph, value) });
  }
  return result;
}

// Adds the outputs of the gradients.
function addGradients(graph: Graph, uses: Uses, derivatives: Derivatives, lowering: Lowering): Uses {
  const { ofTokens, further, ofRows } = derivatives;
  const tokens = Object.entries({ grad: ofTokens, grad_entropy: further }).filter(([, node]) => node);
  const [perRow, ...perToken] = lowering.of([
    ofRows ?? graph.constant(0),
    ...tokens.map(([, node]) => node!),
  ]);
  return {
    ...uses,
    tokens: [
      ...uses.tokens,
      ...tokens.map(([op], i) => ({ op, out: 0, operands: factorsOf(graph, perToken[i]!) })),
    ],
    // Native code calls the gradient of rows that of log_z, whatever the variable of the rows is.
    rows: ofRows ? [...uses.rows, { op: 'grad_log_z', out: 0, operands: [perRow!] }] : uses.rows,
  };
}

// The operations that compare two numbers and choose one of two others.
const CHOICES: Partial<Record<Node['op'], Op>> = { lt: 'select_lt', le: 'select_le', eq: 'select_eq' };

// Replaces nodes by those that programs compute: the operands of sg() in place of sg(), and comparisons that are part of a
// choice. A minimum or maximum with a number that cannot be NaN becomes such a choice too, which takes one instruction of
// a processor. Where rows without unmasked tokens do not take part, max(n, 1) becomes n.
class Lowering {
  readonly #graph: Graph;
  // max(n, 1) if it is to become n.
  readonly #atLeastOne: Node | undefined;
  // The numbers whose exponential shares instructions with expm1() or the residual.
  readonly #shared: ReadonlySet<Node>;

  /** @param roots all nodes that a program outputs, with its gradients. */
  constructor(graph: Graph, roots: readonly (Node | undefined)[], allRows: boolean) {
    this.#graph = graph;
    this.#atLeastOne = allRows ? undefined : graph.apply('max', graph.rowTokens(), graph.constant(1));
    const sharing = reachable(roots.filter((root) => root !== undefined)).filter(
      ({ op }) => op === 'expm1' || op === 'exp_residual',
    );
    this.#shared = new Set(sharing.map(({ operands }) => operands[0]!));
  }

  of(roots: readonly Node[]): Node[] {
    const results = new Map<Node, Node>();
    for (const node of reachable(roots)) {
      const operands = node.operands.map((x) => results.get(x)!);
      results.set(node, this.#lowered(node, operands));
    }
    return roots.map((root) => results.get(root)!);
  }

  #lowered(node: Node, operands: readonly Node[]): Node {
    const graph = this.#graph;
    const isAnd = node.op === 'mul' && operands.every((x) => x.isCondition);
    const [first, ...others] = isAnd && !(operands[0]!.op in CHOICES) ? operands.toReversed() : operands;
    const choice = node.op === 'select' || isAnd ? CHOICES[first!.op] : undefined;
    if (node.op === 'stop') return first!;
    if (choice)
      return graph.apply(choice, ...first!.operands, ...others, ...(isAnd ? [graph.constant(0)] : []));
    if (node === this.#atLeastOne) return graph.rowTokens();
    if (node.op === 'select' && first!.isCondition && others[0] !== others[1])
      return graph.apply('select_lt', graph.constant(0), first!, ...others);
    if (node.op === 'min' || node.op === 'max') return this.#extreme(node.op, operands as [Node, Node]);
    if (node.op === 'exp' && this.#shared.has(node.operands[0]!))
      return graph.apply('exp_with_residual', first!);
    return isLeaf(node) ? node : graph.apply(node.op as Op, ...operands);
  }

  // Returns the smaller or larger of two numbers, or NaN if one of them is NaN.
  #extreme(op: 'min' | 'max', [a, b]: readonly [Node, Node]): Node {
    const known = [a, b].find((x) => x.isCondition || (x.op === 'constant' && !Number.isNaN(x.value)));
    if (known === undefined) return this.#graph.apply(op, a, b);
    const other = known === a ? b : a;
    return this.#graph.apply('select_lt', ...(op === 'min' ? [known, other] : [other, known]), known, other);
  }
}

// Splits an output of tokens into a factor per token and one that is the same for all tokens of a row.
function factorsOf(graph: Graph, output: Node): readonly [Node, Node] {
  const one = graph.constant(1);
  if (isBelow(output.level, 'token')) return [one, output];
  const product = splitProduct(graph, output, 'token');
  return product === undefined ? [output, one] : [product.rest, product.factor];
}

// Returns the sums over the tokens of a row that must be precise: losses and gradients are computed from them, or metrics
// by operations that can enlarge their errors. The others serve comparisons and metrics such as means.
function preciseSums({ tokens, rows, batch }: Uses): ReadonlySet<Node> {
  const [metrics, values] = [[] as Node[], [] as Node[]];
  for (const { op, operands } of [...tokens, ...rows, ...batch])
    (op.endsWith('metric') ? metrics : values).push(...operands);
  for (const node of readNodes(metrics)) if (!KEEPING_ERRORS.has(node.op)) values.push(...node.operands);
  return new Set([...readNodes(values)].filter(({ op }) => op === 'row_sum'));
}

// Returns the nodes whose values the given nodes depend on, except those that are only compared.
function readNodes(roots: readonly Node[]): Set<Node> {
  const found = new Set(roots);
  for (const node of found)
    for (const operand of node.operands.slice(COMPARED[node.op] ?? 0)) found.add(operand);
  return found;
}

// How many operands, from the first one on, an operation only compares.
const COMPARED: Partial<Record<Node['op'], number>> = {
  ...{ lt: 2, le: 2, eq: 2, select: 1, select_lt: 2, select_le: 2, select_eq: 2 },
};

// The operations whose results have no larger relative errors than their operands.
const KEEPING_ERRORS = new Set<Node['op']>([
  ...(['mul', 'div', 'neg', 'abs', 'min', 'max', 'clip', 'select', 'select_lt', 'select_le'] as const),
  ...(['select_eq', 'lt', 'le', 'eq', 'stop', 'row_sum', 'rows_sum', 'rows_min', 'rows_max'] as const),
  'mul_no_nan',
]);

function encode(
  uses: Uses,
  metrics: LossNodes['metrics'],
  allRows: boolean,
  precise: ReadonlySet<Node>,
): { program: NativeProgram; readsWholeBatch: boolean } {
  const outputs = {
    tokens: operandsOf(uses.tokens),
    rows: operandsOf(uses.rows),
    batch: operandsOf(uses.batch),
  };
  // Each node takes at least one instruction, so this bounds the time for what follows.
  const nodes = reachable(Object.values(outputs).flat()).filter((node) => !isLeaf(node));
  checkSize('instructions', nodes.length, MAX_INSTRUCTIONS);
  const { before, after, last } = schedule(outputs);
  const encoder = new Encoder(
    nodes.filter(({ op }) => op === 'row_gather'),
    precise,
  );
  const batches = before.filter(({ kind }) => kind === 'batch').length;
  checkSize('batch reductions that depend on each other', batches, MAX_BATCH_SEGMENTS);
  for (const { kind, nodes } of before) encoder.addSegment(kind, nodes);
  encoder.addTokens(uses.tokens);
  for (const { kind, nodes } of after) encoder.addSegment(kind, nodes);
  encoder.addOutputs('row', uses.rows);
  if (uses.batch.length > 0) encoder.addSegment('batch', last);
  encoder.addOutputs('batch', uses.batch);
  const batchMetrics = metrics.filter(({ per }) => per === 'batch').length;
  return {
    program: encoder.program({ metrics: metrics.length - batchMetrics, batchMetrics, allRows }),
    readsWholeBatch: before.some(({ nodes }) =>
      nodes.some(({ op }) => isBatchReduction(op) || readsGroups(op) || isComparison(op)),
    ),
  };
}

function checkSize(what: string, size: number, limit: number): void {
  if (size > limit) throw tooLarge(`${limit} ${what}`, String(size));
}

// The kinds of operands, in the order of program::Kind.
const KINDS = [
  'register',
  'column',
  'constant',
  'row value',
  'batch value',
  'row input',
  'batch input',
  'row column',
  'scanned value',
] as const;
type Kind = (typeof KINDS)[number];

const NUMBERS_PER_INSTRUCTION = 6;

class Encoder {
  readonly #code: number[] = [];
  readonly #indices: Record<'constant' | 'row' | 'batch' | 'scanned', Map<Node, number>> = {
    constant: new Map(),
    row: new Map(),
    batch: new Map(),
    scanned: new Map(),
  };
  // The registers of the current segment.
  readonly #registers = new Map<Node, number>();
  #registerCount = 0;
  #segment: 'tokens' | 'row' | 'batch' = 'tokens';
  readonly #precise: ReadonlySet<Node>;

  /**
   * @param gathered the gathered values. They have the lowest numbers.
   * @param precise the sums over the tokens of a row that must be precise.
   */
  constructor(gathered: readonly Node[], precise: ReadonlySet<Node>) {
    this.#precise = precise;
    checkSize('values that are gathered from each token', gathered.length, MAX_GATHERED);
    for (const node of gathered) this.#index('row', node);
  }

  addSegment(kind: 'tokens' | 'row' | 'batch', nodes: readonly Node[]): void {
    if (kind === 'tokens') {
      this.addTokens(
        nodes.map((node) => ({
          op: this.#opOf(node),
          out: this.#index(isScan(node.op) ? 'scanned' : 'row', node),
          operands: node.operands,
        })),
      );
      return;
    }
    this.#begin(kind);
    for (const node of nodes) this.#addValue(kind, node);
  }

  // Sums of conditions are whole numbers, which float32 represents.
  #opOf(node: Node): string {
    const isSingle = node.op === 'row_sum' && (node.operands[0]!.isCondition || !this.#precise.has(node));
    return isSingle ? 'row_sum_single' : node.op;
  }

  // Adds outputs to the last segment, or to a new one if that is of another kind.
  addOutputs(kind: 'row' | 'batch', uses: readonly Use[]): void {
    if (uses.length > 0 && this.#segment !== kind) this.#begin(kind);
    for (const { op, out, operands } of uses) this.#add(op, out, operands);
  }

  #begin(kind: 'tokens' | 'row' | 'batch'): void {
    this.#segment = kind;
    this.#add(kind, 0, []);
  }

  // Adds the instruction for a value of a row or of the batch. A number that the batch gives for each row is copied to a
  // value of the row, because only row segments can read it as one number.
  #addValue(kind: 'row' | 'batch', node: Node): void {
    const out = this.#index(isBatchReduction(node.op) ? 'batch' : kind, node);
    if (isNumberOfRow(node)) {
      const source = operand(node.op === 'row_column' ? 'row column' : 'column', node.value);
      this.#push('min', out, [source, source]);
    } else this.#add(node.op, out, node.operands);
  }

  addTokens(uses: readonly Use[]): void {
    this.#begin('tokens');
    const ordered = assignRegisters(uses);
    this.#registerCount = Math.max(this.#registerCount, registerCount(ordered));
    for (const each of ordered) {
      if ('use' in each) {
        this.#add(each.use.op, each.use.out, each.use.operands);
        continue;
      }
      this.#add(each.node.op, each.register, each.node.operands);
      this.#registers.set(each.node, each.register);
    }
    // Checked for each segment, because many segments can repeat a long computation.
    checkSize('instructions', this.#code.length / NUMBERS_PER_INSTRUCTION, MAX_INSTRUCTIONS);
  }

  program(outputs: Pick<NativeProgram, 'metrics' | 'batchMetrics' | 'allRows'>): NativeProgram {
    const { constant, row, batch, scanned } = this.#indices;
    checkSize('constants', constant.size, MAX_VALUES);
    checkSize('values per row', row.size, MAX_VALUES);
    checkSize('values of the batch', batch.size, MAX_VALUES);
    checkSize('values per token at a time', this.#registerCount, MAX_REGISTERS);
    checkSize('sums along a row', scanned.size, MAX_SCANNED);
    return {
      code: Int32Array.from(this.#code),
      constants: Float64Array.from(constant.keys(), (node) => node.value),
      registers: this.#registerCount,
      rowValues: row.size,
      batchValues: batch.size,
      ...outputs,
    };
  }

  #add(op: string, out: number, operands: readonly Node[]): void {
    this.#push(
      op,
      out,
      operands.map((node) => this.#operand(node)),
    );
  }

  #push(op: string, out: number, operands: readonly number[]): void {
    this.#code.push(native.programOps.indexOf(op), out, ...operands, ...[0, 0, 0, 0].slice(operands.length));
  }

  #operand(node: Node): number {
    if (hasRegister(node)) return operand('register', this.#registers.get(node)!);
    if (isScan(node.op)) return operand('scanned value', this.#index('scanned', node));
    if (node.op === 'column') return operand('column', node.value);
    if (node.op === 'row_input') return operand('row input', node.value);
    if (node.op === 'batch_input') return operand('batch input', node.value);
    if (node.level === 'constant') return operand('constant', this.#index('constant', node));
    // A value of the level 'counts' is computed in rows, and again in a batch segment that reads it.
    const isOfRow = node.level === 'row' || (node.level === 'counts' && this.#segment !== 'batch');
    return isOfRow
      ? operand('row value', this.#index('row', node))
      : operand('batch value', this.#index('batch', node));
  }

  #index(kind: 'constant' | 'row' | 'batch' | 'scanned', node: Node): number {
    const indices = this.#indices[kind];
    const index = indices.get(node) ?? indices.size;
    indices.set(node, index);
    return index;
  }
}

function operand(kind: Kind, index: number): number {
  return 65536 * KINDS.indexOf(kind) + index;
}
