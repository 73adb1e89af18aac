// The page's section of distributions: histograms of ratios, margins, values, advantages and gradients, and a table of
// their quantiles.
import { type Html, html } from './html.js';
import { titleOf } from './metrics.js';
import { count, counted, percent, rounded } from './numbers.js';
import type { HistogramData, PageData } from './page-data.js';
import { short } from './short-number.js';
import { binsFor, type Histogram, type Sketch } from './sketch.js';
import { type DataStatistics, type ReportSubject, showsRatios, type ValueStatistics } from './statistics.js';

/** A distribution that a page shows as a histogram. */
export interface Distribution {
  name: string;
  /**
   * The titles of the losses and algorithms that the distribution belongs to; undefined if it belongs to all of them.
   */
  of: string | undefined;
  sketch: Sketch;
  /** Whether the values are natural logarithms of ratios. */
  ratio: boolean;
  label: string;
  /** The noun for the things that have these values, such as 'token' or 'rollout'. */
  noun: string;
  /** Whether the histogram includes values of 0. If it does not, a note under it says how many there are. */
  zeros: boolean;
  /** A sentence under the histogram. */
  note?: string;
}

/** Returns the section, which has one figure for each distribution. Adds the data of their charts to `data`. */
export function distributionsSection(
  subjects: readonly ReportSubject[],
  statistics: DataStatistics,
  data: PageData,
): Html {
  const shown = distributionsOf(subjects, statistics);
  return html`<section id="distributions" aria-labelledby="distributions-title">
<h2 id="distributions-title">Distributions</h2>
${
  !statistics.logRatios &&
  showsRatios(subjects) &&
  html`<p class="note">The rollouts have no old log-probabilities, so there are no ratios.</p>
`
}${distributionFigures(shown, data)}
</section>`;
}

/** Returns the figures of distributions and the table of their quantiles. Adds the data of the charts to `data`. */
export function distributionFigures(shown: readonly Distribution[], data: PageData): Html {
  return html`${warnings(shown)}<div class="figures">
${shown.filter(({ sketch }) => sketch.count > 0).map((distribution) => figure(distribution, data))}</div>
${quantileTable(shown)}`;
}

function distributionsOf(subjects: readonly ReportSubject[], statistics: DataStatistics): Distribution[] {
  const several = subjects.length > 1;
  const shown: Distribution[] = [];
  const common = { of: undefined, zeros: true, noun: 'token' };
  const { logRatios, rowLogRatios } = statistics;
  if (logRatios)
    shown.push({
      ...common,
      name: 'Ratio',
      sketch: logRatios,
      ratio: true,
      label: 'ratio to the old policy',
    });
  if (rowLogRatios)
    shown.push({
      ...common,
      name: 'Ratio per rollout',
      sketch: rowLogRatios,
      ratio: true,
      label: 'geometric mean of the ratios in a rollout',
      noun: 'rollout',
    });

  if (statistics.values) shown.push(...ofValues(statistics.values));
  const [first] = subjects;
  const margins = shared(
    subjects,
    statistics.subjects.map((subject) => subject.margins),
  );
  for (const { sketch, of } of margins)
    shown.push({
      ...{ ...common, of, sketch },
      name: 'Reward margin',
      ratio: false,
      label: first?.variable === 'rewards' ? 'reward of chosen − rejected' : 'β(z of chosen − z of rejected)',
      noun: 'pair',
      note: `Above 0 in ${percent(sketch.positives / sketch.count)} of the pairs.`,
    });
  const advantages = shared(
    subjects,
    statistics.subjects.map((subject) => subject.advantages),
  );
  for (const { sketch, of } of advantages)
    shown.push({
      ...{ ...common, of, sketch },
      name: 'Advantage',
      ratio: false,
      label: 'advantage per token',
    });

  statistics.subjects.forEach(({ gradients }, i) => {
    const { title, variable } = subjects[i]!;
    shown.push({
      ...common,
      noun: variable === 'rewards' ? 'rollout' : 'token',
      name: 'Gradient',
      of: several ? title : undefined,
      sketch: gradients,
      ratio: false,
      label: `∂loss/∂${variable}`,
      zeros: false,
    });
  });
  return shown;
}

/** Returns one entry for all losses and algorithms that have exactly the same distribution, which share a figure. */
function shared(
  subjects: readonly ReportSubject[],
  sketches: readonly (Sketch | undefined)[],
): { sketch: Sketch; of: string | undefined }[] {
  const groups: { sketch: Sketch; titles: string[] }[] = [];
  for (const [i, sketch] of sketches.entries()) {
    if (!sketch || sketch.count + sketch.nonFinite === 0) continue;
    const same = groups.find((group) => group.sketch.equals(sketch));
    if (same) same.titles.push(subjects[i]!.title);
    else groups.push({ sketch, titles: [subjects[i]!.title] });
  }
  return groups.map(({ sketch, titles }) => ({
    sketch,
    of: groups.length > 1 || titles.length < subjects.length ? titles.join(', ') : undefined,
  }));
}

