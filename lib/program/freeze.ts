// Replaces what a loss holds constant for its gradient by values that do not move with logprob, so that finite differences
// of the loss are its gradient.
import type { ColumnName } from '../batch/columns.js';
import type { NamedNodes } from './loss-program.js';
import { isLeaf, type Node, type Op, reachable } from './node.js';

/** Returns a loss in which everything inside sg() is computed from another column than logprob. */
export function frozen({ graph, loss, rowLoss, ...others }: NamedNodes, column: ColumnName): NamedNodes {
  const [stopped, moving] = [new Map<Node, Node>(), new Map<Node, Node>()];
  const rebuilt = (node: Node, operands: Map<Node, Node>) =>
    isLeaf(node) ? node : graph.apply(node.op as Op, ...node.operands.map((x) => operands.get(x)!));
  for (const node of reachable([loss, rowLoss].filter((x) => x !== undefined))) {
    const isLogprob = node === graph.column('logprob');
    stopped.set(node, isLogprob ? graph.column(column) : rebuilt(node, stopped));
    moving.set(node, rebuilt(node, node.op === 'stop' ? stopped : moving));
  }
  return { ...others, graph, loss: loss && moving.get(loss), rowLoss: rowLoss && moving.get(rowLoss) };
}
