// The page's section of curves. For each loss and algorithm (subject), it shows the loss and the gradient as functions
// of the ratio, over the distribution of the ratios in the data.
import { type CurvePoint, curveAt, sampleCurve } from './curves.js';
import { binsData } from './distributions.js';
import { type Html, html } from './html.js';
import { titleOf } from './metrics.js';
import { rounded } from './numbers.js';
import type { CurvesData, PageData } from './page-data.js';
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
  return html`<section id="curves" aria-labelledby="curves-title">
<h2 id="curves-title">Loss and gradient by ratio</h2>
${
  sampled.some((points) => points !== undefined) &&
  html`<p>The loss of a one-token rollout, and its gradient with respect to the log-probability, for advantages 1 and −1.
${density && html`The grey area is the distribution of the data’s token ratios. `}<span class="hint">Drag over a chart to zoom in; double-click to zoom out.</span></p>
`
}${subjects.map((subject, i) => subjectCurves(subject, sampled[i], `curves-${i}`, density, data))}
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
  density: CurvesData['density'],
  data: PageData,
): Html {
  if (!points)
    return html`<section class="subject" aria-labelledby="${id}"><h3 id="${id}">${titleOf(title)}</h3>
<p class="note">This loss is not a function of a token’s ratio and advantage, so it has no curve.</p></section>
`;
  const values = curveAt(curve, RATIOS)!;
  return html`<section class="subject" aria-labelledby="${id}"><h3 id="${id}">${titleOf(title)}</h3>
<div class="figures two">
${figure('loss', points, density, data)}${figure('gradient', points, density, data)}</div>
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

const DIGITS = 6;

function figure(
  y: CurvesData['y'],
  points: readonly CurvePoint[],
  density: CurvesData['density'],
  data: PageData,
): Html {
  const [positive, negative] = y === 'loss' ? ([0, 2] as const) : ([1, 3] as const);
  const number =
    data.charts.push({
      kind: 'curves',
      y,
      label: 'ratio to the old policy',
      logRatios: points.map(({ logRatio }) => logRatio),
      positive: points.map(({ values }) => rounded(values[positive], DIGITS)),
      negative: points.map(({ values }) => rounded(values[negative], DIGITS)),
      ...(density && { density }),
    }) - 1;
  const name = y === 'loss' ? 'Loss' : 'Gradient';
  return html`<figure aria-labelledby="chart-${number}-name">
<figcaption><h4 id="chart-${number}-name">${name}</h4></figcaption>
<div class="plot" data-chart="${number}" role="img" aria-label="${name} by ratio: one line for advantage 1, one for advantage −1. The table below has the values."></div>
<p class="readout legend" data-readout="${number}"><span class="key positive">A = 1<output data-slot="positive"></output></span> <span class="key negative">A = −1<output data-slot="negative"></output></span> ${
    density && html`<span class="key density">token ratios</span> `
  }<output data-slot="ratio"></output></p>
</figure>
`;
}
