/**
 * A batch as the reference's formulas see it: only the unmasked tokens, in order, with methods for sums and means over
 * them. Masked tokens are removed before any formula runs, so they cannot affect a result.
 */
import type { Tape, Variable } from './autograd.js';

/** The columns with one number per token that losses read. */
export const FLOAT_COLUMNS = [
  'logprob',
  'oldLogprob',
  'refLogprob',
  'advantages',
  'entropy',
  'rolloutLogprob',
  'proxLogprob',
  'teacherLogprob',
  'oldEntropy',
  'values',
  'oldValues',
  'returns',
  'tokenWeights',
  'logSumSqProb',
  'entropyOther',
] as const;

export interface ReferenceBatch extends Partial<Record<(typeof FLOAT_COLUMNS)[number], ArrayLike<number>>> {
  rows: number;
  columns: number;
  /**
   * The lengths of the rows of a packed batch; by default, every row has `columns` tokens. Values beyond the end of a
   * row do not belong to the batch.
   */
  rowLengths?: number[];
  actionMask: ArrayLike<number>;
  /** One value per row: the output of FlowRL's learned head. */
  logZ?: ArrayLike<number>;
  /** One value per row. */
  rewards?: ArrayLike<number>;
  /** One value per row: a2po's estimate of the best reward that the prompt allows. */
  vStar?: ArrayLike<number>;
  /** One value per row: nash_md's probability that the row is preferred. */
  probability?: ArrayLike<number>;
  /** One flag per row, or per pair of rows: whether it counts. */
  sampleMask?: ArrayLike<number>;
  /** One value per row, or per pair of rows. */
  margin?: ArrayLike<number>;
  /** One value per row: the number of tokens of its episode. */
  lossMaskSum?: ArrayLike<number>;
  /** One value per row: rows with the same id are the samples of one rollout. */
  rolloutIds?: ArrayLike<number | string>;
  /** One flag per row: whether it is desirable. */
  label?: ArrayLike<number>;
  /** One value per row: the sum of refLogprob over the row. */
  refLogps?: ArrayLike<number>;
  /** One value per row: the probability that its prompt is one of a desirable row. */
  probDesirable?: ArrayLike<number>;
  /** One flag per row, or per pair: whether the first row of the pair is preferred. */
  chosen?: ArrayLike<number>;
  /** The columns of mismatched rows, which have a length of their own. */
  klLogprob?: ArrayLike<number>;
  klRefLogprob?: ArrayLike<number>;
  klActionMask?: ArrayLike<number>;
  /** One value per mismatched row. */
  klRefLogps?: ArrayLike<number>;
  /** One flag per token that is 0 for padding. */
  attentionMask?: ArrayLike<number>;
  /** One value per row: rows with the same id belong to one group. */
  groupIds?: ArrayLike<number | string>;
  /** One key per token: clip_cov drops the candidates with the smallest keys. */
  clipCovKeys?: ArrayLike<number>;
  /** One number per token: what trl/orpo makes of its masks. */
  answerMask?: ArrayLike<number>;
  /** One value per row, the same for all: the estimate that KTO losses otherwise compute. */
  klEstimate?: ArrayLike<number>;
  expertMask?: ArrayLike<number>;
  step?: ArrayLike<number>;
  /** One token id per token; -100 is not a label. */
  targets?: ArrayLike<number>;
  /** One probability per token: how probable it is that a step is right. */
  targetProbs?: ArrayLike<number>;
  /** One number per token and entry of the vocabulary. */
  logits?: ArrayLike<number>;
  teacherLogits?: ArrayLike<number>;
  refLogits?: ArrayLike<number>;
  probs?: ArrayLike<number>;
  teacherProbs?: ArrayLike<number>;
  /** One number per token and entry of the teacher's list. An entry with -Infinity is absent. */
  teacherTopkIds?: ArrayLike<number>;
  teacherTopkLogprobs?: ArrayLike<number>;
  /** Which tokens a distillation term counts, where this differs from actionMask. */
  distillMask?: ArrayLike<number>;
  /** The mask of the teacher's tokens. */
  teacherActionMask?: ArrayLike<number>;
  /** One flag per row: whether it is distilled. */
  selfDistillationMask?: ArrayLike<number>;
  /** The token ids that the vocabularies of student and teacher share, in the same order. */
  studentMatchedIds?: ArrayLike<number>;
  teacherMatchedIds?: ArrayLike<number>;
}

