// `--report out.html`: writes a command's results as an HTML page.
import { access, constants } from 'node:fs/promises';
import { dirname } from 'node:path';
import { Option } from 'commander';
import { type Batch, LossError, PolicyLossFn } from '../../index.js';
import type {
  Collector,
  FilesEvaluation,
  OnCollected,
  PartWatcher,
  Plan,
  PlannedConfiguration,
  Subject,
  SubjectEvaluation,
} from '../parts/index.js';
import { replaceWhole } from '../parts/whole-file.js';
import { describeFailure } from '../rollouts/source.js';
import { version } from './about.js';
import { catalogue, differencesOf } from './catalogue.js';
import type { MeasuredSubject, ReportBuilder, ReportInfo, ReportResult } from './report/index.js';
import type { WantedColumns } from './rollouts-command.js';
import type { TitledSubject } from './typed-subjects.js';

/** Returns the option `--report`, for the commands that can write a page. */
export const REPORT_OPTION = (
  description = 'write an HTML page with histograms, loss curves and the most extreme rollouts',
) => new Option('--report <file>', description);

/** A report on the results of one command, from the start of the computation until the page is written. */
export interface Report {
  /** The columns that must be read from the rollout files because the report shows them. */
  wanted: WantedColumns;
  /** Returns a function that collects the data of the report. It must be called for every part of the rollout files. */
  watcher(files: readonly string[]): PartWatcher;
  /** Writes the page. It must be called after the watcher has received the last part. */
  write(result: Pick<FilesEvaluation, 'subjects' | 'cosines'>): Promise<void>;
}

/**
 * Starts a report on losses and algorithms (subjects). Returns undefined if no report was requested.
 * @param file the HTML file to write; undefined if no report was requested.
 * @throws LossError `ERR_INVALID_OPTION` if the folder of the file is not writable.
 */
export async function reportOn(
  subjects: readonly TitledSubject[],
  file: string | undefined,
): Promise<Report | undefined> {
  if (file === undefined) return undefined;
  await checkWritable(file);
  // Imported only here, so that commands without --report do not load the code that builds reports.
  const { ReportBuilder } = await import('./report/index.js');
  let builder: ReportBuilder;
  return {
    wanted: REPORT_COLUMNS,
    watcher(files) {
      builder = new ReportBuilder(infoOf(subjects, files));
      return (part, results) => builder.add(part, results);
    },
    async write({ subjects, cosines }) {
      await writePage(file, builder.finish(subjects.map(resultOf), cosines));
    },
  };
}

/** The columns that must be read from rollout files because a report shows them. */
export const REPORT_COLUMNS: WantedColumns = {
  columns: ['old_logprobs'],
  keep: ['prompt', 'response', 'tokens'],
};

/**
 * Returns a function that makes a collector of what a report needs about the rows of a shard; undefined if the plan is
 * not for a report.
 * @param subjects the losses and algorithms.
 */
export async function collectorFor(
  { forReport }: PlannedConfiguration,
  subjects: readonly Subject[],
): Promise<(() => Collector) | undefined> {
  if (!forReport) return undefined;
  const { RowMeasurer, StatisticsCollector, statisticsToJson } = await import('./report/index.js');
  return () => {
    const collector = new StatisticsCollector(subjects.map(measuredOf));
    const measurer = new RowMeasurer();
    return {
      watch(part, results) {
        collector.add(part, results);
        measurer.add(part);
      },
      collected: () => ({ ...statisticsToJson(collector.statistics), doctor: measurer.toJson() }),
    };
  };
}

/** A report on the parts of a plan. */
export interface MergedReport {
  /** Must be called with what was collected about each shard, in the order of the shards. */
  add: OnCollected;
  /** Writes the page. */
  write(result: Pick<FilesEvaluation, 'subjects' | 'cosines'>): Promise<void>;
}

/**
 * Starts a report on the parts of a plan.
 * @param file the HTML file to write; undefined if no report was requested.
 * @throws LossError `ERR_INVALID_OPTION` if the folder of the file is not writable, or if the plan is not for a report.
 */
