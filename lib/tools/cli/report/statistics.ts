// The types of a report's contents: the losses and algorithms that it covers (its subjects), their results, and the
// statistics of the rollouts.

import type { ExactSum } from '../../../base/exact-sum.js';
import type { Curve } from './curves.js';
import type { Extremes } from './extremes.js';
import type { Sketch } from './sketch.js';

/** What the statistics of a loss or algorithm depend on. */
export interface MeasuredSubject {
  /** The column by which it is differentiated. The gradient has one number per row for rewards, and else per token. */
  variable: 'logprob' | 'values' | 'rewards';
  /**
   * How the margin of a pair of rows is computed; absent if the loss does not compare pairs. For log-probabilities, it is β
   * times the difference between the rows' sums, which are relative to the reference policy if the loss reads that. For
   * rewards, it is their difference.
   */
  margins?: { beta: number; isRelative: boolean };
}

/** Returns whether a page about losses and algorithms shows ratios to the old policy. */
export function showsRatios(subjects: readonly MeasuredSubject[]): boolean {
  return subjects.some(({ variable, margins }) => variable === 'logprob' && !margins);
}

/** A loss or an algorithm that the report covers. */
export interface ReportSubject extends MeasuredSubject {
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
  /** The Euclidean norm of the gradient. */
  gradNorm: number;
}

/** The cosines of the angles between the gradients of each two losses and algorithms; null if one of the gradients is 0. */
export type Cosines = readonly (readonly (number | null)[])[];

/** The statistics of one loss or algorithm over all unmasked tokens. */
export interface SubjectStatistics {
  gradients: Sketch;
  /** The distribution of the margins of all pairs; undefined if the loss does not compare pairs. */
  margins: Sketch | undefined;
  /** The distribution of the advantages. It has no values if the loss or algorithm reads no advantages. */
  advantages: Sketch;
  /** The rows that contain the tokens with the largest absolute gradients. */
  extremes: Extremes;
}

/** The statistics of values and returns over all unmasked tokens. */
export interface ValueStatistics {
  values: Sketch;
  returns: Sketch;
  /** The distribution of value − return. */
  errors: Sketch;
  /** Sums over the tokens at which both are finite, from which the explained variance is computed. */
  sums: Record<ValueSum, ExactSum>;
}

/** The names of ValueStatistics.sums. */
export const VALUE_SUMS = ['returns', 'squaredReturns', 'errors', 'squaredErrors'] as const;
export type ValueSum = (typeof VALUE_SUMS)[number];

/** The statistics of the rollouts. They cover only unmasked tokens, except for the number of masked ones. */
export interface DataStatistics {
  rows: number;
  /** The number of unmasked tokens. */
  tokens: number;
  masked: number;
  /** The distribution of ln(ratio) over all tokens; undefined if the page shows none, or without old log-probabilities. */
  logRatios: Sketch | undefined;
  /** The distribution, over all rows, of the mean ln(ratio) of a row; undefined like `logRatios`. */
  rowLogRatios: Sketch | undefined;
  /** Undefined unless a loss of values is computed. */
  values: ValueStatistics | undefined;
  /** The rows that contain the tokens with the largest |ln(ratio)|. */
  extremes: Extremes;
  /** Whether every row's response has exactly one character per token. */
  characterwise: boolean;
  /** The statistics of each loss or algorithm, in the order of ReportInfo.subjects. */
  subjects: readonly SubjectStatistics[];
}
