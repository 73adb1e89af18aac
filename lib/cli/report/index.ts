// Builds the page for `--report`. It receives the rollouts part by part, so the memory that it needs is bounded. The
// page shows metrics, distributions, the curves of each loss and algorithm, the rollouts with the most extreme tokens,
// and the doctor's findings about the rollouts.
import { Examination } from '../../doctor/index.js';
import type { RolloutPart } from '../../rollouts/index.js';
import { charactersOf, Extremes, type RowSource } from './extremes.js';
import { ReportFindings } from './findings.js';
import { renderPage } from './render.js';
import { Sketch } from './sketch.js';
import type { DataStatistics, ReportInfo, ReportResult } from './statistics.js';

export type { ReportInfo, ReportResult, ReportSubject } from './statistics.js';

/** The result of a loss or an algorithm for one part of the rollouts. */
export interface ReportPartResult {
  /** ∂loss/∂logprob of each token. */
  grad: Float32Array;
  /** One advantage per token, or one per row. Absent if the loss or algorithm reads no advantages. */
  advantages?: Float32Array;
}

// The number of extreme rows that the page shows for each loss or algorithm. The second number applies if there are
// more than two losses and algorithms.
const ROWS_SHOWN = 5;
const ROWS_SHOWN_OF_MANY = 3;

/**
 * Builds a report. Call `add()` for every part of the rollouts, then `finish()`. The page depends on the rows and their
 * order, but not on how the rows are divided into parts.
 */
export class ReportBuilder {
  readonly #info: ReportInfo;
  readonly #statistics: DataStatistics;
  readonly #examination = new Examination();
  // ln(ratio) of each token of the current part. This buffer is reused for every part.
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
   * @param results what each loss or algorithm computed for this part, in the order of ReportInfo.subjects.
   */
  add(part: RolloutPart, results: readonly ReportPartResult[]): void {
    const statistics = this.#statistics;
    this.#examination.add(part);
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
   * Returns the page as self-contained HTML.
   * @param results the results of each loss or algorithm for all parts together, in the order of ReportInfo.subjects.
   */
  finish(results: readonly ReportResult[]): string {
    const findings = new ReportFindings(this.#examination, this.#examination.finish(), this.#statistics);
    return renderPage(this.#info, this.#statistics, results, findings);
  }

  #logRatiosOf({ batch }: RolloutPart): Float32Array | undefined {
    // The batch comes from the file readers, which return float32 columns.
    const { logprob, oldLogprob } = batch as { logprob: Float32Array; oldLogprob?: Float32Array };
    if (!oldLogprob) return undefined;
    if (this.#logRatios.length < logprob.length) this.#logRatios = new Float32Array(logprob.length);
    for (let t = 0; t < logprob.length; t++) this.#logRatios[t] = logprob[t]! - oldLogprob[t]!;
    return this.#logRatios;
  }
}

/**
 * Adds the values of a row's unmasked tokens to a distribution. Also adds the row to the extremes if its largest
 * absolute value is large enough.
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

/**
 * Returns one value per token. If `values` has one value per row instead, each value is repeated for all tokens of its
 * row.
 * @param offsets the index of each row's first token, followed by the number of tokens.
 */
function spread(values: Float32Array, offsets: Int32Array): Float32Array {
  const tokens = offsets.at(-1)!;
  if (values.length === tokens) return values;
  const result = new Float32Array(tokens);
  for (let row = 0; row < values.length; row++) result.fill(values[row]!, offsets[row]!, offsets[row + 1]!);
  return result;
}
