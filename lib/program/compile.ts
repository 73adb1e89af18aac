// Compiles a graph to the programs that the engines run (see native/program/program.h).
import type { NativeProgram } from '../../binding.js';
import { COLUMNS, type ColumnName } from '../core/batch-reader.js';
import { native } from '../core/native.js';
import { differentiate } from './differentiate.js';
import { type Graph, isBelow, type Node, type Op, reachable, tooLarge } from './graph.js';
import { assignRegisters, hasRegister, registerCount, type Use } from './registers.js';
import { schedule } from './schedule.js';

/** A loss in the form that the engines run. */
export interface CompiledLoss {
  readonly withGrad: NativeProgram;
  /** Computes the same bits of the loss and of the metrics. */
  readonly withoutGrad: NativeProgram;
  /** The columns that the programs read, in native order. `logprob` is always among them. */
  readonly columns: readonly ColumnName[];
  /** Whether the loss or a metric reduces over the whole batch. Such a loss cannot be computed in parts. */
  readonly readsWholeBatch: boolean;
}

// The limits on the size of a program, as native/program/program.h states them.
const MAX_REGISTERS = 32;
const MAX_INSTRUCTIONS = 4096;
const MAX_VALUES = 256;
const MAX_BATCH_SEGMENTS = 60;

/**
 * Compiles a loss and its metrics.
 * @throws LossError `ERR_INVALID_OPTION` if the loss is too large for a program.
 */
export function compileLoss(graph: Graph, loss: Node, metrics: readonly Node[]): CompiledLoss {
  // The nodes of the values come first, so they do not depend on whether there is a gradient.
  const [value, ...metricValues] = lowered(graph, [loss, ...metrics]) as [Node, ...Node[]];
  const uses: Use[] = [
    { op: 'loss', out: 0, operands: [value] },
    ...metricValues.map((operand, out) => ({ op: 'metric', out, operands: [operand] })),
  ];
  const withoutGrad = encode(uses, metrics.length);
  const [gradient] = lowered(graph, [differentiate(graph, loss)]) as [Node];
  const allUses = [...uses, { op: 'grad', out: 0, operands: factorsOf(graph, gradient) }];
  const withGrad = encode(allUses, metrics.length);
  const nodes = reachable([...allUses.flatMap((use) => use.operands), graph.column('logprob')]);
  return {
    withGrad,
    withoutGrad,
    columns: COLUMNS.filter((_, i) => nodes.some((node) => node.op === 'column' && node.value === i)),
    readsWholeBatch: withGrad.batchValues > 0,
  };
}

// The operations that compare two numbers and choose one of two others.
const CHOICES: Partial<Record<Node['op'], Op>> = { lt: 'select_lt', le: 'select_le', eq: 'select_eq' };

// Returns the nodes with the operands of sg() in place of sg(), and with comparisons that are part of a choice.
function lowered(graph: Graph, roots: readonly Node[]): Node[] {
  const results = new Map<Node, Node>();
  for (const node of reachable(roots)) {
    const operands = node.operands.map((x) => results.get(x)!);
    const [first, ...others] = operands;
    const isAnd = node.op === 'mul' && operands.every((x) => x.isCondition);
    const choice = node.op === 'select' || isAnd ? CHOICES[first!.op] : undefined;
    const chosen = isAnd ? [...others, graph.constant(0)] : others;
    if (node.op === 'stop') results.set(node, first!);
    else if (choice) results.set(node, graph.apply(choice, ...first!.operands, ...chosen));
    else if (node.op === 'constant' || node.op === 'column' || node.op === 'row_input')
      results.set(node, node);
    else results.set(node, graph.apply(node.op, ...operands));
  }
  return roots.map((root) => results.get(root)!);
}

// Splits a gradient into a factor per token and one that is the same for all tokens of a row, if it is such a product.
function factorsOf(graph: Graph, gradient: Node): readonly [Node, Node] {
  const [a, b] = gradient.operands;
  if (gradient.op === 'mul' && isBelow(a!.level, 'token')) return [b!, a!];
  if (gradient.op === 'mul' && isBelow(b!.level, 'token')) return [a!, b!];
  return [gradient, graph.constant(1)];
}

