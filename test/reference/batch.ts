/**
 * A batch as the formulas see it: the unmasked tokens of some rows, one after another, and the sums and means over
 * them. A masked token is left behind here, before any formula runs, so nothing under the mask can matter.
 */
import type { Tape, Variable } from './autograd.js';

export interface ReferenceBatch {
  rows: number;
  columns: number;
  /** A packed row's own tokens; the columns beyond do not exist. Default: `columns` each. */
  rowLengths?: number[];
  logprob?: ArrayLike<number>;
  oldLogprob?: ArrayLike<number>;
  refLogprob?: ArrayLike<number>;
  advantages?: ArrayLike<number>;
  entropy?: ArrayLike<number>;
  actionMask: ArrayLike<number>;
  expertMask?: ArrayLike<number>;
  step?: ArrayLike<number>;
}

export interface ReferenceResult {
  loss: number;
  metrics: Record<string, number>;
  /** With respect to logprob; of an entropy loss, with respect to entropy. */
  grad: Float64Array;
  /** Σ|terms| of the loss and of each metric: see Variable.magnitude. */
  magnitude: { loss: number; metrics: Record<string, number> };
}

export type Column = 'logprob' | 'oldLogprob' | 'refLogprob' | 'advantages' | 'entropy';
export type Args = Record<string, unknown>;
/** A loss as its formula gives it. A metric that is a number is one already. */
export interface Outcome {
  loss: Variable;
  metrics: Record<string, Variable | number>;
}
export type Formula = (x: Tokens, args: Args) => Outcome;

/** An argument, or Trinity's constructor default where it is not given. */
export function option<T>(args: Args, name: string, fallback: T): T {
  return (args[name] ?? fallback) as T;
}

export class Tokens {
  readonly tape: Tape;
  readonly batch: ReferenceBatch;
  /** The rows looked at, by their place in the batch. */
  readonly rows: number[];
  /** Of each unmasked token: its place in a B×T column, and its row among `rows`. */
  readonly index: number[] = [];
  readonly rowOf: number[] = [];
  readonly #leaves: Map<Column, Variable>;

  constructor(tape: Tape, batch: ReferenceBatch, rows?: number[], leaves = new Map<Column, Variable>()) {
    this.tape = tape;
    this.batch = batch;
    this.rows = rows ?? Array.from({ length: batch.rows }, (_, b) => b);
    this.#leaves = leaves;
    this.rows.forEach((b, row) => {
      for (const at of rowPositions(batch, b)) {
        if (!batch.actionMask[at]) continue;
        this.index.push(at);
        this.rowOf.push(row);
      }
    });
  }

  /** The same batch with an eye to some of its rows alone. */
  of(rows: number[]): Tokens {
    return new Tokens(this.tape, this.batch, rows, this.#leaves);
  }

  /** A whole column, masked tokens included: what gradients are taken with respect to. */
  leaf(name: Column): Variable {
    const known = this.#leaves.get(name);
    if (known) return known;
    const data = this.batch[name];
    if (!data) throw new Error(`the reference needs ${name}`);
    const leaf = this.tape.leaf(data);
    this.#leaves.set(name, leaf);
    return leaf;
  }

  column(name: Column): Variable {
    return this.leaf(name).gather(this.index);
  }
  get logprob(): Variable {
    return this.column('logprob');
  }
  get oldLogprob(): Variable {
    return this.column('oldLogprob');
  }
  get refLogprob(): Variable {
    return this.column('refLogprob');
  }
  get advantages(): Variable {
    return this.column('advantages');
  }

  /** B values, one a row, from values a token. */
  rowSum(x: Variable): Variable {
    return x.sumBy(this.rowOf, this.rows.length);
  }
  rowMean(x: Variable, epsilon = 1e-8): Variable {
    return this.rowSum(x).div(this.tape.leaf(this.counts.map((n) => n + epsilon)));
  }
  /** One value a row, at each of the row's tokens. */
  spread(perRow: Variable): Variable {
    return perRow.gather(this.rowOf);
  }
  /** Unmasked tokens a row. */
  get counts(): number[] {
    const counts = this.rows.map(() => 0);
    for (const row of this.rowOf) counts[row]!++;
    return counts;
  }
  /** mm(x) of losses.md. */
  mean(x: Variable): Variable {
    return x.sum().div(this.index.length + 1e-8);
  }
  meanOverRows(perRow: Variable): Variable {
    return perRow.sum().div(this.rows.length || 1); // No rows, as of a kind that is absent: 0.
  }

  aggregate(x: Variable, mode: string): Variable {
    switch (mode) {
      case 'token-mean':
        return this.mean(x);
      case 'seq-mean-token-sum':
        return this.meanOverRows(this.rowSum(x));
      case 'seq-mean-token-mean':
        return this.meanOverRows(this.rowMean(x));
      case 'seq-mean-token-sum-norm':
        return x.sum().div(this.batch.columns + 1e-8);
      default:
        throw new Error(`no aggregation named ${mode}`);
    }
  }
}

/** Returns the positions of row b's tokens in a B×T column, masked tokens included. */
export function rowPositions(batch: ReferenceBatch, b: number): number[] {
  const length = batch.rowLengths?.[b] ?? batch.columns;
  const positions = new Array<number>(length);
  for (let t = 0; t < length; t++) positions[t] = b * batch.columns + t;
  return positions;
}

/** Rows of the batch that are an expert's, or that are not. */
export function rowsOfKind(batch: ReferenceBatch, expert: boolean): number[] {
  const { expertMask } = batch;
  if (!expertMask) throw new Error('the reference needs expertMask');
  return Array.from({ length: batch.rows }, (_, b) => b).filter((b) => Boolean(expertMask[b]) === expert);
}
