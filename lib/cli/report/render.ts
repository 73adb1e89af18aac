// The page: its frame, and what is inlined into it. It is read from a file, so it must ask for nothing: styles, programs
// and data are in it, and its security policy lets nothing else in.
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { curvesSection } from './curve-figures.js';
import { distributionsSection } from './distributions.js';
import type { DataFacts, ReportAbout, ReportResult } from './facts.js';
import { Html, html } from './html.js';
import { metricsSection } from './metrics.js';
import { count, counted } from './numbers.js';
import type { PageData } from './page-data.js';
import { rolloutsSection } from './rollouts.js';
import { STYLE } from './style.js';

/** The page of a report. */
export function renderPage(about: ReportAbout, facts: DataFacts, results: readonly ReportResult[]): string {
  const data: PageData = { charts: [], strips: [] };
  const sections = [
    metricsSection(about.subjects, results),
    distributionsSection(about.subjects, facts, data),
    curvesSection(about.subjects, facts, data),
    rolloutsSection(about.subjects, facts, data),
  ];
  const { style, plot, program } = assets();
  const policy =
    `default-src 'none'; base-uri 'none'; form-action 'none'; style-src ${hashOf(style)}; ` +
    `script-src ${hashOf(plot)} ${hashOf(program)}`;
  const page = html`<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="${policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="policy-loss ${about.version}">
<title>${namesOf(about)} – policy-loss report</title>
<style>${style}</style>
</head>
<body>
${header(about, facts)}
<main>
${sections}
</main>
<footer><p>Made by policy-loss ${about.version}. Charts by uPlot.</p></footer>
<div id="tip" role="status" hidden></div>
<script type="application/json" id="data">${Html.json(data)}</script>
<script>${plot}</script>
<script type="module">${program}</script>
</body>
</html>
`;
  return page.text;
}

function header(about: ReportAbout, facts: DataFacts): Html {
  const { rows, tokens, masked } = facts;
  return html`<header>
<p class="eyebrow">policy-loss report</p>
<h1>${namesOf(about)}</h1>
<p class="lead">${counted(rows, 'rollout')}, ${counted(tokens, 'token')}${masked > 0 && ` (${count(masked)} more ${masked === 1 ? 'is' : 'are'} masked and left out)`}, from ${filesOf(about.files)}.</p>
<nav aria-label="Sections"><ul>
<li><a href="#metrics">Metrics</a></li>
<li><a href="#distributions">Distributions</a></li>
<li><a href="#curves">Curves</a></li>
<li><a href="#rollouts">Rollouts</a></li>
</ul></nav>
</header>`;
}

const MOST_NAMES = 4;

function namesOf({ subjects }: ReportAbout): string {
  const names = [...new Set(subjects.map(({ name }) => name))];
  if (names.length > MOST_NAMES)
    return `${names.slice(0, MOST_NAMES - 1).join(', ')} and ${names.length - MOST_NAMES + 1} more`;
  return names.length > 1 ? `${names.slice(0, -1).join(', ')} and ${names.at(-1)}` : (names[0] ?? '');
}

const MOST_FILES = 3;

function filesOf(files: readonly string[]): Html {
  const shown = files.length > MOST_FILES ? files.slice(0, MOST_FILES - 1) : files;
  const more = files.length - shown.length;
  const last = more > 0 ? html` and ${counted(more, 'more file')}` : undefined;
  return html`${shown.map((file, i) => html`${i > 0 && (i === shown.length - 1 && !last ? ' and ' : ', ')}<bdi><code>${file}</code></bdi>`)}${last}`;
}

/** What is inlined. */
function assets(): { style: Html; plot: Html; program: Html } {
  const uplot = dirname(createRequire(import.meta.url).resolve('uplot/package.json'));
  const license = readFileSync(join(uplot, 'LICENSE'), 'utf8');
  const read = (file: string) => readFileSync(file, 'utf8').replace(/^\/\/# sourceMappingURL=.*$/m, '');
  return {
    style: Html.asset(`${read(join(uplot, 'dist', 'uPlot.min.css'))}\n${STYLE}`),
    plot: Html.asset(`/*\n${license.trim()}\n*/\n${read(join(uplot, 'dist', 'uPlot.iife.min.js'))}`),
    // page.ts, as it was compiled beside this file.
    program: Html.asset(read(fileURLToPath(new URL('page.js', import.meta.url)))),
  };
}

function hashOf({ text }: Html): string {
  return `'sha256-${createHash('sha256').update(text).digest('base64')}'`;
}
