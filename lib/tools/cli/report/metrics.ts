// The page's table of metrics, with one column for each loss or algorithm.
import { type Html, html } from './html.js';
import { full } from './numbers.js';
import type { ReportResult, ReportSubject } from './statistics.js';

/** Returns the section with the metrics of all losses and algorithms. */
export function metricsSection(subjects: readonly ReportSubject[], results: readonly ReportResult[]): Html {
  const uses = new Map<string, number>();
  for (const { metrics } of results)
    for (const name of Object.keys(metrics)) uses.set(name, (uses.get(name) ?? 0) + 1);
  // The metrics that most losses and algorithms have come first.
  const names = [...uses].sort(([, a], [, b]) => b - a).map(([name]) => name);
  const line = (name: Html, of: (result: ReportResult) => number | undefined) =>
    html`<tr><th scope="row">${name}</th>${results.map((result) => cell(of(result)))}</tr>
`;
  return html`<section id="metrics" aria-labelledby="metrics-title">
<h2 id="metrics-title">Metrics</h2>
<div class="scroll" role="region" aria-labelledby="metrics-title" tabindex="0">
<table>
<thead>${frameworksRow(subjects)}<tr><td></td>${subjects.map(({ title }) => html`<th scope="col">${titleOf(title)}</th>`)}</tr></thead>
<tbody class="main">
${line(html`loss`, ({ loss }) => loss)}${line(html`gradient norm`, ({ gradNorm }) => gradNorm)}</tbody>
<tbody>
${names.map((name) => line(html`<code>${breakable(name)}</code>`, ({ metrics }) => metrics[name]))}</tbody>
</table>
</div>
${differencesList(subjects)}</section>`;
}

/**
 * Returns the section with the cosines of the angles between the gradients of losses and algorithms.
 * @param cosines cosines[i][j] is that of the subjects i and j; null if one of the gradients is 0.
 */
export function cosinesSection(
  subjects: readonly ReportSubject[],
  cosines: readonly (readonly (number | null)[])[],
): Html {
  const titles = subjects.map(({ title }) => titleOf(title));
  const line = (title: Html, row: readonly (number | null)[]) =>
    html`<tr><th scope="row">${title}</th>${row.map((cosine) => cell(cosine ?? undefined))}</tr>
`;
  return html`<section id="cosines" aria-labelledby="cosines-title">
<h2 id="cosines-title">Cosines between gradients</h2>
<div class="scroll" role="region" aria-labelledby="cosines-title" tabindex="0">
<table>
<thead><tr><td></td>${titles.map((title) => html`<th scope="col">${title}</th>`)}</tr></thead>
<tbody>
${titles.map((title, i) => line(title, cosines[i]!))}</tbody>
</table>
</div>
<p class="note">1: two losses move the policy in the same direction; 0: in unrelated ones; −1: in opposite ones.</p>
</section>`;
}

/** Returns a row that names the framework above its columns; nothing if all columns are of one framework. */
function frameworksRow(subjects: readonly ReportSubject[]): Html | undefined {
  const groups: { framework: string; columns: number }[] = [];
  for (const { framework = 'your own' } of subjects) {
    const last = groups.at(-1);
    if (last?.framework === framework) last.columns++;
    else groups.push({ framework, columns: 1 });
  }
  if (groups.length < 2) return undefined;
  return html`<tr><td></td>${groups.map(
    ({ framework, columns }) => html`<th scope="colgroup" colspan="${String(columns)}">${framework}</th>`,
  )}</tr>
`;
}

function differencesList(subjects: readonly ReportSubject[]): Html | undefined {
  const lines = subjects.flatMap(({ name, differences = [] }) => differences.map((text) => ({ name, text })));
  if (lines.length === 0) return undefined;
  return html`<ul>${lines.map(({ name, text }) => html`<li><code>${name}</code> ${text}</li>`)}</ul>
`;
}

/** Returns the title of a loss or algorithm as HTML in which a line may break only before an option. */
export function titleOf(title: string): Html {
  return html`${title.split(/ (?=--)/).map((part, i) => html`${i > 0 && ' '}<code>${part}</code>`)}`;
}

/** Returns the name of a metric as HTML in which a line may also break after a slash or an underscore. */
function breakable(name: string): Html[] {
  return name.split(/(?<=[/_])/).map((part) => html`${part}<wbr>`);
}

function cell(value: number | undefined): Html {
  if (value === undefined) return html`<td>–</td>`;
  return html`<td><data value="${String(value)}" title="${String(value)}">${full(value)}</data></td>`;
}
