// The types of a report's contents: the losses and algorithms that it covers (its subjects), their results, and the
// statistics of the rollouts.
import type { Curve } from './curves.js';
import type { Extremes } from './extremes.js';
import type { Sketch } from './sketch.js';

/** A loss or an algorithm that the report covers. */
export interface ReportSubject {
  name: string;
  /** The name with the options, as typed on the command line. */
  title: string;
  /** The framework whose arithmetic it has; undefined if it is a user's own. */
  framework?: string;
  /** Sentences that say how it differs from functions of similar names. */
  differences?: readonly string[];
  /**
   * Computes the loss and its gradient at given ratios. Returns undefined if the loss is not a function of ratio and
   * advantage.
   */
  curve: Curve;
}

/** The files and the losses and algorithms that a report covers, and the version of the package that made it. */
export interface ReportInfo {
  files: readonly string[];
  /** The version of this package. */
  version: string;
  subjects: readonly ReportSubject[];
}

/** The results of a loss or algorithm for all rollouts. */
export interface ReportResult {
  loss: number;
  metrics: Record<string, number>;
  /** The Euclidean norm of ∂loss/∂logprob over all tokens. */
  gradNorm: number;
}

/** The cosines of the angles between the gradients of each two losses and algorithms; null if one of the gradients is 0. */
export type Cosines = readonly (readonly (number | null)[])[];

/** The statistics of one loss or algorithm over all unmasked tokens. */
export interface SubjectStatistics {
  gradients: Sketch;
  /** The distribution of the advantages. It has no values if the loss or algorithm reads no advantages. */
  advantages: Sketch;
  /** The rows that contain the tokens with the largest absolute gradients. */
  extremes: Extremes;
}

/** The statistics of the rollouts. They cover only unmasked tokens, except for the number of masked ones. */
export interface DataStatistics {
  rows: number;
  /** The number of unmasked tokens. */
  tokens: number;
  masked: number;
  /** The distribution of ln(ratio) over all tokens; undefined if the rollouts have no old log-probabilities. */
  logRatios: Sketch | undefined;
  /** The distribution, over all rows, of the mean ln(ratio) of a row; undefined like `logRatios`. */
  rowLogRatios: Sketch | undefined;
  /** The rows that contain the tokens with the largest |ln(ratio)|. */
  extremes: Extremes;
  /** Whether every row's response has exactly one character per token. */
  characterwise: boolean;
  /** The statistics of each loss or algorithm, in the order of ReportInfo.subjects. */
  subjects: readonly SubjectStatistics[];
}
