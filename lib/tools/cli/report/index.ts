// Builds the page for `--report`. It receives the rollouts part by part, so the memory that it needs is bounded. The
// page shows metrics, distributions, the curves of each loss and algorithm, the rollouts with the most extreme tokens,
// and the doctor's findings about the rollouts.
import { Examination, RowReplay } from '../../doctor/index.js';
import type { Fields } from '../../parts/fields.js';
import type { RolloutPart } from '../../rollouts/index.js';
import { noStatistics, type ReportPartResult, StatisticsCollector } from './collect.js';
import { ReportFindings } from './findings.js';
import { renderPage } from './render.js';
import type { Cosines, DataStatistics, ReportInfo, ReportResult } from './statistics.js';
import { mergeStatistics, statisticsFrom } from './statistics-data.js';

export { RowMeasurer } from '../../doctor/index.js';
export { noStatistics, type ReportPartResult, StatisticsCollector } from './collect.js';
export type {
  DataStatistics,
  MeasuredSubject,
  ReportInfo,
  ReportResult,
  ReportSubject,
} from './statistics.js';
export { mergeStatistics, statisticsFrom, statisticsToJson } from './statistics-data.js';

/**
 * Builds a report. Call `add()` for every part of the rollouts, then `finish()`. The page depends on the rows and their
 * order, but not on how the rows are divided into parts.
 */
export class ReportBuilder {
  readonly #info: ReportInfo;
  readonly #collector: StatisticsCollector;
  readonly #examination = new Examination();

  constructor(info: ReportInfo) {
    this.#info = info;
    this.#collector = new StatisticsCollector(info.subjects);
  }

  /**
   * Adds a part of the rollouts.
   * @param results what each loss or algorithm computed for this part, in the order of ReportInfo.subjects.
   */
  add(part: RolloutPart, results: readonly ReportPartResult[]): void {
    this.#examination.add(part);
    this.#collector.add(part, results);
  }

  /**
   * Returns the page as self-contained HTML.
   * @param results the results of each loss or algorithm for all parts together, in the order of ReportInfo.subjects.
   * @param cosines the cosines between their gradients; undefined if the gradients were not compared.
   */
  finish(results: readonly ReportResult[], cosines?: Cosines): string {
    return pageOf(this.#info, this.#collector.statistics, results, this.#examination, cosines);
  }
}

/**
 * Builds a report from what was collected about each shard: the statistics, and what the doctor has measured of the rows.
 * Call `add()` for every shard in order, then `finish()`. The page is the one that ReportBuilder makes of all rows.
 */
export class MergedReportBuilder {
  readonly #info: ReportInfo;
  readonly #maxRows: number;
  readonly #statistics: DataStatistics;
  readonly #examination = new Examination();
  readonly #replay = new RowReplay(this.#examination);

  /** @param maxRows the maximum number of rows in a shard. */
  constructor(info: ReportInfo, maxRows: number) {
    this.#info = info;
    this.#maxRows = maxRows;
    this.#statistics = noStatistics(info.subjects.length);
  }

  /**
   * Adds what was collected about a shard.
   * @throws LossError `ERR_INVALID_INPUT` if a field is not as expected.
   */
  add(collected: Fields): void {
    mergeStatistics(this.#statistics, statisticsFrom(collected, this.#info.subjects.length));
    this.#replay.add(collected.object('doctor'), this.#maxRows);
  }

  /** Returns the page, as ReportBuilder.finish() does. */
  finish(results: readonly ReportResult[], cosines?: Cosines): string {
    return pageOf(this.#info, this.#statistics, results, this.#examination, cosines);
  }
}

function pageOf(
  info: ReportInfo,
  statistics: DataStatistics,
  results: readonly ReportResult[],
  examination: Examination,
  cosines: Cosines | undefined,
): string {
  const findings = new ReportFindings(examination, examination.finish(), statistics);
  return renderPage(info, statistics, results, findings, cosines);
}
