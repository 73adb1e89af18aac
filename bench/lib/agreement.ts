// Checks that the results of a contender, such as PyTorch, agree with this package's before it is timed.

/**
 * The largest accepted relative error of a loss, a metric or a gradient. Rounding to float32 can cause errors of this
 * size.
 */
const TOLERANCE = 1e-3;
/** The same for results that are rounded to bfloat16, which keeps 8 bits. */
export const BFLOAT16_TOLERANCE = 2 ** -8;

// The least number by which the error of a loss or a metric is divided. A smaller value is a difference of larger
// numbers, so an error relative to the value itself would be too strict.
const SCALE = 0.02;

/** The results of a call. */
export interface Results {
  loss: number;
  metrics: Partial<Record<string, number>>;
  /** The gradients with respect to the columns that the function is differentiated by, in their order. */
  gradients: readonly Float32Array[];
}

/**
 * Compares a contender's loss, metrics and gradients with this package's. The error of a gradient is the Euclidean norm
 * of the difference, divided by the norm of this package's gradient.
 * @throws Error if an error is above the tolerance, or if a value is missing.
 */
export function checkAgreement(who: string, theirs: Results, ours: Results, tolerance = TOLERANCE): void {
  const errors: Record<string, number> = { loss: relative(theirs.loss, ours.loss) };
  for (const [name, value] of Object.entries(ours.metrics))
    errors[name] = relative(theirs.metrics[name] ?? Number.NaN, value!);
  ours.gradients.forEach((gradient, i) => {
    errors[`gradient ${i}`] = distance(theirs.gradients[i], gradient);
  });
  const wrong = Object.entries(errors).filter(([, error]) => !(error <= tolerance));
  if (wrong.length > 0)
    throw new Error(
      `${who}: expected this package's results within ${tolerance}, got relative errors of ` +
        wrong.map(([name, error]) => `${error} in ${name}`).join(', '),
    );
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
