// A figure of the page: a chart of lines with a legend, which also shows the values under the pointer.
import { type Html, html } from './html.js';
import { rounded } from './numbers.js';
import type { LinesData, PageData } from './page-data.js';

/** A line with its name in the legend. */
export interface NamedLine {
  label: string;
  colour: string;
  values: readonly number[];
}

/** The number of colours in the style sheet for lines that are compared: `line-0`, `line-1` and so on. */
export const LINE_COLOURS = 8;

// The number of patterns by which lines differ in addition to their colours.
const DASHES = 3;
const DIGITS = 6;

/**
 * Returns a figure. Adds the data of its chart to `data`.
 * @param description the chart in words, for screen readers.
 */
export function linesFigure(
  name: string,
  description: string,
  lines: readonly NamedLine[],
  chart: Omit<LinesData, 'kind' | 'lines'>,
  data: PageData,
): Html {
  const number =
    data.charts.push({
      kind: 'lines',
      ...chart,
      lines: lines.map(({ colour, values }) => ({ colour, values: values.map((y) => rounded(y, DIGITS)) })),
    }) - 1;
  return html`<figure aria-labelledby="chart-${number}-name">
<figcaption><h4 id="chart-${number}-name">${name}</h4></figcaption>
<div class="plot" data-chart="${number}" role="img" aria-label="${description}"></div>
<p class="readout legend" data-readout="${number}">${lines.map(
    ({ label, colour }, i) =>
      html`<span class="key ${colour} dash-${i % DASHES}">${label}<output data-slot="${i}"></output></span> `,
  )}${chart.density && html`<span class="key density">token ratios</span> `}<output data-slot="x"></output></p>
</figure>
`;
}
