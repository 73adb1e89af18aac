// Builds the page for `--report`. It receives the rollouts part by part, so the memory that it needs is bounded. The
// page shows metrics, distributions, the curves of each loss and algorithm, the rollouts with the most extreme tokens,
// and the doctor's findings about the rollouts.
import { Examination } from '../../doctor/index.js';
import type { RolloutPart } from '../../rollouts/index.js';
import { type ReportPartResult, StatisticsCollector } from './collect.js';
import { ReportFindings } from './findings.js';
import { renderPage } from './render.js';
import type { ReportInfo, ReportResult } from './statistics.js';

export { noStatistics, type ReportPartResult, StatisticsCollector } from './collect.js';
export { renderPage } from './render.js';
export type { DataStatistics, ReportInfo, ReportResult, ReportSubject } from './statistics.js';
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
    this.#collector = new StatisticsCollector(info.subjects.length);
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
   */
  finish(results: readonly ReportResult[]): string {
    const { statistics } = this.#collector;
    const findings = new ReportFindings(this.#examination, this.#examination.finish(), statistics);
    return renderPage(this.#info, statistics, results, findings);
  }
}
