// The page of `--report`: the results of losses and algorithms on rollouts.
import { curvesSection } from './curve-figures.js';
import { distributionsSection } from './distributions.js';
import { findingsSection, type ReportFindings } from './findings.js';
import { type Html, html } from './html.js';
import { cosinesSection, metricsSection } from './metrics.js';
import type { PageData } from './page-data.js';
import { rolloutsSection } from './rollouts.js';
import { coverage, pageOf } from './shell.js';
import {
  type Cosines,
  type DataStatistics,
  type ReportInfo,
  type ReportResult,
  showsRatios,
} from './statistics.js';

/** Returns a report as a complete HTML page. */
export function renderPage(
  info: ReportInfo,
  statistics: DataStatistics,
  results: readonly ReportResult[],
  findings: ReportFindings,
  cosines: Cosines | undefined,
): string {
  const data: PageData = { charts: [], strips: [] };
  const sections = [
    metricsSection(info.subjects, results),
    ...(cosines ? [cosinesSection(info.subjects, cosines)] : []),
    distributionsSection(info.subjects, statistics, data),
    ...(showsRatios(info.subjects) ? [curvesSection(info.subjects, statistics, data)] : []),
    ...(hasTokens(info) ? [rolloutsSection(info.subjects, statistics, data, findings)] : []),
    findingsSection(findings),
  ];
  return pageOf({
    title: `${namesOf(info)} – policy-loss report`,
    version: info.version,
    header: header(info, statistics, cosines !== undefined),
    sections,
    data,
  });
}

/** Returns whether the gradients are of tokens. */
function hasTokens({ subjects }: ReportInfo): boolean {
  return subjects.every(({ variable }) => variable !== 'rewards');
}

function header(info: ReportInfo, statistics: DataStatistics, hasCosines: boolean): Html {
  return html`<header>
<p class="eyebrow">policy-loss report</p>
<h1>${namesOf(info)}</h1>
<p class="lead">${coverage(info.files, statistics)}</p>
<nav aria-label="Sections"><ul>
<li><a href="#metrics">Metrics</a></li>
${
  hasCosines &&
  html`<li><a href="#cosines">Cosines</a></li>
`
}<li><a href="#distributions">Distributions</a></li>
${
  showsRatios(info.subjects) &&
  html`<li><a href="#curves">Curves</a></li>
`
}${
  hasTokens(info) &&
  html`<li><a href="#rollouts">Rollouts</a></li>
`
}<li><a href="#findings">Findings</a></li>
</ul></nav>
</header>`;
}

const MAX_NAMES = 4;

function namesOf({ subjects }: ReportInfo): string {
  const names = [...new Set(subjects.map(({ name }) => name))];
  if (names.length > MAX_NAMES)
    return `${names.slice(0, MAX_NAMES - 1).join(', ')} and ${names.length - MAX_NAMES + 1} more`;
  return names.length > 1 ? `${names.slice(0, -1).join(', ')} and ${names.at(-1)}` : (names[0] ?? '');
}
