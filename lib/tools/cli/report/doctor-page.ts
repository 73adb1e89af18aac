// The page of `policy-loss doctor --report`: the findings, and the distributions that they are about.
import { type Diagnosis, differences, type Examination, Row } from '../../doctor/index.js';
import type { RolloutColumn, RolloutPart } from '../../rollouts/index.js';
import { type Distribution, distributionFigures } from './distributions.js';
import { findingsSection, ReportFindings } from './findings.js';
import { type Html, html } from './html.js';
import type { PageData } from './page-data.js';
import { coverage, pageOf } from './shell.js';
import { Sketch } from './sketch.js';

/** A distribution over tokens: a column, or the difference between two. */
interface Measured {
  name: string;
  label: string;
  ratio: boolean;
  column: RolloutColumn;
  /** The column that is subtracted; undefined for a distribution of one column. */
  subtracted?: RolloutColumn;
}

const MEASURED: readonly Measured[] = [
  {
    name: 'Trainer against rollout engine',
    label: 'old_logprobs − rollout_logprobs, in nats',
    ratio: false,
    column: 'old_logprobs',
    subtracted: 'rollout_logprobs',
  },
  {
    name: 'Ratio',
    label: 'ratio to the old policy',
    ratio: true,
    column: 'logprobs',
    subtracted: 'old_logprobs',
  },
  {
    name: 'Policy against reference',
    label: 'old_logprobs − ref_logprobs, in nats',
    ratio: false,
    column: 'old_logprobs',
    subtracted: 'ref_logprobs',
  },
  { name: 'Advantage', label: 'advantage per token', ratio: false, column: 'advantages' },
  { name: 'Entropy', label: 'entropy per token, in nats', ratio: false, column: 'entropy' },
];

/** Builds the page. Call `add()` for every part of the rollouts, then `finish()`. */
export class DoctorPage {
  readonly #files: readonly string[];
  readonly #version: string;
  readonly #sketches = new Map<Measured, Sketch>();
  #masked = 0;

  /** @param version the version of this package. */
  constructor(files: readonly string[], version: string) {
    this.#files = files;
    this.#version = version;
  }

  add(part: RolloutPart): void {
    this.#masked += part.batch.actionMask.length - part.tokens;
    for (let i = 0; i < part.rows; i++) {
      const row = new Row(part, i);
      for (const measured of MEASURED) {
        const a = row.values(measured.column);
        const b = measured.subtracted && row.values(measured.subtracted);
        if (!a || (measured.subtracted && !b)) continue;
        const sketch = this.#sketches.get(measured) ?? new Sketch();
        this.#sketches.set(measured, sketch);
        for (const x of b ? differences(a, b) : a) sketch.add(x);
      }
    }
  }

  /**
   * Returns the page as self-contained HTML.
   * @param examination must be finished.
   * @param diagnosis its result.
   */
  finish(examination: Examination, diagnosis: Diagnosis): string {
    const findings = new ReportFindings(examination, diagnosis);
    const data: PageData = { charts: [], strips: [] };
    const distributions = MEASURED.flatMap((measured): Distribution[] => {
      const { name, label, ratio } = measured;
      const sketch = this.#sketches.get(measured);
      return sketch ? [{ name, of: undefined, sketch, ratio, label, noun: 'token', zeros: true }] : [];
    });
    const figures = html`<section id="distributions" aria-labelledby="distributions-title">
<h2 id="distributions-title">Distributions</h2>
${distributionFigures(distributions, data)}
</section>`;
    return pageOf({
      title: 'policy-loss doctor',
      version: this.#version,
      header: this.#header(diagnosis, distributions.length > 0),
      sections: [findingsSection(findings), ...(distributions.length > 0 ? [figures] : [])],
      data,
    });
  }

  #header(diagnosis: Diagnosis, hasFigures: boolean): Html {
    const { findings, rows, tokens } = diagnosis;
    const bad = findings.filter(({ severity }) => severity !== 'info').length;
    return html`<header>
<p class="eyebrow">policy-loss doctor</p>
<h1>${bad === 0 ? 'No errors or warnings' : `${bad} ${bad === 1 ? 'error or warning' : 'errors and warnings'}`}</h1>
<p class="lead">${coverage(this.#files, { rows, tokens, masked: this.#masked })}</p>
${
  hasFigures &&
  html`<nav aria-label="Sections"><ul>
<li><a href="#findings">Findings</a></li>
<li><a href="#distributions">Distributions</a></li>
</ul></nav>`
}</header>`;
  }
}
