// The page's section of curves. For each loss and algorithm (subject), it shows the loss and the gradient as functions
// of the ratio, over the distribution of the ratios in the data. Figures of all losses come first.
import { type CurvePoint, curveAt, sampleCurve } from './curves.js';
import { binsData } from './distributions.js';
import { type Html, html } from './html.js';
import { LINE_COLOURS, linesFigure } from './lines-figure.js';
import { titleOf } from './metrics.js';
import type { BinsData, PageData } from './page-data.js';
import { short } from './short-number.js';
import type { Sketch } from './sketch.js';
import type { DataStatistics, ReportSubject } from './statistics.js';

/** Returns the section, which has two figures for each loss and algorithm. Adds the data of their charts to `data`. */
export function curvesSection(
  subjects: readonly ReportSubject[],
  { logRatios }: DataStatistics,
  data: PageData,
): Html {
  const range = rangeOf(logRatios);
  const density = logRatios && densityOf(logRatios, range);
  const sampled = subjects.map(({ curve }) => sampleCurve(curve, range));
  const each = subjects.map((subject, i) => subjectCurves(subject, sampled[i], `curves-${i}`, density, data));
  return html`<section id="curves" aria-labelledby="curves-title">
<h2 id="curves-title">Loss and gradient by ratio</h2>
${
  sampled.some((points) => points !== undefined) &&
  html`<p>The loss of a one-token rollout, and its gradient with respect to the log-probability, for advantages 1 and −1.
${density && html`The grey area is the distribution of the data’s token ratios. `}<span class="hint">Drag over a chart to zoom in; double-click to zoom out.</span></p>
`
}${overlaidCurves(subjects, sampled, range, density, data)}${each}
</section>`;
}

// The smallest and the largest |ln(ratio)| at which a chart may end. Ratios from 1/2 to 2 contain the usual clip
// ranges. Beyond 1/20 and 20 the curves would be too compressed to read.
const MIN_EXTENT = Math.log(2);
const MAX_EXTENT = Math.log(20);

/**
 * Returns the range of ln(ratio) that the charts show: the range of the data without the outermost 0.1% on either side,
 * plus a margin of 10%, within the limits above.
 */
function rangeOf(logRatios: Sketch | undefined): { low: number; high: number } {
  const extent = (q: number) => {
    const size = Math.abs(logRatios && logRatios.count > 0 ? logRatios.quantile(q) : 0);
    return Math.min(Math.max(size * 1.1, MIN_EXTENT), MAX_EXTENT);
  };
  return { low: -extent(0.001), high: extent(0.999) };
}

const DENSITY_BINS = 120;

function densityOf(logRatios: Sketch, { low, high }: { low: number; high: number }) {
  return binsData(logRatios.histogram({ low, width: (high - low) / DENSITY_BINS, bins: DENSITY_BINS }));
}

function subjectCurves(
  { title, curve }: ReportSubject,
  points: readonly CurvePoint[] | undefined,
  id: string,
  density: BinsData | undefined,
  data: PageData,
): Html {
  if (!points)
    return html`<section class="subject" aria-labelledby="${id}"><h3 id="${id}">${titleOf(title)}</h3>
<p class="note">This loss is not a function of a token’s ratio and advantage, so it has no curve.</p></section>
`;
  const values = curveAt(curve, RATIOS)!;
  return html`<section class="subject" aria-labelledby="${id}"><h3 id="${id}">${titleOf(title)}</h3>
<div class="figures two">
${figure('Loss', [0, 2], points, density, data)}${figure('Gradient', [1, 3], points, density, data)}</div>
<details><summary>Values</summary>
<div class="scroll" role="region" aria-label="Curve values" tabindex="0">
<table>
<thead><tr><th scope="col">ratio</th><th scope="col">loss, A = 1</th><th scope="col">gradient, A = 1</th><th scope="col">loss, A = −1</th><th scope="col">gradient, A = −1</th></tr></thead>
<tbody>
${RATIOS.map(
  (
    ratio,
    i,
  ) => html`<tr><th scope="row">${ratio}</th>${values[i]!.map((x) => html`<td>${short(x)}</td>`)}</tr>
`,
)}</tbody>
</table>
</div>
</details>
</section>
`;
}

const RATIOS = [0.25, 0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.3, 1.5, 2, 4];

function figure(
  name: string,
  [positive, negative]: readonly [number, number],
  points: readonly CurvePoint[],
  density: BinsData | undefined,
  data: PageData,
): Html {
  const valuesAt = (i: number) => points.map(({ values }) => values[i]!);
  return linesFigure(
    name,
    `${name} by ratio: one line for advantage 1, one for advantage −1. The table below has the values.`,
    [
      { label: 'A = 1', colour: 'up', values: valuesAt(positive) },
      { label: 'A = −1', colour: 'down', values: valuesAt(negative) },
    ],
    { ...BY_RATIO, xs: points.map(({ logRatio }) => logRatio), ...(density && { density }) },
    data,
  );
}

const BY_RATIO = { x: 'ratio', label: 'ratio to the old policy' } as const;

const OVERLAID = [
  ['Loss, A = 1', 0],
  ['Loss, A = −1', 2],
  ['Gradient, A = 1', 1],
  ['Gradient, A = −1', 3],
] as const;
// The number of ratios at which the curves of all losses are compared.
const SHARED_POINTS = 320;

/** Returns figures with the curves of all losses and algorithms over each other; nothing if fewer than two have curves. */
function overlaidCurves(
  subjects: readonly ReportSubject[],
  sampled: readonly (readonly CurvePoint[] | undefined)[],
  { low, high }: { low: number; high: number },
  density: BinsData | undefined,
  data: PageData,
): Html | undefined {
  const drawn = subjects.flatMap(({ title }, i) => (sampled[i] ? [{ title, points: sampled[i] }] : []));
  if (drawn.length < 2) return undefined;
  const shown = drawn.slice(0, LINE_COLOURS);
  const xs = Array.from({ length: SHARED_POINTS + 1 }, (_, i) => low + ((high - low) * i) / SHARED_POINTS);
  const figures = OVERLAID.map(([name, index]) =>
    linesFigure(
      name,
      `${name}, by ratio: one line for each loss. The tables below have the values.`,
      shown.map(({ title, points }, i) => ({
        label: title,
        colour: `line-${i}`,
        values: interpolated(points, index, xs),
      })),
      { ...BY_RATIO, xs, ...(density && { density }) },
      data,
    ),
  );
  return html`<section class="subject" aria-labelledby="curves-overlaid"><h3 id="curves-overlaid">All losses together</h3>
${drawn.length > shown.length && html`<p class="note">The first ${shown.length} of ${drawn.length}.</p>`}
<div class="figures two">
${figures}</div>
</section>
`;
}

/** Returns a curve's values at ascending places, between which its own points are straight lines. */
function interpolated(points: readonly CurvePoint[], index: number, xs: readonly number[]): number[] {
  let next = 1;
  return xs.map((x) => {
    while (next < points.length - 1 && points[next]!.logRatio < x) next++;
    const [a, b] = [points[next - 1]!, points[next]!];
    const share = (x - a.logRatio) / (b.logRatio - a.logRatio);
    return a.values[index]! + Math.min(Math.max(share, 0), 1) * (b.values[index]! - a.values[index]!);
  });
}
