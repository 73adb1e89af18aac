// Orders the instructions of a segment for tokens and assigns registers to their results. Few registers keep a tile in
// the L1 cache.
import { type Node, reachable } from './graph.js';

/** An instruction that uses a result: a reduction or an output. */
export interface Use {
  readonly op: string;
  readonly out: number;
  readonly operand: Node;
}

/** An instruction in order: a node to compute into the register, or a use. */
export type Step = { readonly node: Node; readonly register: number } | { readonly use: Use };

/** Returns whether a segment for tokens computes the node into a register. */
export function hasRegister(node: Node): boolean {
  return node.level === 'token' && node.op !== 'column';
}

/** Returns the instructions of a segment for tokens in order. */
export function assignRegisters(uses: readonly Use[]): Step[] {
  const order = depthFirst(uses);
  const lastUses = new Map<Node, number>();
  order.forEach((item, at) => {
    for (const operand of operandsOf(item)) lastUses.set(operand, at);
  });
  const registers = new Map<Node, number>();
  const free: number[] = [];
  let count = 0;
  return order.map((item, at) => {
    // A result may take the place of an operand.
    for (const operand of operandsOf(item))
      if (lastUses.get(operand) === at) free.push(registers.get(operand)!);
    if ('operand' in item) return { use: item };
    const register = free.pop() ?? count++;
    registers.set(item, register);
    return { node: item, register };
  });
}

function operandsOf(item: Node | Use): Set<Node> {
  const operands = 'operand' in item ? [item.operand] : item.operands;
  return new Set(operands.filter(hasRegister));
}

// Returns the nodes and uses in the order of a depth-first search that begins with the operand that needs the most
// registers.
function depthFirst(uses: readonly Use[]): (Node | Use)[] {
  const needs = registerNeeds(uses);
  const order: (Node | Use)[] = [];
  const done = new Set<Node>();
  for (const use of uses) {
    const stack = [...operandsOf(use)];
    while (stack.length > 0) {
      const node = stack.at(-1)!;
      const next = [...operandsOf(node)].filter((x) => !done.has(x));
      if (next.length > 0 && !done.has(node)) {
        stack.push(next.reduce((a, b) => (needs.get(b)! > needs.get(a)! ? b : a)));
        continue;
      }
      stack.pop();
      if (!done.has(node)) order.push(node);
      done.add(node);
    }
    order.push(use);
  }
  return order;
}

// Returns how many registers each node needs if nothing is shared (the Sethi-Ullman numbers).
function registerNeeds(uses: readonly Use[]): Map<Node, number> {
  const needs = new Map<Node, number>();
  const isLeaf = (node: Node) => !hasRegister(node);
  for (const node of reachable(
    uses.map((use) => use.operand),
    isLeaf,
  )) {
    const operands = [...operandsOf(node)].map((x) => needs.get(x)!).sort((a, b) => b - a);
    needs.set(node, Math.max(1, ...operands.map((need, i) => need + i)));
  }
  return needs;
}
