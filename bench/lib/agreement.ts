// Sees to it that a peer computes what this package computes, before it is timed.
import type { Outcome } from './works.js';

/** The largest relative error of a loss, a metric or a gradient that is taken for rounding in float32. */
export const TOLERANCE = 1e-3;

// Values that are smaller than this are compared as if they were this large: they are differences of larger ones.
const SCALE = 0.02;

/**
 * The largest relative error of a peer's loss, metrics and gradients, the latter by the Euclidean norm.
 * @throws Error where it is above the tolerance, or where something is missing.
 */
export function checkAgreement(who: string, theirs: Outcome, ours: Outcome): number {
  const errors: Record<string, number> = { loss: relative(theirs.loss, ours.loss) };
  for (const [name, value] of Object.entries(ours.metrics))
    errors[name] = relative(theirs.metrics[name] ?? Number.NaN, value!);
  for (const name of ['grad', 'gradEntropy'] as const)
    if (ours[name]) errors[name] = distance(theirs[name], ours[name]);
  const wrong = Object.entries(errors).filter(([, error]) => !(error <= TOLERANCE));
  if (wrong.length > 0)
    throw new Error(
      `${who} computes something else: ${wrong.map(([name, error]) => `${name} is off by ${error}`).join(', ')}`,
    );
  return Math.max(...Object.values(errors));
}

function relative(theirs: number, ours: number): number {
  return Math.abs(theirs - ours) / Math.max(Math.abs(ours), SCALE);
}

function distance(theirs: Float32Array | undefined, ours: Float32Array): number {
  if (theirs?.length !== ours.length) return Number.NaN;
  let difference = 0;
  let norm = 0;
  for (let i = 0; i < ours.length; i++) {
    difference += (theirs[i]! - ours[i]!) ** 2;
    norm += ours[i]! ** 2;
  }
  return Math.sqrt(difference / norm);
}
