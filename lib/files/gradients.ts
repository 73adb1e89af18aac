// Gradients written back beside the ids of their rows.
import type { RolloutPart } from './part-builder.js';

/** How gradients are written. */
export interface GradientOptions {
  /** The columns, of those each part keeps, that are written beside each row's gradient. */
  ids?: readonly string[];
  /** Of tensors: one row after another with cu_seqlens (by default), or [B, T], short rows filled up with 0. */
  layout?: 'packed' | 'padded';
}

/** Writes gradients part by part. What it writes has its name only once it is whole. */
export interface GradientWriter {
  /**
   * @param grad ∂loss/∂logprob per token of the part.
   * @param gradEntropy ∂loss/∂entropy; in every part or in none.
   */
  add(part: RolloutPart, grad: Float32Array, gradEntropy?: Float32Array): Promise<void>;
  /** Ends the file and gives it its name. @returns the rows in it. */
  close(): Promise<{ rows: number; tokens: number; bytes: number }>;
  /** Takes back what has been written. Does nothing after close(). */
  abort(): Promise<void>;
}