export interface ReferenceResult {
  loss: number;
  metrics: Record<string, number>;
  /** The gradient with respect to logprob, or to the column of another kind of loss, such as entropy. */
  grad: Float64Array;
  /** The gradient with respect to logZ, if the batch has this column. */
  gradLogZ?: Float64Array;
  /** The gradient of a policy loss with respect to entropy, if entropy is a term of the loss. */
  gradEntropy?: Float64Array;
  /** For the loss and each metric: the sum of the absolute values of its terms; see `Variable.magnitude`. */
  magnitude: { loss: number; metrics: Record<string, number> };
}

export type Column =
  | 'logprob'
  | 'oldLogprob'
  | 'refLogprob'
  | 'advantages'
  | 'entropy'
  | 'oldEntropy'
  | 'rolloutLogprob'
  | 'proxLogprob'
  | 'teacherLogprob'
  | 'values'
  | 'oldValues'
  | 'returns'
  | 'tokenWeights'
  | 'logSumSqProb'
  | 'entropyOther'
  | 'rewards'
  | 'logits'
  | 'probs'
  | 'logZ';
/** The columns with one value per row that are constants. */
export type RowColumn = 'rewards' | 'vStar' | 'probability';
export type Args = Record<string, unknown>;
/** What a formula returns. A metric is a `Variable` if it is computed from variables, and a plain number otherwise. */
export interface Outcome {
  loss: Variable;
  metrics: Record<string, Variable | number>;
}
export type Formula = (x: Tokens, args: Args) => Outcome;

/** A loss in the language of user-defined losses, as a caller of lossFromExpression() writes it. */
export interface Written {
  text: string;
  options?: Record<string, number>;
  metrics?: Record<string, string>;
  /** Metrics that the language cannot express, with the reason. */
  metricsNotWritten?: Record<string, string>;
  /** By default, the argument loss_agg_mode, or token-mean without it. */
  lossAggMode?: string;
}

/**
 * A loss as a formula in float64, and again in the language of user-defined losses, or the reason why the language
 * cannot express it.
 */
export type Loss = { formula: Formula } & ({ written: (args: Args) => Written } | { notWritten: string });

/** Returns an argument. If it is absent, returns `fallback`, the default in Trinity-RFT. */
export function option<T>(args: Args, name: string, fallback: T): T {
  return (args[name] ?? fallback) as T;
}

export const camelCase = (key: string): string =>
  key.replace(/_([a-z0-9])/g, (_, letter: string) => letter.toUpperCase());

export class Tokens {
  readonly tape: Tape;
  readonly batch: ReferenceBatch;
  /** The rows whose tokens this object holds, as indices into the batch. */
  readonly rows: number[];
  /**
   * For each unmasked token: `index` is its position in a B×T column (rows × columns), and `rowOf` is the index of its
   * row in `rows`.
   */
  readonly index: number[] = [];
  readonly rowOf: number[] = [];
  readonly #leaves: Map<Column, Variable>;
  readonly #weights: Variable | undefined;

