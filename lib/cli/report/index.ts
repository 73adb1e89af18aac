// `--report`: a page of what subjects made of rollouts, gathered part by part in bounded memory: distributions, the
// curves of each subject, and the rollouts that stand out.
import type { RolloutPart } from '../../rollouts/index.js';
import { charactersOf, Extremes, type RowSource } from './extremes.js';
import type { DataFacts, ReportAbout, ReportResult } from './facts.js';
import { renderPage } from './render.js';
import { Sketch } from './sketch.js';

export type { ReportAbout, ReportResult, ReportSubject } from './facts.js';

/** What a subject gave for a part. */
export interface ReportPartResult {
  /** ∂loss/∂logprob of each token. */
  grad: Float32Array;
  /** Per token, or per row; absent where none are read. */
  advantages?: Float32Array;
}

// Rows shown of a subject, and where there are many subjects.
const SHOWN = 5;
const SHOWN_OF_MANY = 3;

/** Makes a report: parts go in, then the results, and a page comes out. The same input gives the same page. */
export class ReportBuilder {
  readonly #about: ReportAbout;
  readonly #facts: DataFacts;
  // Reused from part to part.
  #logRatios = new Float32Array(0);

  constructor(about: ReportAbout) {
    this.#about = about;
    const shown = about.subjects.length > 2 ? SHOWN_OF_MANY : SHOWN;
    this.#facts = {
      rows: 0,
      tokens: 0,
      masked: 0,
      logRatios: undefined,
      rowLogRatios: undefined,
      extremes: new Extremes(
        SHOWN,
        about.subjects.map((_, i) => i),
      ),
      characterwise: true,
      subjects: about.subjects.map((_, i) => ({
        gradients: new Sketch(),
        advantages: new Sketch(),
        extremes: new Extremes(shown, [i]),
      })),
    };
  }

  /** Adds a part of the rollouts, with what each subject gave for it, in the order of subjects. */
  add(part: RolloutPart, results: readonly ReportPartResult[]): void {
    const facts = this.#facts;
    const { cuSeqlens, actionMask } = part.batch;
    const logRatios = this.#logRatiosOf(part);
    const perToken = results.map(({ grad, advantages }) => ({
      grad,
      advantages: advantages && spread(advantages, cuSeqlens),
    }));
    if (logRatios) {
      facts.logRatios ??= new Sketch();
      facts.rowLogRatios ??= new Sketch();
    }
    for (let row = 0; row < part.rows; row++) {
      const [start, end] = [cuSeqlens[row]!, cuSeqlens[row + 1]!];
      const response = part.kept[row]?.response;
      if (facts.characterwise && charactersOf(response, end - start) === undefined)
        facts.characterwise = false;
      let tokens = 0;
      for (let t = start; t < end; t++) if (actionMask[t] !== 0) tokens++;
      facts.rows++;
      facts.tokens += tokens;
      facts.masked += end - start - tokens;
      const source: RowSource = { part, row, logRatios, results: perToken };

      if (logRatios) {
        let sum = 0;
        for (let t = start; t < end; t++) if (actionMask[t] !== 0) sum += logRatios[t]!;
        if (tokens > 0) facts.rowLogRatios!.add(sum / tokens);
        addRow(facts.logRatios!, facts.extremes, logRatios, source);
      }
      facts.subjects.forEach((subject, i) => {
        const { grad, advantages } = perToken[i]!;
        addRow(subject.gradients, subject.extremes, grad, source);
        if (!advantages) return;
        for (let t = start; t < end; t++) if (actionMask[t] !== 0) subject.advantages.add(advantages[t]!);
      });
    }
  }

  /**
   * The page, whole: HTML that asks for nothing else.
   * @param results of all parts together, in the order of subjects.
   */
  finish(results: readonly ReportResult[]): string {
    return renderPage(this.#about, this.#facts, results);
  }

  #logRatiosOf({ batch }: RolloutPart): Float32Array | undefined {
    // Readers of files give float32.
    const { logprob, oldLogprob } = batch as { logprob: Float32Array; oldLogprob?: Float32Array };
    if (!oldLogprob) return undefined;
    if (this.#logRatios.length < logprob.length) this.#logRatios = new Float32Array(logprob.length);
    for (let t = 0; t < logprob.length; t++) this.#logRatios[t] = logprob[t]! - oldLogprob[t]!;
    return this.#logRatios;
  }
}

/** Adds a row's values to a distribution, and the row to those of the largest |value| where it is one. */
function addRow(sketch: Sketch, extremes: Extremes, values: Float32Array, source: RowSource): void {
  const { cuSeqlens, actionMask } = source.part.batch;
  const [start, end] = [cuSeqlens[source.row]!, cuSeqlens[source.row + 1]!];
  let score = 0;
  let peak = start;
  for (let t = start; t < end; t++) {
    if (actionMask[t] === 0) continue;
    const value = values[t]!;
    sketch.add(value);
    const size = Number.isNaN(value) ? Number.POSITIVE_INFINITY : Math.abs(value);
    if (size <= score) continue;
    score = size;
    peak = t;
  }
  if (extremes.has(score)) extremes.add(score, peak - start, source);
}

/** A value per token, of one per token or per row. */
function spread(values: Float32Array, offsets: Int32Array): Float32Array {
  const tokens = offsets.at(-1)!;
  if (values.length === tokens) return values;
  const result = new Float32Array(tokens);
  for (let row = 0; row < values.length; row++) result.fill(values[row]!, offsets[row]!, offsets[row + 1]!);
  return result;
}
