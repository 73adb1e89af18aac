// The type of a function's declaration. The declaration is plain data. The function's class, command-line flags,
// documentation, property tests and benchmarks are all derived from it.
import type { OptionSchema } from './options.js';

/** The declaration of one metric that a function reports. */
export interface MetricDeclaration {
  /** The metric's unit, such as 'nats per token' or 'fraction of tokens'. */
  readonly unit: string;
  /**
   * The condition under which the metric is present, such as 'with sequence masking'. Absent if the metric is always
   * present.
   */
  readonly when?: string;
}

/** The declarations of a function's metrics, under the metrics' Trinity-RFT names. */
export type MetricSchema = Readonly<Record<string, MetricDeclaration>>;

/** The type of the metrics in a result. Metrics that are declared with a condition (`when`) are optional. */
export type MetricValues<M> = {
  -readonly [K in keyof M as M[K] extends { when: string } ? never : K]: number;
} & { -readonly [K in keyof M as M[K] extends { when: string } ? K : never]?: number };

/** The inputs for one token. Log-probabilities are in nats. */
export interface TokenValues {
  /** The token's log-probability under the current policy. */
  readonly logprob: number;
  /** The token's log-probability under the policy that sampled it. */
  readonly oldLogprob: number;
  /** The token's log-probability under the reference policy. */
  readonly refLogprob: number;
  /** The token's log-probability under the teacher. */
  readonly teacherLogprob: number;
  /** The sum of p·ln p over the other tokens of the vocabulary, where p is their probability. */
  readonly entropyOther: number;
  /** The token's advantage. */
  readonly advantage: number;
  /** The critic's value at the token when the returns were computed. */
  readonly oldValue: number;
  /** The critic's current value at the token. */
  readonly value: number;
  /** The return at the token. */
  readonly return: number;
}

/**
 * The range of inputs for which a function is meant, and its behaviour outside this range. `docs/numerics.md` lists
 * both.
 */
export interface NumericsDeclaration {
  /** The inputs for which the error bounds in `docs/numerics.md` hold. */
  readonly range: string;
  /** Describes the results for inputs outside the range. */
  readonly outside: string;
  /**
   * Whether the loss becomes infinite at a ratio of e^100 (for KL functions: at log-probabilities that differ by 100
   * nats). 'for A < 0' means only for tokens with a negative advantage A. Absent if the loss stays finite.
   */
  readonly overflows?: 'for A < 0' | 'always';
  /**
   * Returns, for one token, the size of the largest terms that cancel each other in its value and in its gradient, with
   * default arguments. Rounding errors are measured relative to these terms, or to the result if that is larger. Absent
   * if nothing cancels.
   */
  readonly cancels?: (token: TokenValues) => { readonly value?: number; readonly gradient?: number };
  /**
   * True if the loss depends on e to the power of a sum over a row. The errors of the row's log-ratios add up there, so
   * the relative error grows with the row's length where policies are far apart.
   */
  readonly exponentiatesRowSums?: true;
  /**
   * Sets of arguments with which the function computes differently, so that its errors may differ. Errors are measured
   * with the default arguments and with each of these sets.
   */
  readonly variants?: readonly Readonly<Record<string, number | boolean | string>>[];
}

/** The declaration of a function: a policy loss, a KL function, an entropy loss or an advantage function. */
export interface FunctionDeclaration {
  /** The function's name in the registry and in Trinity-RFT. */
  readonly name: string;
  /** A description in one line, without a full stop. */
  readonly summary: string;
  /** More sentences about the function, for the reference documentation. */
  readonly details?: readonly string[];
  /** The papers (such as 'arXiv 1707.06347') and implementations that the function follows. */
  readonly source: readonly string[];
  /**
   * What the function does differently from others of the same or a similar name, by their names in the registry:
   * `{ gspo: 'the ratio is at most e^10' }` in the declaration of verl/gspo.
   */
  readonly unlike?: Readonly<Record<string, string>>;
  /** The batch keys that the function reads in addition to logprob. They have Trinity-RFT's names and order. */
  readonly reads: readonly string[];
  /** The declarations of the function's options, under camelCase names. */
  readonly options: OptionSchema;
  /** The declarations of the function's metrics, under Trinity-RFT's names. */
  readonly metrics: MetricSchema;
  /** The range of inputs for which the function is accurate, and its behaviour outside this range. */
  readonly numerics: NumericsDeclaration;
}
