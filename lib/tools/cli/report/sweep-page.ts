// The page of `policy-loss sweep --report`: each number of the results over the values of an option.
import { type Html, html } from './html.js';
import { LINE_COLOURS, linesFigure } from './lines-figure.js';
import { full } from './numbers.js';
import type { LinesData, PageData } from './page-data.js';
import { coverage, pageOf } from './shell.js';

/** The results of a sweep: `Sweep` of the command line, with the files and the version of the package. */
export interface SweepPageInfo {
  files: readonly string[];
  version: string;
  name: string;
  axes: Readonly<Record<string, readonly unknown[]>>;
  points: readonly SweepPagePoint[];
  rows: number;
  tokens: number;
}

interface SweepPagePoint {
  options: Readonly<Record<string, unknown>>;
  loss: number;
  gradNorm: number;
  metrics: Readonly<Partial<Record<string, number>>>;
}

/** Returns the page as self-contained HTML. */
export function sweepPage(info: SweepPageInfo): string {
  const data: PageData = { charts: [], strips: [] };
  return pageOf({
    title: `${info.name} – policy-loss sweep`,
    version: info.version,
    header: html`<header>
<p class="eyebrow">policy-loss sweep</p>
<h1>${info.name} by ${Object.keys(info.axes).join(', ')}</h1>
<p class="lead">${info.points.length} combinations on ${coverage(info.files, { ...info, masked: 0 })}</p>
<nav aria-label="Sections"><ul>
<li><a href="#plots">Plots</a></li>
<li><a href="#values">Values</a></li>
</ul></nav>
</header>`,
    sections: [plots(info, data), valuesTable(info)],
    data,
  });
}

type Quantity = readonly [name: string, of: (point: SweepPagePoint) => number | undefined];

/** Returns the loss, the gradient norm and the metrics. */
function quantitiesOf({ points }: SweepPageInfo): Quantity[] {
  const metrics = [...new Set(points.flatMap((point) => Object.keys(point.metrics)))];
  return [
    ['loss', ({ loss }) => loss],
    ['gradient norm', ({ gradNorm }) => gradNorm],
    ...metrics.map((name): Quantity => [name, (point) => point.metrics[name]]),
  ];
}

function plots(info: SweepPageInfo, data: PageData): Html {
  const axis = horizontalAxis(info);
  const lines = linesOf(info, axis);
  const shown = lines.slice(0, LINE_COLOURS);
  const varying = quantitiesOf(info).filter(([, of]) => new Set(info.points.map(of)).size > 1);
  return html`<section id="plots" aria-labelledby="plots-title">
<h2 id="plots-title">Plots by ${axis.label}</h2>
${lines.length > shown.length && html`<p class="note">The first ${shown.length} of ${lines.length} lines. The table has all values.</p>`}
<div class="figures two">
${varying.map(([name, of]) =>
  linesFigure(
    name,
    `${name} by ${axis.label}. The table below has the values.`,
    shown.map(({ label, points }, i) => ({
      label,
      colour: `line-${i}`,
      values: points.map((point) => of(point) ?? Number.NaN),
    })),
    axis,
    data,
  ),
)}</div>
</section>`;
}

type Axis = Pick<LinesData, 'x' | 'label' | 'xs'> & { names?: string[]; values: readonly unknown[] };

/** Returns the horizontal axis: the option with the most numbers or, without numbers, with the most values. */
function horizontalAxis({ axes }: SweepPageInfo): Axis {
  const all = Object.entries(axes);
  const isNumeric = (values: readonly unknown[]) => values.every((value) => typeof value === 'number');
  const numeric = all.filter(([, values]) => isNumeric(values));
  const [label, values] = (numeric.length > 0 ? numeric : all).reduce((most, each) =>
    each[1].length > most[1].length ? each : most,
  );
  if (!isNumeric(values))
    return { x: 'name', label, xs: values.map((_, i) => i), names: values.map(String), values };
  const sorted = (values as number[]).toSorted((a, b) => a - b);
  return { x: 'number', label, xs: sorted, values: sorted };
}

/** Returns the points of each line, along the axis. A line has one value of every other option. */
function linesOf({ axes, points }: SweepPageInfo, { label, values }: Axis) {
  const others = Object.keys(axes).filter((name) => name !== label);
  const lines = new Map<string, SweepPagePoint[]>();
  for (const point of points) {
    const key = others.map((name) => `${name} ${point.options[name]}`).join(', ') || 'all rollouts';
    const line = lines.get(key) ?? [];
    line[values.indexOf(point.options[label])] = point;
    lines.set(key, line);
  }
  return [...lines].map(([name, line]) => ({ label: name, points: line }));
}

function valuesTable(info: SweepPageInfo): Html {
  const names = Object.keys(info.axes);
  const quantities = quantitiesOf(info);
  const line = (point: SweepPagePoint) =>
    html`<tr><th scope="row">${names.map((name) => String(point.options[name])).join(', ')}</th>${quantities.map(
      ([, of]) => {
        const value = of(point);
        return html`<td>${value === undefined ? '–' : full(value)}</td>`;
      },
    )}</tr>
`;
  return html`<section id="values" aria-labelledby="values-title">
<h2 id="values-title">Values</h2>
<div class="scroll" role="region" aria-labelledby="values-title" tabindex="0">
<table>
<thead><tr><th scope="col">${names.join(', ')}</th>${quantities.map(([name]) => html`<th scope="col">${name}</th>`)}</tr></thead>
<tbody>
${info.points.map(line)}</tbody>
</table>
</div>
</section>`;
}