  /**
   * @param weights a weight for every element of a B×T column. Aggregation multiplies the tokens' losses by them.
   */
  constructor(
    tape: Tape,
    batch: ReferenceBatch,
    rows?: number[],
    leaves = new Map<Column, Variable>(),
    weights?: Variable,
  ) {
    this.tape = tape;
    this.batch = batch;
    this.#weights = weights;
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

  /** Returns only the tokens of these rows of the batch. */
  of(rows: number[]): Tokens {
    return new Tokens(this.tape, this.batch, rows, this.#leaves, this.#weights);
  }

  /** Returns the tokens under a narrower mask, with weights for their losses. Both are B×T. */
  corrected(actionMask: ArrayLike<number>, weights: Variable | undefined): Tokens {
    return new Tokens(this.tape, { ...this.batch, actionMask }, this.rows, this.#leaves, weights);
  }

  /** The weights of the tokens' losses, if they have any. */
  get weights(): Variable | undefined {
    return this.#weights?.gather(this.index);
  }

  /** Returns a whole column, including its masked tokens. Gradients are computed with respect to this variable. */
  leaf(name: Column): Variable {
    const known = this.#leaves.get(name);
    if (known) return known;
    const leaf = this.tape.leaf(this.#data(name));
    this.#leaves.set(name, leaf);
    return leaf;
  }
  /** Returns whether a gradient with respect to this column has been asked for. */
  hasLeaf(name: Column): boolean {
    return this.#leaves.has(name);
  }

  column(name: Column): Variable {
    return this.#ofTokens(this.leaf(name));
  }
  /** Returns a column's values as constants, with respect to which there is no gradient. */
  constant(name: Column): Variable {
    return this.#ofTokens(this.tape.leaf(this.#data(name)));
  }
  /** Returns a column with one value per row. */
  perRow(name: RowColumn | 'advantages'): Variable {
    return this.tape.leaf(this.#data(name)).gather(this.rows);
  }
  /** Whether the batch has one advantage for all tokens of a row. */
  get hasAdvantagePerRow(): boolean {
    return this.batch.columns !== 1 && this.#data('advantages').length === this.batch.rows;
  }
  #data(name: Column | RowColumn): ArrayLike<number> {
    const data = this.batch[name];
    if (!data) throw new Error(`reference batch: expected ${name}, got none`);
    return data;
  }
  #ofTokens(whole: Variable): Variable {
    const { rows, columns } = this.batch;
    return whole.length === rows * columns
      ? whole.gather(this.index)
      : whole.gather(this.rowOf.map((row) => this.rows[row]!));
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

  /** Sums the values of each row's unmasked tokens. */
  rowSum(x: Variable): Variable {
    return x.sumBy(this.rowOf, this.rows.length);
  }
  rowMean(x: Variable, epsilon = 1e-8): Variable {
    return this.rowSum(x).div(this.tape.leaf(this.counts.map((n) => n + epsilon)));
  }
  /** Repeats each row's value for each of the row's unmasked tokens. */
  spread(perRow: Variable): Variable {
    return perRow.gather(this.rowOf);
  }
  /** The number of unmasked tokens of each row. */
  get counts(): number[] {
    const counts = this.rows.map(() => 0);
    for (const row of this.rowOf) counts[row]!++;
    return counts;
  }
  /** The mean over the unmasked tokens. As in Trinity-RFT, a small epsilon is added to the divisor. */
  mean(x: Variable): Variable {
    return x.sum().per(this.index.length + 1e-8);
  }
  meanOverRows(perRow: Variable): Variable {
    return perRow.sum().per(this.rows.length || 1); // A mixed loss may have no row of one kind.
  }

  /** Multiplies the losses of tokens by their weights, if they have any. */
  weighted(perToken: Variable): Variable {
    return this.weights ? perToken.mul(this.weights) : perToken;
  }

  aggregate(perToken: Variable, mode: string): Variable {
    const x = this.weighted(perToken);
    switch (mode) {
      case 'token-mean':
        return this.mean(x);
      case 'token-sum':
        return x.sum();
      case 'seq-mean-token-sum':
        return this.meanOverRows(this.rowSum(x));
      case 'seq-mean-token-mean':
        return this.meanOverRows(this.rowMean(x));
      case 'seq-mean-token-sum-norm':
        return x.sum().div(this.batch.columns + 1e-8);
      default:
        throw new Error(`loss_agg_mode: expected a known mode, got ${mode}`);
    }
  }
}

/** Returns the positions of row b's tokens in a B×T column (rows × columns), including masked tokens. */
export function rowPositions(batch: ReferenceBatch, b: number): number[] {
  const length = batch.rowLengths?.[b] ?? batch.columns;
  const positions = new Array<number>(length);
  for (let t = 0; t < length; t++) positions[t] = b * batch.columns + t;
  return positions;
}

/** Returns the rows that an expert wrote if `expert` is true, and the rows that the policy wrote otherwise. */
export function rowsOfKind(batch: ReferenceBatch, expert: boolean): number[] {
  const { expertMask } = batch;
  if (!expertMask) throw new Error('reference batch: expected expertMask, got none');
  return Array.from({ length: batch.rows }, (_, b) => b).filter((b) => Boolean(expertMask[b]) === expert);
}
