// Divides the values of a loss into the segments of a program, with as few passes over the tokens as possible.
import {
  isBatchReduction,
  isBelow,
  isGroupReduction,
  isLeaf,
  isNumberOfRow,
  isOverRows,
  isRowReduction,
  isScan,
  type Node,
  reachable,
} from './node.js';

/** The most reductions and scans in a segment: kMaxReductions in native/program/program.h. */
const MAX_REDUCTIONS = 16;

/** A segment of a program. `nodes` are the values that it computes. A segment for tokens computes reductions and scans. */
export interface Segment {
  readonly kind: 'tokens' | 'row' | 'batch';
  readonly nodes: readonly Node[];
}

/** What a program outputs. */
export interface Outputs {
  readonly tokens: readonly Node[];
  readonly rows: readonly Node[];
  readonly batch: readonly Node[];
}

/** The segments around the one that outputs the values of the tokens. */
export interface Schedule {
  readonly before: readonly Segment[];
  /** The segments that compute what is output for the rows, and the reductions for the last segment. */
  readonly after: readonly Segment[];
  /** The values that the last segment computes for the outputs of the batch. */
  readonly last: readonly Node[];
}

/** Returns the segments that compute all values of rows and of the batch on which the outputs depend. */
export function schedule(outputs: Outputs): Schedule {
  return new Scheduler(outputs).run();
}

class Scheduler {
  readonly #outputs: Outputs;
  // What must be available before the tokens are output.
  readonly #needed: readonly Node[];
  #segments: Segment[] = [];
  // What the next segment can read. A node for tokens counts if a segment can compute it from what it can read.
  readonly #available = new Set<Node>();
  // The nodes that are not available yet, operands first: those for the outputs of tokens, and all others.
  #waiting: Node[];
  #later: Node[];
  // The reductions over rows and over groups so far. They are available from the next batch segment on.
  readonly #reduced = new Set<Node>();
  // The values of the level 'counts' that segments for tokens or rows read. Each row computes them.
  readonly #countsOfRows: ReadonlySet<Node>;
  readonly #countsOfBatch = new Set<Node>();

  constructor(outputs: Outputs) {
    this.#outputs = outputs;
    const later = reachable([...outputs.rows, ...outputs.batch]);
    this.#needed = [...outputs.tokens, ...valuesOfRows(later, outputs.rows)];
    this.#waiting = reachable(this.#needed);
    this.#later = without(later, new Set(this.#waiting));
    const readers = [...this.#waiting, ...this.#later].filter(
      (x) => isBelow('batch', x.level) || isBatchReduction(x.op),
    );
    const read = [...readers.flatMap((x) => x.operands), ...outputs.tokens, ...outputs.rows];
    this.#countsOfRows = new Set(countsAmong(read));
  }

