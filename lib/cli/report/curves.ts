// A loss and its gradient over the ratio, sampled where they bend.

/** What one token loses, and the gradient by its log-probability, at the ratios given. */
export type Curve = (
  advantage: 1 | -1,
  ratios: Float64Array,
) => { loss: Float64Array; grad: Float64Array } | undefined;

/** Values at one ratio: loss and gradient at advantage 1, then at −1. */
export type CurveValues = readonly [loss: number, grad: number, lossNegative: number, gradNegative: number];

/** A point of the curves. */
export interface CurvePoint {
  logRatio: number;
  values: CurveValues;
}

/** Values at the ratios; undefined where there is no such curve. */
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
// A step is halved up to so many times: kinks and jumps are found to a thousandth of one.
const HALVINGS = 10;
// How far from a straight line is straight, in parts of the curve's height.
const STRAIGHT = 0.002;

/**
 * Points of a curve, closer to each other where it bends.
 * @param range of the ratio's logarithm; 0 is in it.
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

  // Whether the step after a point is still to be looked at.
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
          return Math.abs(middle.values[k]! - line) > STRAIGHT * height;
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
