// Checks that the results of a contender, such as another library, agree with this package's before it is timed.
import type { Outcome } from './works.js';

/**
 * The largest accepted relative error of a loss, a metric or a gradient. Rounding to float32 can cause errors of this
 * size.
 */
export const TOLERANCE = 1e-3;

// The least number by which the error of a loss or a metric is divided. A smaller value is a difference of larger
// numbers, so an error relative to the value itself would be too strict.
const SCALE = 0.02;

/**
 * Compares a contender's loss, metrics and gradients with this package's, and returns the largest relative error. For a
 * gradient, this is the Euclidean norm of the difference, divided by the norm of this package's gradient.
 * @throws Error if an error is above the tolerance, or if a value is missing.
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
      `${who}: expected this package's results within ${TOLERANCE}, got relative errors of ` +
        wrong.map(([name, error]) => `${error} in ${name}`).join(', '),
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
  return difference === 0 ? 0 : Math.sqrt(difference / norm);
}
