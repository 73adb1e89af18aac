// Computes points on the curves of a loss and its gradient as functions of the ratio. Where the curves bend, the points
// are closer together.

/**
 * Computes the loss of a rollout with one token, and its gradient with respect to the log-probability, at each of the
 * given ratios. Returns undefined if the loss is not a function of ratio and advantage.
 */
export type Curve = (
  advantage: 1 | -1,
  ratios: Float64Array,
) => { loss: Float64Array; grad: Float64Array } | undefined;

/**
 * The values of the curves at one ratio: loss and gradient for advantage 1, then loss and gradient for advantage −1.
 */
export type CurveValues = readonly [loss: number, grad: number, lossNegative: number, gradNegative: number];

/** The values of the curves at one ratio, and the natural logarithm of this ratio. */
export interface CurvePoint {
  logRatio: number;
  values: CurveValues;
}

/** Returns the values of the curves at each of the given ratios, or undefined if the loss has no curves. */
export function curveAt(curve: Curve, ratios: readonly number[]): CurveValues[] | undefined {
  const list = Float64Array.from(ratios);
  const positive = curve(1, list);
  const negative = positive && curve(-1, list);
  return (
    negative &&
    ratios.map(
      (_, i) => [positive.loss[i]!, positive.grad[i]!, negative.loss[i]!, negative.grad[i]!] as const,
    )
  );
}

const STEPS = 160;
// After halving the step between two points 10 times, the place of a kink or a jump is known to a thousandth of the
// step.
const HALVINGS = 10;
// Between two points, a curve counts as straight if its value in the middle is this close to a straight line. The
// distance is a fraction of the height of the whole curve.
const STRAIGHT_TOLERANCE = 0.002;

/**
 * Returns points on the curves, which are closer together where a curve bends. Returns undefined if the loss has no
 * curves.
 * @param range the range of ln(ratio). It must contain 0.
 */
export function sampleCurve(
  curve: Curve,
  { low, high }: { low: number; high: number },
): CurvePoint[] | undefined {
  const step = (high - low) / STEPS;
  const before = Math.max(Math.round(-low / step), 1);
  const after = STEPS - before;
  const grid = [
    ...Array.from({ length: before }, (_, i) => low * (1 - i / before)),
    ...Array.from({ length: after + 1 }, (_, i) => (high * i) / after),
  ];
  let points = pointsAt(curve, grid);
  if (!points) return undefined;
  const heights = [0, 1, 2, 3].map((i) => {
    const values = points!.map((point) => point.values[i]!).filter(Number.isFinite);
    return Math.max(...values) - Math.min(...values);
  });

  // For each point: whether the step from it to the next point must still be halved.
  let open = points.map((_, i) => i < points!.length - 1);
  for (let halving = 0; halving < HALVINGS && open.includes(true); halving++) {
    const known: CurvePoint[] = points;
    const middles = pointsAt(
      curve,
      known.flatMap(({ logRatio }, i) => (open[i] ? (logRatio + known[i + 1]!.logRatio) / 2 : [])),
    )!;
    const refined: CurvePoint[] = [];
    const next: boolean[] = [];
    let used = 0;
    known.forEach((point, i) => {
      refined.push(point);
      const middle = open[i] ? middles[used++]! : undefined;
      const bends =
        middle !== undefined &&
        heights.some((height, k) => {
          const line = (point.values[k]! + known[i + 1]!.values[k]!) / 2;
          return Math.abs(middle.values[k]! - line) > STRAIGHT_TOLERANCE * height;
        });
      next.push(bends);
      if (!bends) return;
      refined.push(middle);
      next.push(true);
    });
    points = refined;
    open = next;
  }
  return points;
}

function pointsAt(curve: Curve, logRatios: readonly number[]): CurvePoint[] | undefined {
  const values = curveAt(curve, logRatios.map(Math.exp));
  return values && logRatios.map((logRatio, i) => ({ logRatio, values: values[i]! }));
}
