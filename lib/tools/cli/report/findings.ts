// The doctor's findings on a page, and the links between them and the rollouts that the page shows.
import type { Diagnosis, Examination, Finding } from '../../doctor/index.js';
import { describeRows, missingColumns, wordsOf } from '../evidence.js';
import { type Html, html } from './html.js';
import { counted } from './numbers.js';
import { short } from './short-number.js';
import type { DataStatistics } from './statistics.js';

/** The findings about the rollouts of a page, and which of the rollouts that the page shows they are about. */
export class ReportFindings {
  readonly diagnosis: Diagnosis;
  readonly #examination: Examination;
  readonly #shown: readonly number[];
  readonly #anchored = new Set<number>();

  /**
   * @param examination must be finished.
   * @param diagnosis its result.
   * @param statistics hold the rollouts that the page shows; undefined if it shows none.
   */
  constructor(examination: Examination, diagnosis: Diagnosis, statistics?: DataStatistics) {
    this.diagnosis = diagnosis;
    this.#examination = examination;
    const all = statistics
      ? [...statistics.subjects, statistics].flatMap(({ extremes }) => extremes.rows)
      : [];
    this.#shown = [...new Set(all.map(({ index }) => index))].sort((a, b) => a - b);
  }

  /** Returns the findings that name a row. */
  about(row: number): Finding[] {
    return this.diagnosis.findings.filter(({ id }) => this.#examination.shows(id, row));
  }

  /** Returns the rows that the page shows and that a finding names. */
  shownBy(id: string): number[] {
    return this.#shown.filter((row) => this.#examination.shows(id, row));
  }

  /** Returns the attribute that makes a rollout the target of links. Only the first place of a rollout gets it. */
  anchor(row: number): Html | undefined {
    if (this.#anchored.has(row)) return undefined;
    this.#anchored.add(row);
    return html` id="rollout-${row + 1}"`;
  }
}

/** Returns the links from a rollout to the findings that name it; nothing if there are none. */
export function marksOf(findings: ReportFindings, row: number): Html | undefined {
  const about = findings.about(row);
  if (about.length === 0) return undefined;
  return html`<p class="marks">Findings: ${about.map(
    ({ id, severity, title }, i) =>
      html`${i > 0 && ', '}<a href="#finding-${id}" title="${severity}">${title}</a>`,
  )}</p>`;
}

/** Returns the section with all findings. */
export function findingsSection(findings: ReportFindings): Html {
  return html`<section id="findings" aria-labelledby="findings-title">
<h2 id="findings-title">Findings about the rollouts</h2>
${listOf(findings)}</section>`;
}

function listOf(findings: ReportFindings): Html {
  const { diagnosis } = findings;
  const missing = [...missingColumns(diagnosis)];
  return html`${
    diagnosis.findings.length === 0
      ? html`<p class="note">Nothing is wrong or suspicious.</p>
`
      : diagnosis.findings.map((finding) => article(finding, findings))
  }${
    missing.length > 0 &&
    html`<details><summary>${counted(diagnosis.checks.filter(({ ran }) => !ran).length, 'check')} could not run</summary>
<ul>${missing.map(
      ([column, checks]) =>
        html`<li>without <code>${column}</code>: ${checks.map(({ name }, i) => html`${i > 0 && ', '}<code>${name}</code>`)}</li>
`,
    )}</ul></details>`
  }`;
}

function article(finding: Finding, findings: ReportFindings): Html {
  const { id, severity, title, meaning, advice, evidence } = finding;
  const shown = findings.shownBy(id);
  return html`<article class="finding" id="finding-${id}">
<h3><span class="severity ${severity}">${severity}</span> ${title}</h3>
<dl>${Object.entries(evidence).map(
    ([name, x]) => html`<div><dt>${wordsOf(name)}</dt><dd>${short(x)}</dd></div>`,
  )}</dl>
<p>${meaning}</p>
<p><strong>Try:</strong> ${advice}</p>
<p class="note places">Seen in ${sentence(describeRows(finding, findings.diagnosis.rows))}${
    shown.length > 0 &&
    html` Shown above: ${shown.map((row, i) => html`${i > 0 && ', '}<a href="#rollout-${row + 1}">rollout ${row + 1}</a>`)}.`
  }</p>
</article>
`;
}

/** Ends a text with a full stop, unless an ellipsis ends it. */
function sentence(text: string): string {
  return text.endsWith('…') ? text : `${text}.`;
}
