// The declaration of a function, as data. Its class, command-line flags, documentation, property tests and benchmarks
// are all derived from it.
import type { OptionSchema } from './options.js';

/** One metric of a function. */
export interface MetricDeclaration {
  /** Its unit, such as 'nats per token' or 'fraction of tokens'. */
  readonly unit: string;
  /** When the metric is present, such as 'with sequence masking'. Without this field it always is. */
  readonly when?: string;
}

/** A function's metrics by Trinity-RFT's names. */
export type MetricSchema = Readonly<Record<string, MetricDeclaration>>;

/** The type of a result's metrics. Metrics with a condition (`when`) are optional. */
export type MetricsOf<M> = {
  -readonly [K in keyof M as M[K] extends { when: string } ? never : K]: number;
} & { -readonly [K in keyof M as M[K] extends { when: string } ? K : never]?: number };

/** The inputs of one token; log-probabilities in nats. */
export interface TokenValues {
  /** Under the current policy. */
  readonly logprob: number;
  /** Under the policy that sampled. */
  readonly oldLogprob: number;
  /** Under the reference policy. */
  readonly refLogprob: number;
  /** Under the teacher. */
  readonly teacherLogprob: number;
  /** The advantage. */
  readonly advantage: number;
}

/** The range of inputs that a function is made for, and its behaviour outside; `docs/numerics.md` lists both. */
export interface NumericsDeclaration {
  /** Inputs for which the error bounds hold. */
  readonly range: string;
  /** What happens outside of the range. */
  readonly outside: string;
  /** When a ratio of e^100 (for KL: a difference of 100 nats) makes the loss infinite; absent if never. */
  readonly overflows?: 'for A < 0' | 'always';
  /**
   * The size of the largest terms that cancel in a token's value and gradient, with default arguments; absent if
   * nothing cancels.
   * Errors are bounded in units of these terms, or of the result if it is larger.
   */
  readonly cancels?: (token: TokenValues) => { readonly value?: number; readonly gradient?: number };
  /** Sets of arguments that select other arithmetic. Errors are measured with the defaults and with each set. */
  readonly variants?: readonly Readonly<Record<string, number | boolean | string>>[];
}

/** A function as data: a policy loss, a KL function, an entropy loss or an advantage function. */
export interface FunctionDeclaration {
  /** Its name in the registry and in Trinity-RFT. */
  readonly name: string;
  /** One line, without a full stop. */
  readonly summary: string;
  /** Further sentences for the reference documentation. */
  readonly details?: readonly string[];
  /** Papers ('arXiv 1707.06347') and implementations. */
  readonly source: readonly string[];
  /** Batch keys that it reads in addition to logprob, under Trinity's names and in Trinity's order. */
  readonly reads: readonly string[];
  /** Its options by their camelCase names. */
  readonly options: OptionSchema;
  /** Its metrics by Trinity's names. */
  readonly metrics: MetricSchema;
  /** Its numeric range. */
  readonly numerics: NumericsDeclaration;
}
