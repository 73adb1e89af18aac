// `--report out.html`: what a command's subjects made of the rollouts, as a page.
import { access, constants, writeFile } from 'node:fs/promises';
import { dirname } from 'node:path';
import { Option } from 'commander';
import { type Batch, LossError } from '../index.js';
import { version } from './about.js';
import type { PartWatcher, SubjectEvaluation } from './evaluation.js';
import type { ReportBuilder } from './report/index.js';
import type { WantedColumns } from './rollouts-command.js';
import type { Subject } from './subject.js';

/** The option of commands that make a report. */
export const REPORT_OPTION = () =>
  new Option(
    '--report <file>',
    'write a page (HTML, one file) with histograms, curves and the most extreme rollouts',
  );

/** A report in the making. */
export interface Report {
  /** The columns of rollouts that it shows. */
  wanted: WantedColumns;
  /** Who is to see every part. */
  watcher(files: readonly string[]): PartWatcher;
  /** Writes it. */
  write(results: readonly SubjectEvaluation[]): Promise<void>;
}

/**
 * A report on subjects.
 * @param file where it goes; undefined: there is to be none.
 * @throws LossError `ERR_INVALID_OPTION` where nothing can be written there.
 */
export async function reportOn(
  subjects: readonly Subject[],
  file: string | undefined,
): Promise<Report | undefined> {
  if (file === undefined) return undefined;
  // What cannot be written is better known before long work.
  await complaining(file, access(dirname(file), constants.W_OK));
  // What reports are made with is loaded where there is to be one.
  const { ReportBuilder } = await import('./report/index.js');
  let builder: ReportBuilder;
  return {
    wanted: { columns: ['old_logprobs'], keep: ['prompt', 'response', 'tokens'] },
    watcher(files) {
      builder = new ReportBuilder({
        files,
        version,
        subjects: subjects.map((subject) => ({
          name: subject.name,
          title: subject.title,
          curve: (advantage, ratios) => curve(subject, advantage, ratios),
        })),
      });
      return (part, results) => builder.add(part, results);
    },
    async write(results) {
      const metricsOf = ({ loss, metrics, gradNorm }: SubjectEvaluation) => ({
        loss,
        metrics: metrics as Record<string, number>,
        gradNorm,
      });
      await complaining(file, writeFile(file, builder.finish(results.map(metricsOf))));
    },
  };
}

async function complaining(file: string, writing: Promise<void>): Promise<void> {
  try {
    await writing;
  } catch (error) {
    throw new LossError(
      'ERR_INVALID_OPTION',
      `--report ${file}: expected a file that can be written: ${error instanceof Error ? error.message : String(error)}`,
      { cause: error },
    );
  }
}

/**
 * A policy loss over the ratio: what one token of a row of its own loses, and the gradient by its log-probability, at an
 * old log-probability of 0. undefined where the loss is none of a ratio.
 */
function curve({ policyLossFn: fn }: Subject, advantage: 1 | -1, ratios: Float64Array) {
  const { columns } = fn.reads;
  if (!columns.includes('old_logprob') || !columns.includes('advantages')) return undefined;
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
