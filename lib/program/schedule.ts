// Divides the values of a loss into the segments of a program, with as few passes over the tokens as possible.
import { isBatchReduction, isRowReduction, type Node, reachable } from './graph.js';

/** The most reductions in a segment: kMaxReductions in native/program/program.h. */
const MAX_REDUCTIONS = 16;

/** A segment of a program. `nodes` are the values that it computes. A segment for tokens computes reductions. */
export interface Segment {
  readonly kind: 'tokens' | 'row' | 'batch';
  readonly nodes: readonly Node[];
}

/**
 * Returns the segments that compute all values of rows and of the batch on which the outputs depend. They come before
 * the last segment, which computes the outputs.
 */
export function schedule(outputs: readonly Node[]): Segment[] {
  return new Scheduler(outputs).run();
}

class Scheduler {
  readonly #outputs: readonly Node[];
  readonly #segments: Segment[] = [];
  // What the next segment can read. A node for tokens counts if a segment can compute it from what it can read.
  readonly #available = new Set<Node>();
  // The nodes that are not available yet, operands first.
  #waiting: Node[];
  // The reductions over rows so far. They are available from the next batch segment on.
  readonly #reduced = new Set<Node>();

  constructor(outputs: readonly Node[]) {
    this.#outputs = outputs;
    this.#waiting = reachable(outputs);
  }

  run(): Segment[] {
    const depths = batchDepths(this.#waiting);
    const last = Math.max(0, ...depths.values());
    this.#addRow();
    for (let depth = 1; depth <= last; depth++) {
      const needed = this.#waiting.filter((node) => isBatchReduction(node.op) && depths.get(node) === depth);
      while (!needed.every((node) => this.#reduced.has(node))) this.#addTokens();
      this.#addBatch();
    }
    while (!this.#outputs.every((node) => this.#available.has(node))) this.#addTokens();
    return this.#segments;
  }

  // Adds a pass over the tokens with all reductions that are possible now.
  #addTokens(): void {
    const nodes = this.#waiting.filter((node) => isRowReduction(node.op) && this.#isReady(node));
    for (const some of inGroups(nodes)) this.#segments.push({ kind: 'tokens', nodes: some });
    for (const node of nodes) this.#available.add(node);
    this.#addRow();
  }

  // Adds what can be computed for the row, and makes the nodes for tokens available that need nothing else.
  #addRow(): void {
    const nodes = this.#take((node) => node.level !== 'batch' && !isRowReduction(node.op));
    const values = nodes.filter((node) => node.level === 'row' && node.op !== 'row_input');
    const reductions = this.#waiting.filter(
      (node) => isBatchReduction(node.op) && !this.#reduced.has(node) && this.#isReady(node),
    );
    for (const node of reductions) this.#reduced.add(node);
    const [some = [], ...more] = inGroups(reductions);
    if (values.length + some.length > 0) this.#segments.push({ kind: 'row', nodes: [...values, ...some] });
    for (const group of more) this.#segments.push({ kind: 'row', nodes: group });
  }

  #addBatch(): void {
    for (const node of this.#reduced) this.#available.add(node);
    const nodes = this.#take((node) => node.level === 'batch' && !isBatchReduction(node.op));
    this.#segments.push({ kind: 'batch', nodes });
    this.#addRow();
  }

  // Makes those of the given nodes available whose operands are, and returns them.
  #take(isOfKind: (node: Node) => boolean): Node[] {
    const taken = this.#waiting.filter((node) => {
      if (!isOfKind(node) || !this.#isReady(node)) return false;
      this.#available.add(node);
      return true;
    });
    this.#waiting = this.#waiting.filter((node) => !this.#available.has(node));
    return taken;
  }

  #isReady(node: Node): boolean {
    return node.operands.every((x) => this.#available.has(x));
  }
}

// Returns how many batch segments must come before each node.
function batchDepths(nodes: readonly Node[]): Map<Node, number> {
  const depths = new Map<Node, number>();
  for (const node of nodes) {
    const depth = Math.max(0, ...node.operands.map((x) => depths.get(x)!));
    depths.set(node, isBatchReduction(node.op) ? depth + 1 : depth);
  }
  return depths;
}

function* inGroups(reductions: readonly Node[]): Generator<readonly Node[]> {
  for (let at = 0; at < reductions.length; at += MAX_REDUCTIONS)
    yield reductions.slice(at, at + MAX_REDUCTIONS);
}
