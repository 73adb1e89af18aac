// Collects the statistics of a report from the rollouts, part by part. The memory that it needs is bounded.
import type { RolloutPart } from '../../rollouts/index.js';
import { charactersOf, Extremes, type RowSource } from './extremes.js';
import { Sketch } from './sketch.js';
import type { DataStatistics } from './statistics.js';

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
 * Returns the statistics of no rows.
 * @param subjects the number of losses and algorithms.
 */
export function noStatistics(subjects: number): DataStatistics {
  const indices = Array.from({ length: subjects }, (_, i) => i);
  const shown = subjects > 2 ? ROWS_SHOWN_OF_MANY : ROWS_SHOWN;
  return {
    rows: 0,
    tokens: 0,
    masked: 0,
    logRatios: undefined,
    rowLogRatios: undefined,
    extremes: new Extremes(ROWS_SHOWN, indices),
    characterwise: true,
    subjects: indices.map((i) => ({
      gradients: new Sketch(),
      advantages: new Sketch(),
      extremes: new Extremes(shown, [i]),
    })),
  };
}

/** Collects the statistics of the rows in some parts. They do not depend on how the rows are divided into parts. */
export class StatisticsCollector {
  readonly statistics: DataStatistics;
  // ln(ratio) of each token of the current part. This buffer is reused for every part.
  #logRatios = new Float32Array(0);

  /** @param subjects the number of losses and algorithms. */
  constructor(subjects: number) {
    this.statistics = noStatistics(subjects);
  }

  /**
   * Adds a part of the rollouts.
   * @param results what each loss or algorithm computed for this part, in a fixed order.
   */
  add(part: RolloutPart, results: readonly ReportPartResult[]): void {
    const { statistics } = this;
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
