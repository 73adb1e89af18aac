// What each subject makes of a token's ratio: loss and gradient at advantage 1 and −1, before the data's own ratios.
import { type CurvePoint, curveAt, sampleCurve } from './curves.js';
import { binsData } from './distributions.js';
import type { DataFacts, ReportSubject } from './facts.js';
import { type Html, html } from './html.js';
import { titleOf } from './metrics.js';
import { rounded, short } from './numbers.js';
import type { CurvesData, PageData } from './page-data.js';
import type { Sketch } from './sketch.js';

/** Two figures for each subject. */
export function curvesSection(subjects: readonly ReportSubject[], facts: DataFacts, data: PageData): Html {
  const range = rangeOf(facts.logRatios);
  const density = facts.logRatios && densityOf(facts.logRatios, range);
  const sampled = subjects.map(({ curve }) => sampleCurve(curve, range));
  return html`<section id="curves" aria-labelledby="curves-title">
<h2 id="curves-title">Loss and gradient over the ratio</h2>
${
  sampled.some((points) => points !== undefined) &&
  html`<p>The loss of a rollout that is a single token, and its gradient by the token’s log-probability, for advantages of 1 and −1.
${density && html`The grey area shows where the data’s ratios lie, token by token. `}<span class="hint">Drag over a chart to zoom in, double-click to go back.</span></p>
`
}${subjects.map((subject, i) => subjectCurves(subject, sampled[i], `curves-${i}`, density, data))}
</section>`;
}

// At least what the usual clip ranges are in, and no more than ratios can be told apart in.
const LEAST = Math.log(2);
const MOST = Math.log(20);

/** The range of ln ratio that is drawn: the data's, but for a thousandth on either side. */
function rangeOf(logRatios: Sketch | undefined): { low: number; high: number } {
  const of = (q: number) => Math.abs(logRatios && logRatios.count > 0 ? logRatios.quantile(q) : 0);
  const within = (x: number) => Math.min(Math.max(x * 1.1, LEAST), MOST);
  return { low: -within(of(0.001)), high: within(of(0.999)) };
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
<p class="note">Its loss is not one of a token’s ratio and advantage, so there is nothing to draw.</p></section>
`;
  const values = curveAt(curve, RATIOS)!;
  return html`<section class="subject" aria-labelledby="${id}"><h3 id="${id}">${titleOf(title)}</h3>
<div class="figures two">
${figure('loss', points, density, data)}${figure('gradient', points, density, data)}</div>
<details><summary>Values</summary>
<div class="scroll" role="region" aria-label="Values of the curves" tabindex="0">
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
<div class="plot" data-chart="${number}" role="img" aria-label="${name} over the ratio, a line for advantage 1 and one for advantage −1. The values are in the table below."></div>
<p class="readout legend" data-readout="${number}"><span class="key positive">A = 1<output data-slot="positive"></output></span> <span class="key negative">A = −1<output data-slot="negative"></output></span> ${
    density && html`<span class="key density">tokens</span> `
  }<output data-slot="ratio"></output></p>
</figure>
`;
}
