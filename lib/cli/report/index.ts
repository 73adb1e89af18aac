// Builds the page of `--report` part by part in bounded memory. It shows metrics, distributions, each subject's curves,
// and the rollouts with the most extreme tokens.
import type { RolloutPart } from '../../rollouts/index.js';
import { charactersOf, Extremes, type RowSource } from './extremes.js';
import { renderPage } from './render.js';
import { Sketch } from './sketch.js';
import type { DataStatistics, ReportInfo, ReportResult } from './statistics.js';

export type { ReportInfo, ReportResult, ReportSubject } from './statistics.js';

/** A subject's result for one part. */
export interface ReportPartResult {
  /** ∂loss/∂logprob of each token. */
  grad: Float32Array;
  /** One per token or one per row; absent if the subject reads no advantages. */
  advantages?: Float32Array;
}

// Extreme rows to show per subject; fewer if there are more than two subjects.
const ROWS_SHOWN = 5;
const ROWS_SHOWN_OF_MANY = 3;

/**
 * Builds a report: call `add()` for every part, then `finish()`. The same rows in the same order give the same page,
 * however they are divided into parts.
 */
export class ReportBuilder {
  readonly #info: ReportInfo;
  readonly #statistics: DataStatistics;
  // A buffer reused for every part.
  #logRatios = new Float32Array(0);

  constructor(info: ReportInfo) {
    this.#info = info;
    const shown = info.subjects.length > 2 ? ROWS_SHOWN_OF_MANY : ROWS_SHOWN;
    this.#statistics = {
      rows: 0,
      tokens: 0,
      masked: 0,
      logRatios: undefined,
      rowLogRatios: undefined,
      extremes: new Extremes(
        ROWS_SHOWN,
        info.subjects.map((_, i) => i),
      ),
      characterwise: true,
      subjects: info.subjects.map((_, i) => ({
        gradients: new Sketch(),
        advantages: new Sketch(),
        extremes: new Extremes(shown, [i]),
      })),
    };
  }

  /**
   * Adds a part of the rollouts.
   * @param results each subject's result for the part, in the order of the subjects.
   */
  add(part: RolloutPart, results: readonly ReportPartResult[]): void {
    const statistics = this.#statistics;
    const { cuSeqlens, actionMask } = part.batch;
    const logRatios = this.#logRatiosOf(part);
    const perToken = results.map(({ grad, advantages }) => ({
      grad,
      advantages: advantages && spread(advantages, cuSeqlens),
    }));
    if (logRatios) {
      statistics.logRatios ??= new Sketch();
      statistics.rowLogRatios ??= new Sketch();
    }
    for (let row = 0; row < part.rows; row++) {
      const [start, end] = [cuSeqlens[row]!, cuSeqlens[row + 1]!];
      const response = part.kept[row]?.response;
      if (statistics.characterwise && charactersOf(response, end - start) === undefined)
        statistics.characterwise = false;
      let tokens = 0;
      for (let t = start; t < end; t++) if (actionMask[t] !== 0) tokens++;
      statistics.rows++;
      statistics.tokens += tokens;
      statistics.masked += end - start - tokens;
      const source: RowSource = { part, row, logRatios, results: perToken };

      if (logRatios) {
        let sum = 0;
        for (let t = start; t < end; t++) if (actionMask[t] !== 0) sum += logRatios[t]!;
        if (tokens > 0) statistics.rowLogRatios!.add(sum / tokens);
        addRow(statistics.logRatios!, statistics.extremes, logRatios, source);
      }
      statistics.subjects.forEach((subject, i) => {
        const { grad, advantages } = perToken[i]!;
        addRow(subject.gradients, subject.extremes, grad, source);
        if (!advantages) return;
        for (let t = start; t < end; t++) if (actionMask[t] !== 0) subject.advantages.add(advantages[t]!);
      });
    }
  }

  /**
   * Returns the page: HTML that loads nothing else.
   * @param results each subject's result over all parts, in the order of the subjects.
   */
  finish(results: readonly ReportResult[]): string {
    return renderPage(this.#info, this.#statistics, results);
  }

  #logRatiosOf({ batch }: RolloutPart): Float32Array | undefined {
    // The file readers return float32 columns.
    const { logprob, oldLogprob } = batch as { logprob: Float32Array; oldLogprob?: Float32Array };
    if (!oldLogprob) return undefined;
    if (this.#logRatios.length < logprob.length) this.#logRatios = new Float32Array(logprob.length);
    for (let t = 0; t < logprob.length; t++) this.#logRatios[t] = logprob[t]! - oldLogprob[t]!;
    return this.#logRatios;
  }
}

/**
 * Adds the values of a row's unmasked tokens to a distribution, and the row to the extremes if its largest |value|
 * qualifies.
 */
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
  if (extremes.accepts(score)) extremes.add(score, peak - start, source);
}

/** Returns one value per token, given one per token or one per row. */
function spread(values: Float32Array, offsets: Int32Array): Float32Array {
  const tokens = offsets.at(-1)!;
  if (values.length === tokens) return values;
  const result = new Float32Array(tokens);
  for (let row = 0; row < values.length; row++) result.fill(values[row]!, offsets[row]!, offsets[row + 1]!);
  return result;
}
