// Collects the statistics of a report from the rollouts, part by part. The memory that it needs is bounded.
import { ExactSum } from '../../../base/exact-sum.js';
import type { RolloutPart } from '../../rollouts/index.js';
import { charactersOf, Extremes, type RowSource } from './extremes.js';
import { Sketch } from './sketch.js';
import {
  type DataStatistics,
  type MeasuredSubject,
  showsRatios,
  VALUE_SUMS,
  type ValueStatistics,
  type ValueSum,
} from './statistics.js';

/** The result of a loss or an algorithm for one part of the rollouts. */
export interface ReportPartResult {
  /** The gradient: one number per token, or per row for a loss of rewards. */
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
    values: undefined,
    extremes: new Extremes(ROWS_SHOWN, indices),
    characterwise: true,
    subjects: indices.map((i) => ({
      gradients: new Sketch(),
      margins: undefined,
      advantages: new Sketch(),
      extremes: new Extremes(shown, [i]),
    })),
  };
}

/** Returns the statistics of no values. */
export function noValues(): ValueStatistics {
  const sums = Object.fromEntries(VALUE_SUMS.map((name) => [name, new ExactSum()]));
  return {
    values: new Sketch(),
    returns: new Sketch(),
    errors: new Sketch(),
    sums: sums as Record<ValueSum, ExactSum>,
  };
}

/** Collects the statistics of the rows in some parts. They do not depend on how the rows are divided into parts. */
export class StatisticsCollector {
  readonly statistics: DataStatistics;
  readonly #subjects: readonly MeasuredSubject[];
  // ln(ratio) of each token of the current part. This buffer is reused for every part.
  #logRatios = new Float32Array(0);

  /** @param subjects the losses and algorithms. */
  constructor(subjects: readonly MeasuredSubject[]) {
    this.#subjects = subjects;
    this.statistics = noStatistics(subjects.length);
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
    if (this.#subjects.some(({ variable }) => variable === 'values')) addValues(statistics, part);
    this.#subjects.forEach(({ variable, margins }, i) => {
      if (!margins) return;
      const ofPairs = variable === 'rewards' ? part.batch.rewards : rowSums(part, margins);
      statistics.subjects[i]!.margins ??= new Sketch();
      addMargins(statistics.subjects[i]!.margins, ofPairs as Float64Array, margins.beta);
    });
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
        if (this.#subjects[i]!.variable === 'rewards') {
          subject.gradients.add(grad[row]!);
          return;
        }
        addRow(subject.gradients, subject.extremes, grad, source);
        if (!advantages) return;
        for (let t = start; t < end; t++) if (actionMask[t] !== 0) subject.advantages.add(advantages[t]!);
      });
    }
  }

  #logRatiosOf({ batch }: RolloutPart): Float32Array | undefined {
    // The batch comes from the file readers, which return float32 columns.
    const { logprob, oldLogprob } = batch as { logprob: Float32Array; oldLogprob?: Float32Array };
    if (!oldLogprob || !showsRatios(this.#subjects)) return undefined;
    if (this.#logRatios.length < logprob.length) this.#logRatios = new Float32Array(logprob.length);
    for (let t = 0; t < logprob.length; t++) this.#logRatios[t] = logprob[t]! - oldLogprob[t]!;
    return this.#logRatios;
  }
}

function addValues(statistics: DataStatistics, { batch }: RolloutPart): void {
  const { values, returns, actionMask } = batch as {
    values: Float32Array;
    returns: Float32Array;
  } & typeof batch;
  statistics.values ??= noValues();
  const { sums, ...sketches } = statistics.values;
  for (let t = 0; t < values.length; t++) {
    if (actionMask[t] === 0) continue;
    const [value, wanted] = [values[t]!, returns[t]!];
    const error = value - wanted;
    sketches.values.add(value);
    sketches.returns.add(wanted);
    sketches.errors.add(error);
    if (!Number.isFinite(error)) continue;
    sums.returns.add(wanted);
    sums.squaredReturns.add(wanted * wanted);
    sums.errors.add(error);
    sums.squaredErrors.add(error * error);
  }
}

/**
 * Returns the sum of the log-probabilities of each row's unmasked tokens, relative to the reference policy if asked for. Its
 * sums may stand for its log-probabilities.
 */
function rowSums({ batch, rows }: RolloutPart, { isRelative }: { isRelative: boolean }): Float64Array {
  const { cuSeqlens, actionMask, logprob, ...others } = batch;
  const refLogprob = isRelative ? (others.refLogprob as Float32Array | undefined) : undefined;
  const refSums = isRelative && !refLogprob ? (others.refLogps as Float64Array | undefined) : undefined;
  return Float64Array.from({ length: rows }, (_, row) => {
    let sum = -(refSums?.[row] ?? 0);
    for (let t = cuSeqlens[row]!; t < cuSeqlens[row + 1]!; t++)
      if (actionMask[t] !== 0) sum += logprob[t]! - (refLogprob?.[t] ?? 0);
    return sum;
  });
}

function addMargins(sketch: Sketch, ofRows: Float64Array, beta: number): void {
  for (let row = 0; row + 1 < ofRows.length; row += 2) sketch.add(beta * (ofRows[row]! - ofRows[row + 1]!));
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
