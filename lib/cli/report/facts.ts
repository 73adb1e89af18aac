// What a page is made of: what a report is about, and what is gathered of the data and of each subject.
import type { Curve } from './curves.js';
import type { Extremes } from './extremes.js';
import type { Sketch } from './sketch.js';

/** A loss or an algorithm that a report is on. */
export interface ReportSubject {
  name: string;
  /** Its name with the options that were given, as typed. */
  title: string;
  /**
   * What one token in a row of its own loses at each ratio, and the gradient by its log-probability; undefined where
   * the loss is none of a ratio and an advantage.
   */
  curve: Curve;
}

/** What a report is about. */
export interface ReportAbout {
  files: readonly string[];
  /** The package's. */
  version: string;
  subjects: readonly ReportSubject[];
}

/** What a subject gave for all parts. */
export interface ReportResult {
  loss: number;
  metrics: Record<string, number>;
  /** Of ∂loss/∂logprob over all tokens. */
  gradNorm: number;
}

/** What is known of a subject's tokens. */
export interface SubjectFacts {
  gradients: Sketch;
  /** Of no values where it reads none. */
  advantages: Sketch;
  /** The rows of the largest |gradient| of a token. */
  extremes: Extremes;
}

/** What is known of the data. */
export interface DataFacts {
  rows: number;
  /** Those that the masks let count. Nothing here is of others. */
  tokens: number;
  masked: number;
  /** ln of the ratio of each token; undefined where there are no old log-probabilities. */
  logRatios: Sketch | undefined;
  /** Their mean over each row. */
  rowLogRatios: Sketch | undefined;
  /** The rows of the largest |ln ratio| of a token. */
  extremes: Extremes;
  /** Whether every row's response has as many characters as the row has tokens. */
  characterwise: boolean;
  subjects: readonly SubjectFacts[];
}
