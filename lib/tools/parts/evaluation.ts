// How rollout files are evaluated, and the results for the rows of a shard.
import type { StreamOptions } from '../rollouts/index.js';
import type { ProductSum } from './gradient-products.js';
import type { NonFiniteRow } from './non-finite.js';
import type { Subject } from './subject.js';
import type { ShardSubject } from './subject-result.js';

/** How to read and compute the rows of the files. */
export interface EvaluationSettings {
  /**
   * How to read rows: the columns' names, the columns to read in addition to those that the subjects need, the largest
   * row, and what to do with bad and with doubtful rows.
   */
  read: Omit<StreamOptions, 'maxTokens' | 'pairs' | 'onProgress'>;
  /** The capacity of a part, in tokens; see StreamOptions.maxTokens. */
  batchTokens: number;
  /** The device on which to compute; 'cpu' by default. */
  device?: string;
  /** Whether to compare the subjects' gradients; see ShardResult.products. */
  compares?: boolean;
  progress: EvaluationProgress;
  /** Is called at most once: for the first loss or gradient that is not finite. */
  onNonFinite?: OnNonFinite;
}

/** Receives reports on the progress of an evaluation. */
export interface EvaluationProgress {
  /**
   * Called when a stage begins.
   * @param what the stage, in one word: 'reading' or 'computing'.
   */
  begin(what: string): void;
  /**
   * Called when the current stage has advanced.
   * @param share the fraction of the stage that is done, from 0 to 1.
   * @param rows the number of rows that are done.
   * @param tokens the number of tokens that are done.
   */
  advance(share: number, rows: number, tokens: number): void;
}

/** The results of all subjects for the rows of a shard. */
export interface ShardResult {
  rows: number;
  /** The number of unmasked tokens. */
  tokens: number;
  /** The number of parts in which the rows were computed. */
  parts: number;
  /** The number of bad rows that were skipped. */
  skipped: number;
  /** The results of each subject; empty if there are no rows. */
  subjects: readonly ShardSubject[];
  /** The products of the gradients of all pairs of subjects; absent unless the gradients are compared. */
  products?: readonly ProductSum[];
}

/**
 * A function that is called for a subject whose loss or gradient is not finite.
 * @param loss the loss over the rows of one part.
 * @param row the part's first row that is the reason; undefined if no row alone is.
 */
export type OnNonFinite = (subject: Subject, loss: number, row: NonFiniteRow | undefined) => void;