function encode(uses: readonly Use[], metrics: number): NativeProgram {
  const outputs = uses.flatMap((use) => use.operands);
  // Each node takes at least one instruction, so this bounds the time for what follows.
  checkSize(
    'instructions',
    reachable(outputs).filter((node) => node.operands.length > 0).length,
    MAX_INSTRUCTIONS,
  );
  const encoder = new Encoder();
  const segments = schedule(outputs);
  const batches = segments.filter(({ kind }) => kind === 'batch').length;
  checkSize('batch reductions that depend on each other', batches, MAX_BATCH_SEGMENTS);
  for (const { kind, nodes } of segments) encoder.addSegment(kind, nodes);
  encoder.addTokens(uses);
  return encoder.program(metrics);
}

function checkSize(what: string, size: number, limit: number): void {
  if (size > limit) throw tooLarge(`${limit} ${what}`, String(size));
}

// The kinds of operands, in the order of program::Kind.
const KINDS = ['register', 'column', 'constant', 'row value', 'batch value', 'row input'] as const;
type Kind = (typeof KINDS)[number];

const NUMBERS_PER_INSTRUCTION = 6;

class Encoder {
  readonly #code: number[] = [];
  readonly #indices: Record<'constant' | 'row' | 'batch', Map<Node, number>> = {
    constant: new Map(),
    row: new Map(),
    batch: new Map(),
  };
  // The registers of the current segment.
  readonly #registers = new Map<Node, number>();
  #registerCount = 0;

  addSegment(kind: 'tokens' | 'row' | 'batch', nodes: readonly Node[]): void {
    if (kind === 'tokens') {
      this.addTokens(
        nodes.map((node) => ({ op: node.op, out: this.#index('row', node), operands: node.operands })),
      );
      return;
    }
    this.#add(kind, 0, []);
    for (const node of nodes)
      this.#add(node.op, this.#index(node.level as 'row' | 'batch', node), node.operands);
  }

  addTokens(uses: readonly Use[]): void {
    this.#add('tokens', 0, []);
    const steps = assignRegisters(uses);
    this.#registerCount = Math.max(this.#registerCount, registerCount(steps));
    for (const step of steps) {
      if ('use' in step) {
        this.#add(step.use.op, step.use.out, step.use.operands);
        continue;
      }
      this.#add(step.node.op, step.register, step.node.operands);
      this.#registers.set(step.node, step.register);
    }
    // Checked for each segment, because many segments can repeat a long computation.
    checkSize('instructions', this.#code.length / NUMBERS_PER_INSTRUCTION, MAX_INSTRUCTIONS);
  }

  program(metrics: number): NativeProgram {
    const { constant, row, batch } = this.#indices;
    checkSize('constants', constant.size, MAX_VALUES);
    checkSize('values per row', row.size, MAX_VALUES);
    checkSize('values of the batch', batch.size, MAX_VALUES);
    checkSize('values per token at a time', this.#registerCount, MAX_REGISTERS);
    return {
      code: Int32Array.from(this.#code),
      constants: Float64Array.from(constant.keys(), (node) => node.value),
      registers: this.#registerCount,
      rowValues: row.size,
      batchValues: batch.size,
      metrics,
    };
  }

  #add(op: string, out: number, operands: readonly Node[]): void {
    const encoded = operands.map((node) => this.#operand(node));
    this.#code.push(native.programOps.indexOf(op), out, ...encoded, ...[0, 0, 0, 0].slice(encoded.length));
  }

  #operand(node: Node): number {
    if (hasRegister(node)) return operand('register', this.#registers.get(node)!);
    if (node.op === 'column') return operand('column', node.value);
    if (node.op === 'row_input') return operand('row input', node.value);
    if (node.level === 'constant') return operand('constant', this.#index('constant', node));
    return node.level === 'row'
      ? operand('row value', this.#index('row', node))
      : operand('batch value', this.#index('batch', node));
  }

  #index(kind: 'constant' | 'row' | 'batch', node: Node): number {
    const indices = this.#indices[kind];
    const index = indices.get(node) ?? indices.size;
    indices.set(node, index);
    return index;
  }
}

function operand(kind: Kind, index: number): number {
  return 65536 * KINDS.indexOf(kind) + index;
}
