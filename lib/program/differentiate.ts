// The derivatives of a loss by its variables: the log-probabilities, the entropies and log_z, or another column. Within a
// level, derivatives are computed forwards: one tangent per node and variable. So a branch that was not chosen never counts,
// not even as 0 · Infinity. From a reduction or scan to its operand, they are computed backwards: one adjoint per value.
import type { Graph } from './graph.js';
import {
  isBatchReduction,
  isBelow,
  isGroupReduction,
  isNumberOfRow,
  isRowReduction,
  isScan,
  type Level,
  type Node,
  type Op,
  reachable,
} from './node.js';
import { tangentOf } from './tangents.js';

/** The derivatives of the whole loss, which is Σ weight · loss over the tokens, plus Σ repeats · rowLoss over the rows. */
export interface Derivatives {
  /** By each token's variable, such as its log-probability; 0 if the loss has none. */
  readonly ofTokens: Node;
  /** By each token's entropy; undefined if always 0. */
  readonly further: Node | undefined;
  /** By each row's variable, such as its log_z; undefined if always 0. */
  readonly ofRows: Node | undefined;
}

export function differentiate(graph: Graph, loss: Node, rowLoss: Node): Derivatives {
  return new Differentiation(graph).run(loss, rowLoss);
}

class Differentiation {
  readonly #graph: Graph;
  // The derivative of the whole loss by each value of a row or of the batch, by each scan, and by the columns.
  readonly #adjoints = new Map<Node, Node>();
  // The derivatives of the nodes of a level by each variable of that level; undefined if always 0.
  readonly #tangents = new Map<string, Map<Node, Node | undefined>>();

  constructor(graph: Graph) {
    this.#graph = graph;
  }

  run(loss: Node, rowLoss: Node): Derivatives {
    this.#spread(loss, 'token', this.#graph.rowWeight());
    this.#spread(rowLoss, 'row', this.#graph.rowRepeats());
    const values = reachable([loss, rowLoss]).filter(
      (node) => (isBelow(node.level, 'token') && !isNumberOfRow(node)) || isScan(node.op),
    );
    for (const value of values.reverse()) {
      const adjoint = this.#adjoints.get(value);
      if (adjoint !== undefined) this.#spreadFrom(value, adjoint);
    }
    const { ofTokens, further, ofRows } = this.#graph.variables;
    return {
      ofTokens: (ofTokens && this.#adjoints.get(ofTokens)) ?? this.#graph.constant(0),
      further: further && this.#adjoints.get(further),
      ofRows: ofRows && this.#adjoints.get(ofRows),
    };
  }

  #spreadFrom(value: Node, adjoint: Node): void {
    const transposed = TRANSPOSED[value.op];
    if (transposed) {
      const [x, ...others] = value.operands as [Node, ...Node[]];
      // A scan has a decay, and at_rank has two ranks, which change places.
      const ofOperand = this.#graph.apply(transposed, adjoint, ...others.toReversed());
      this.#spread(x, isScan(value.op) ? 'token' : 'row', ofOperand, this.#attaining(value));
    } else if (isReduction(value)) {
      const level = isRowReduction(value.op) ? 'token' : 'row';
      this.#spread(value.operands[0]!, level, adjoint, this.#attaining(value));
    } else this.#spread(value, value.level, adjoint);
  }

  // Returns the condition that holds for the first token or row that attains a minimum or maximum, and undefined for sums.
  #attaining({ op, operands }: Node): Node | undefined {
    const position = POSITIONS[op];
    if (position === undefined) return undefined;
    const found = this.#graph.apply(position, operands[0]!);
    return this.#graph.apply(isRowReduction(op) ? 'is_at' : 'is_row', found);
  }

  // Adds adjoint · ∂root/∂variable to the adjoints of the variables from which a level computes the root.
  #spread(root: Node, level: Level, adjoint: Node, condition?: Node): void {
    const graph = this.#graph;
    const nodes = reachable([root], (node) => isVariable(node, level)).filter((node) => node.isActive);
    for (const variable of nodes.filter((node) => isVariable(node, level))) {
      const tangent = this.#tangent(root, variable, level, nodes);
      if (tangent === undefined) continue;
      const chosen = condition ? graph.apply('select', condition, tangent, graph.constant(0)) : tangent;
      // Where an adjoint overflows, the loss is infinite anyway.
      let term = chosen.mayOverflow
        ? graph.binary('mul', adjoint, chosen)
        : graph.apply('mul', adjoint, chosen);
      if (level === 'token' && isBelow(variable.level, level)) term = graph.apply('row_sum', term);
      if (level !== 'batch' && variable.level === 'batch') term = graph.apply('rows_sum', term);
      const sum = this.#adjoints.get(variable);
      this.#adjoints.set(variable, sum === undefined ? term : graph.apply('add', sum, term));
    }
  }

  #tangent(root: Node, variable: Node, level: Level, nodes: readonly Node[]): Node | undefined {
    const key = `${level} ${variable.id}`;
    const tangents = this.#tangents.get(key) ?? new Map<Node, Node | undefined>();
    this.#tangents.set(key, tangents);
    for (const node of nodes) {
      if (tangents.has(node)) continue;
      if (node === variable) tangents.set(node, this.#graph.constant(1));
      else if (isVariable(node, level)) tangents.set(node, undefined);
      else {
        const known = node.operands.map((x) => tangents.get(x));
        tangents.set(
          node,
          known.some((t) => t !== undefined) ? tangentOf(this.#graph, node, known) : undefined,
        );
      }
    }
    return tangents.get(root);
  }
}

// Returns whether a level's computation starts from the node.
function isVariable(node: Node, level: Level): boolean {
  if (isBelow(node.level, level)) return true;
  const { op } = node;
  return op === 'column' || isNumberOfRow(node) || isReduction(node) || isGroupReduction(op) || isScan(op);
}

function isReduction({ op }: Node): boolean {
  return isRowReduction(op) || isBatchReduction(op);
}

// The linear operations that turn the adjoints of a scan, of a reduction over groups, or of a value of another row, into
// those of its operand. Only one row of a group has that of a maximum.
const TRANSPOSED: Partial<Record<Node['op'], Op>> = {
  prefix_sum: 'suffix_sum',
  suffix_sum: 'prefix_sum',
  turn_sum: 'turn_sum',
  group_sum: 'group_sum',
  group_max: 'group_sum',
  pair_sum: 'pair_sum',
  at_rank: 'at_rank',
};

const POSITIONS: Partial<Record<Node['op'], Op>> = {
  row_min: 'row_arg_min',
  row_max: 'row_arg_max',
  rows_min: 'rows_arg_min',
  rows_max: 'rows_arg_max',
  group_max: 'group_arg_max',
};