  run(): Schedule {
    this.#computeNeeded();
    const before = this.#segments;
    this.#segments = [];
    this.#waiting = this.#later.splice(0);
    const goals = this.#waiting.filter((node) => isBatchReduction(node.op));
    this.#addRow();
    while (
      !this.#areAvailable(this.#outputs.rows) ||
      !goals.every((node) => this.#available.has(node) || this.#reduced.has(node))
    )
      this.#addTokens();
    const after = withTokensFirst(this.#segments);
    return { before, after, last: this.#computeBatch(this.#outputs.batch) };
  }

  #computeNeeded(): void {
    const depths = batchDepths(this.#waiting);
    const last = Math.max(0, ...depths.values());
    this.#addRow();
    for (let depth = 1; depth <= last; depth++) {
      const needed = this.#waiting.filter((node) => isOverRows(node.op) && depths.get(node) === depth);
      while (!needed.every((node) => this.#reduced.has(node))) this.#addTokens();
      this.#segments.push({ kind: 'batch', nodes: this.#computeBatch([]) });
      this.#addRow();
    }
    while (!this.#areAvailable(this.#needed)) this.#addTokens();
  }

  // Adds a pass over the tokens with all reductions and scans that are possible now. Those for later come along if there is
  // room and if they use only what the others compute. Otherwise, they wait for the pass that outputs the tokens' values.
  #addTokens(): void {
    const isPossible = (node: Node) => isOverTokens(node) && this.#isReady(node);
    const needed = this.#waiting.filter(isPossible);
    const room = (MAX_REDUCTIONS - (needed.length % MAX_REDUCTIONS)) % MAX_REDUCTIONS;
    const computed = new Set(reachable(needed));
    const cheap = this.#later.filter(
      (node) => isPossible(node) && node.operands.every((x) => computed.has(x) || isBelow(x.level, 'token')),
    );
    const nodes = [...needed, ...cheap.slice(0, room)];
    for (const some of inGroups(nodes)) this.#segments.push({ kind: 'tokens', nodes: some });
    for (const node of nodes) this.#available.add(node);
    this.#addRow();
  }

  // Adds what can be computed for the row, and makes the nodes for tokens available that need nothing else.
  #addRow(): void {
    const nodes = this.#take(
      (node) => node.level !== 'batch' && !isOverTokens(node) && !isGroupReduction(node.op),
    );
    const values = nodes.filter(
      (node) => (node.level === 'row' && node.op !== 'row_input') || this.#countsOfRows.has(node),
    );
    const reductions = this.#waiting.filter(
      (node) => isOverRows(node.op) && !this.#reduced.has(node) && this.#isReady(node),
    );
    for (const node of reductions) this.#reduced.add(node);
    const [some = [], ...more] = inGroups(reductions);
    if (values.length + some.length > 0) this.#segments.push({ kind: 'row', nodes: [...values, ...some] });
    for (const group of more) this.#segments.push({ kind: 'row', nodes: group });
    for (const node of this.#later) if (isForTokens(node) && this.#isReady(node)) this.#available.add(node);
    this.#later = without(this.#later, this.#available);
  }

  // Returns the values that a batch segment computes now.
  #computeBatch(outputs: readonly Node[]): Node[] {
    for (const node of this.#reduced) this.#available.add(node);
    const values = this.#take((node) => node.level === 'batch' && !isBatchReduction(node.op));
    const counts = countsAmong([...values.flatMap((x) => x.operands), ...outputs]);
    const newCounts = counts.filter((node) => !this.#countsOfBatch.has(node));
    for (const node of newCounts) this.#countsOfBatch.add(node);
    return [...newCounts, ...values];
  }

  // Makes those of the given nodes available whose operands are, and returns them.
  #take(isOfKind: (node: Node) => boolean): Node[] {
    const taken = this.#waiting.filter((node) => {
      if (!isOfKind(node) || !this.#isReady(node)) return false;
      this.#available.add(node);
      return true;
    });
    this.#waiting = without(this.#waiting, this.#available);
    return taken;
  }

  #isReady(node: Node): boolean {
    return node.operands.every((x) => this.#available.has(x));
  }

  #areAvailable(nodes: readonly Node[]): boolean {
    return nodes.every((node) => this.#available.has(node));
  }
}

// Moves a first segment for rows behind the segment for tokens that follows it, if that does not read its values. Engines
// can then run the segment for tokens together with the one that outputs their values.
function withTokensFirst(segments: readonly Segment[]): readonly Segment[] {
  const [row, tokens, next, ...others] = segments;
  if (row?.kind !== 'row' || tokens?.kind !== 'tokens' || next?.kind !== 'row') return segments;
  const values = new Set(row.nodes);
  if (reachable(tokens.nodes).some((node) => values.has(node))) return segments;
  const nodes = [...row.nodes, ...next.nodes];
  if (nodes.filter(({ op }) => isOverRows(op)).length > MAX_REDUCTIONS) return segments;
  return [tokens, { kind: 'row', nodes }, ...others];
}

function without(nodes: readonly Node[], others: ReadonlySet<Node>): Node[] {
  return nodes.filter((node) => !others.has(node));
}

// Returns whether no segment has to compute the node before a segment for tokens uses it.
function isForTokens(node: Node): boolean {
  return (node.level === 'token' && !isScan(node.op)) || (isLeaf(node) && !isNumberOfRow(node));
}

function isOverTokens({ op }: Node): boolean {
  return isRowReduction(op) || isScan(op);
}

// Returns the values from several rows that segments for tokens or rows read. Only one batch segment can follow the
// outputs, and no other segment can follow that one. So these values are computed before the outputs.
function valuesOfRows(nodes: readonly Node[], outputsOfRows: readonly Node[]): Node[] {
  const readers = nodes.filter((node) => isBelow('batch', node.level) || isBatchReduction(node.op));
  return [...readers.flatMap((node) => node.operands), ...outputsOfRows].filter(
    ({ level, op }) => level === 'batch' || isGroupReduction(op),
  );
}

// Returns the values of the level 'counts' that must be computed for the given nodes, operands first.
function countsAmong(nodes: readonly Node[]): Node[] {
  return reachable(nodes.filter(({ level }) => level === 'counts')).filter(
    ({ level, op }) => level === 'counts' && op !== 'batch_input',
  );
}

// Returns how many batch segments must come before each node.
function batchDepths(nodes: readonly Node[]): Map<Node, number> {
  const depths = new Map<Node, number>();
  for (const node of nodes) {
    const depth = Math.max(0, ...node.operands.map((x) => depths.get(x)!));
    depths.set(node, isOverRows(node.op) ? depth + 1 : depth);
  }
  return depths;
}

function* inGroups(reductions: readonly Node[]): Generator<readonly Node[]> {
  for (let at = 0; at < reductions.length; at += MAX_REDUCTIONS)
    yield reductions.slice(at, at + MAX_REDUCTIONS);
}
