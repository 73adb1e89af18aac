// The types of a report's contents: its subjects, their results, and the statistics gathered from the rollouts.
import type { Curve } from './curves.js';
import type { Extremes } from './extremes.js';
import type { Sketch } from './sketch.js';

/** A loss or an algorithm that the report covers. */
export interface ReportSubject {
  name: string;
  /** The name with its options, as typed on the command line. */
  title: string;
  /** Loss and gradient by ratio; returns undefined if the loss is not a function of ratio and advantage. */
  curve: Curve;
}

/** What a report covers, and the version that made it. */
export interface ReportInfo {
  files: readonly string[];
  /** Version of this package. */
  version: string;
  subjects: readonly ReportSubject[];
}

/** A subject's results over all parts. */
export interface ReportResult {
  loss: number;
  metrics: Record<string, number>;
  /** Euclidean norm of ∂loss/∂logprob over all tokens. */
  gradNorm: number;
}

/** Statistics of one subject's unmasked tokens. */
export interface SubjectStatistics {
  gradients: Sketch;
  /** Empty if the subject reads no advantages. */
  advantages: Sketch;
  /** The rows with the largest |gradient| of a token. */
  extremes: Extremes;
}

/** Statistics of the rollouts' unmasked tokens, and the number of masked tokens. */
export interface DataStatistics {
  rows: number;
  /** The number of unmasked tokens. */
  tokens: number;
  masked: number;
  /** ln(ratio) of each token; undefined without old log-probabilities. */
  logRatios: Sketch | undefined;
  /** Mean ln(ratio) of each row. */
  rowLogRatios: Sketch | undefined;
  /** The rows with the largest |ln(ratio)| of a token. */
  extremes: Extremes;
  /** Whether every row's response has exactly one character per token. */
  characterwise: boolean;
  /** In the order of the report's subjects. */
  subjects: readonly SubjectStatistics[];
}