export async function reportOnParts(
  { configuration, files }: Plan,
  subjects: readonly TitledSubject[],
  file: string | undefined,
): Promise<MergedReport | undefined> {
  if (file === undefined) return undefined;
  if (!configuration.forReport)
    throw new LossError('ERR_INVALID_OPTION', {
      option: 'report',
      expected: (spell) => `a plan that was made with ${spell('forReport')}`,
      received: 'one without what a report needs',
    });
  await checkWritable(file);
  const { MergedReportBuilder } = await import('./report/index.js');
  const info = infoOf(
    subjects,
    files.map(({ file }) => file),
  );
  const builder = new MergedReportBuilder(info, configuration.maxRows);
  return {
    add: (collected) => builder.add(collected),
    write: ({ subjects, cosines }) => writePage(file, builder.finish(subjects.map(resultOf), cosines)),
  };
}

function infoOf(subjects: readonly TitledSubject[], files: readonly string[]): ReportInfo {
  return {
    files,
    version,
    subjects: subjects.map((subject) => ({
      name: subject.name,
      title: subject.title,
      ...measuredOf(subject),
      ...describe(subject),
      curve: (advantage, ratios) => curve(subject, advantage, ratios),
    })),
  };
}

function resultOf({ loss, metrics, gradNorm }: SubjectEvaluation): ReportResult {
  return { loss, metrics: metrics as Record<string, number>, gradNorm };
}

/** Returns what the statistics of a loss or algorithm depend on. */
function measuredOf({ lossFn, variable, pairs }: Subject): MeasuredSubject {
  if (!pairs) return { variable };
  if (!(lossFn instanceof PolicyLossFn)) return { variable, margins: { beta: 1, isRelative: false } };
  const { beta } = lossFn.nativeOptions;
  const isRelative = lossFn.reads.columns.includes('ref_logprob');
  return { variable, margins: { beta: typeof beta === 'number' ? beta : 1, isRelative } };
}

const LOSS_KINDS: ReadonlySet<string> = new Set(['loss', 'value', 'reward']);

/** Returns the framework of a loss of this package or of an algorithm, and what differs from functions of similar names. */
function describe({ name, functions }: TitledSubject): {
  framework?: string;
  differences?: readonly string[];
} {
  if (functions) return { framework: 'Trinity-RFT' };
  const entry = catalogue().find(
    (each) => LOSS_KINDS.has(each.kind) && [each.name, ...(each.aliases ?? [])].includes(name),
  );
  return entry ? { framework: entry.framework, differences: differencesOf(entry.unlike) } : {};
}

/**
 * Checks that the folder of a report's file is writable. Must be called before the computation, which can take hours.
 * @param file the HTML file to write; undefined if no report was requested.
 * @throws LossError `ERR_INVALID_OPTION` if it is not.
 */
export async function checkWritable(file: string | undefined): Promise<void> {
  if (file !== undefined) await writable(file, access(dirname(file), constants.W_OK));
}

/**
 * Writes a page to the file of a report. It is complete or absent.
 * @throws LossError `ERR_INVALID_OPTION` if the file cannot be written.
 */
export async function writePage(file: string, page: string): Promise<void> {
  await writable(file, replaceWhole(file, page));
}

async function writable(file: string, writing: Promise<void>): Promise<void> {
  try {
    await writing;
  } catch (error) {
    throw new LossError(
      'ERR_INVALID_OPTION',
      { at: `--report ${file}`, expected: 'a file that can be written', received: describeFailure(error) },
      { cause: error },
    );
  }
}

/**
 * Computes a policy loss and its gradient with respect to logprob for a batch with a single token, once for each of the
 * given ratios. The token's old log-probability is 0. Returns undefined if the loss is not a function of the ratio.
 */
function curve({ lossFn: fn, readsRatio }: TitledSubject, advantage: 1 | -1, ratios: Float64Array) {
  if (!readsRatio || !(fn instanceof PolicyLossFn)) return undefined;
  const loss = new Float64Array(ratios.length);
  const grad = new Float64Array(ratios.length);
  ratios.forEach((ratio, i) => {
    const batch: Batch = {
      shape: [1, 1],
      logprob: [Math.log(ratio)],
      oldLogprob: [0],
      advantages: [advantage],
      actionMask: [1],
      expertMask: [0],
      step: 0,
    };
    const result = fn.computeSync(batch, { grad: true });
    loss[i] = result.loss;
    grad[i] = result.grad![0]!;
  });
  return { loss, grad };
}
