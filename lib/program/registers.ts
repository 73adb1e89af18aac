// Orders the instructions of a segment for tokens and assigns registers to their results. Few registers keep a tile in
// the L1 cache.
import { isScan, type Node, reachable } from './node.js';

/** An instruction that uses a result: a reduction, a scan or an output. */
export interface Use {
  readonly op: string;
  readonly out: number;
  readonly operands: readonly Node[];
}

/** An instruction in order: a node to compute into the register, or a use. */
export type Ordered = { readonly node: Node; readonly register: number } | { readonly use: Use };

/** Returns whether a segment for tokens computes the node into a register. */
export function hasRegister(node: Node): boolean {
  return node.level === 'token' && node.op !== 'column' && !isScan(node.op);
}

/** Returns the instructions of a segment for tokens in order. */
export function assignRegisters(uses: readonly Use[]): Ordered[] {
  // Either order can need fewer registers. A long loss often needs fewer if its gradient comes first, because the
  // derivative of each instruction then follows it.
  const [forwards, backwards] = [uses, uses.toReversed()].map((x) => assignInOrder(depthFirst(x)));
  return registerCount(backwards!) < registerCount(forwards!) ? backwards! : forwards!;
}

/** Returns the number of registers that the instructions use. */
export function registerCount(ordered: readonly Ordered[]): number {
  return ordered.reduce((count, each) => ('use' in each ? count : Math.max(count, each.register + 1)), 0);
}

function assignInOrder(order: readonly (Node | Use)[]): Ordered[] {
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
    if (!('id' in item)) return { use: item };
    const register = free.pop() ?? count++;
    registers.set(item, register);
    return { node: item, register };
  });
}

function operandsOf(item: Node | Use): Set<Node> {
  return new Set(item.operands.filter(hasRegister));
}

// Returns the nodes and uses in the order of a depth-first search that begins with the operand of the longest chain of
// operations. That one needs the most registers, and while it is computed, the other operands would occupy theirs.
function depthFirst(uses: readonly Use[]): (Node | Use)[] {
  const lengths = chainLengths(uses);
  const order: (Node | Use)[] = [];
  const done = new Set<Node>();
  for (const use of uses) {
    const stack = [...operandsOf(use)];
    while (stack.length > 0) {
      const node = stack.at(-1)!;
      const next = [...operandsOf(node)].filter((x) => !done.has(x));
      if (next.length > 0 && !done.has(node)) {
        stack.push(next.reduce((a, b) => (lengths.get(b)! > lengths.get(a)! ? b : a)));
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

function chainLengths(uses: readonly Use[]): Map<Node, number> {
  const lengths = new Map<Node, number>();
  const roots = uses.flatMap((use) => use.operands);
  for (const node of reachable(roots, (x) => !hasRegister(x)))
    lengths.set(node, Math.max(0, ...[...operandsOf(node)].map((x) => lengths.get(x)!)) + 1);
  return lengths;
}