function ofValues({ values, returns, errors, sums }: ValueStatistics): Distribution[] {
  const { count } = errors;
  const variance = (sum: number, squares: number) => squares - (sum * sum) / count;
  const ofReturns = variance(sums.returns.value, sums.squaredReturns.value);
  const explained = 1 - variance(sums.errors.value, sums.squaredErrors.value) / ofReturns;
  const common = { of: undefined, zeros: true, noun: 'token', ratio: false };
  return [
    {
      ...{ ...common, sketch: errors, name: 'Value error', label: 'value − return' },
      note: ofReturns > 0 ? `Explained variance ${short(explained)}.` : 'All returns are equal.',
    },
    { ...common, sketch: values, name: 'Value', label: 'value per token' },
    { ...common, sketch: returns, name: 'Return', label: 'return per token' },
  ];
}

const BINS = 72;

function figure(distribution: Distribution, data: PageData): Html {
  const { name, of, sketch, ratio, label, noun, zeros, note } = distribution;
  const view = sketch.view();
  const bins = sketch.histogram(binsFor(view, BINS, zeros), zeros);
  const chart: HistogramData = {
    kind: 'histogram',
    bins: binsData(bins),
    x: ratio ? 'ratio' : 'number',
    label,
    unit: noun,
    total: sketch.count,
  };
  const number = data.charts.push(chart) - 1;
  const value = ratio ? (x: number) => short(Math.exp(x)) : short;
  const summary =
    sketch.min === sketch.max
      ? `All ${noun}s: ${value(sketch.min)}.`
      : `Median ${value(sketch.quantile(0.5))}; 98% of ${noun}s between ${value(sketch.quantile(0.01))} ` +
        `and ${value(sketch.quantile(0.99))}.`;
  const notes = [
    ...(note === undefined ? [] : [note]),
    ...(!zeros && sketch.zeros > 0
      ? [
          `Not drawn: ${counted(sketch.zeros, noun)} with gradient 0 (${percent(sketch.zeros / sketch.count)}).`,
        ]
      : []),
    ...outside(distribution, bins),
  ];
  return html`<figure aria-labelledby="chart-${number}-name">
<figcaption><h3 id="chart-${number}-name">${name}${of !== undefined && html` <span class="of">${titleOf(of)}</span>`}</h3></figcaption>
<div class="y-title" aria-hidden="true">${noun}s</div>
<div class="plot" data-chart="${number}" role="img" aria-label="Histogram of ${noun}s by ${label}. ${summary}"></div>
<p class="readout" data-readout="${number}">${[summary, ...notes].join(' ')}</p>
</figure>
`;
}

/** Returns a histogram with rounded counts, which keep the data in the page short. */
export function binsData({ low, width, counts }: Histogram): Histogram {
  return { low, width, counts: counts.map((n) => rounded(n, 6)!) };
}

/** Returns a note on the values that are outside the chart, or an empty array if there are none. */
function outside({ sketch, ratio, noun, zeros }: Distribution, { low, width, counts }: Histogram): string[] {
  const value = ratio ? (x: number) => short(Math.exp(x)) : short;
  const drawn = counts.reduce((sum, n) => sum + n, zeros ? 0 : sketch.zeros);
  const missing = Math.round(sketch.count - drawn);
  if (missing < 1) return [];
  const ends = [
    ...(sketch.min < low ? [`down to ${value(sketch.min)}`] : []),
    ...(sketch.max > low + width * counts.length ? [`up to ${value(sketch.max)}`] : []),
  ];
  return [`Outside the chart: ${counted(missing, noun)}, ${ends.join(' and ')}.`];
}

function warnings(shown: readonly Distribution[]): Html[] {
  return shown
    .filter(({ sketch }) => sketch.nonFinite > 0)
    .map(
      ({ name, of, sketch, noun }) =>
        html`<p class="warning"><strong>${name}${of !== undefined && html` of ${titleOf(of)}`}:</strong> not finite for ${counted(sketch.nonFinite, noun)}.</p>
`,
    );
}

const QUANTILES = [0, 0.01, 0.25, 0.5, 0.75, 0.99, 1];
const QUANTILE_NAMES = ['min', '1%', '25%', 'median', '75%', '99%', 'max'];

function quantileTable(shown: readonly Distribution[]): Html {
  const line = ({
    name,
    of,
    sketch,
    ratio,
    noun,
  }: Distribution) => html`<tr><th scope="row">${name}${of !== undefined && html` <span class="of">${titleOf(of)}</span>`}</th>
<td>${count(sketch.count)} ${noun}s</td>${QUANTILES.map((q) => {
    const x = sketch.quantile(q);
    return html`<td>${Number.isNaN(x) ? '–' : short(ratio ? Math.exp(x) : x)}</td>`;
  })}</tr>
`;
  return html`<details><summary>Quantiles</summary>
<div class="scroll" role="region" aria-label="Quantiles" tabindex="0">
<table>
<thead><tr><td></td><th scope="col">count</th>${QUANTILE_NAMES.map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
<tbody>
${shown.map(line)}</tbody>
</table>
</div>
</details>`;
}
