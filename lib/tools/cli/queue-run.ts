// Runs plans on a queue, and prints their results.
import type { Command } from 'commander';
import type { QueueAddress, RunProgress, SubmittedRun } from '../cluster/index.js';
import { type FilesEvaluation, mergePlan, type Plan } from '../parts/index.js';
import { describeFailure } from '../rollouts/source.js';
import { type GradientEnding, GradientFiles, makeFolderFor, type WrittenFiles } from './gradient-files.js';
import { type Printable, ProgressBar } from './output.js';
import { refuseInputs } from './output-file.js';
import {
  checkDevice,
  type PlanningOptions,
  plannedColumns,
  plannedFrom,
  plannedFunction,
  planSubjects,
  SHARD_SIZE_OPTION,
} from './planning.js';
import {
  connectionErrors,
  PARTS_OPTION,
  QUEUE_OPTION,
  type QueueOptions,
  requiredQueue,
} from './queue-options.js';
import { checkWritable, reportOnParts } from './report-file.js';
import { runOnRollouts } from './rollouts-command.js';
import { note } from './streams.js';
import type { TitledSubject, TypedSubject } from './typed-subjects.js';
import type { WritingOptions } from './writing-options.js';

/** The values of the options of a command that can use a queue. */
export interface SubmittingOptions extends PlanningOptions, QueueOptions {}

/** Returns the options that a command has if it can use a queue. */
export const submittingOptions = () => [QUEUE_OPTION(), PARTS_OPTION(), SHARD_SIZE_OPTION()];

/** Returns whether the options name a queue. */
export function isSubmitted({ queue, parts }: QueueOptions): boolean {
  return queue !== undefined || parts !== undefined;
}

/**
 * Returns a merged result in its printed forms.
 * @param gradients the files of gradients that were written; undefined for a run without gradients.
 */
export type Show = (
  merged: FilesEvaluation<TitledSubject>,
  skipped: number | undefined,
  quiet: boolean,
  gradients: WrittenFiles | undefined,
) => Printable;

/** Settings of a plan that no option of the command sets. */
interface Wanted {
  compares?: boolean;
  /** The ending of the files of gradients. */
  gradients?: GradientEnding;
}

/** Computes losses and algorithms by the workers of a queue, and prints the result. */
export async function computeOnQueue(
  patterns: readonly string[],
  options: SubmittingOptions & Partial<WritingOptions>,
  typed: readonly TypedSubject[],
  command: Command,
  show: Show,
  wanted: Wanted = {},
): Promise<void> {
  const { queue, parts } = requiredQueue(options);
  const planned = await plannedFrom(typed, command);
  const { device = 'cpu', ...here } = options;
  checkDevice(device);
  // Finds what would fail only after all files are read.
  const { checkNoCode } = await import('../cluster/index.js');
  checkNoCode({ functions: planned.map(plannedFunction) });
  await checkWritable(options.report);
  const { ids = [], out } = options;
  if (out !== undefined) await makeFolderFor(out);
  const quiet = options.quiet === true;
  let end = async () => {};
  const forReport = options.report !== undefined;
  const columns = plannedColumns({ ...(wanted.gradients && { gradients: { ids } }), forReport });
  await runOnRollouts(patterns, here, typed, columns, async (run) => {
    // Finds a wrong URL before all files are read.
    const address = await connect(queue);
    const plan = await planSubjects(run, planned, { ...options, ...wanted, device, forReport });
    const subjects = planned.map(({ subject }) => subject);
    const submitted = await runPlan(plan, subjects, {
      ...{ address, parts, quiet, show, report: options.report, out },
      submits: true,
    });
    end = submitted.end;
    return submitted.result;
  });
  await end();
}

/**
 * Finds the queue.
 * @throws LossError if its URL is invalid, its packages are not installed, or no server answers.
 */
export async function connect(queue: string): Promise<QueueAddress> {
  const { findQueue } = await import('../cluster/index.js');
  return findQueue(queue);
}

/** How to run a plan on a queue. */
export interface RunPlanOptions {
  address: QueueAddress;
  parts: string;
  quiet: boolean;
  /** Whether a run that has ended begins again. Otherwise its result is returned. */
  submits: boolean;
  show: Show;
  /** The file of a report to write. The plan must be for a report. */
  report: string | undefined;
  /** The name of the files of gradients, without the numbers of shards. Given if and only if the plan has gradients. */
  out?: string | undefined;
}

/**
 * Runs a plan on a queue.
 * @returns the result, and a function that removes the run, to be called when the result is printed.
 */
export async function runPlan(
  plan: Plan,
  subjects: readonly TitledSubject[],
  { address, parts, quiet, submits, show, report, out }: RunPlanOptions,
): Promise<{ result: Printable; end: () => Promise<void> }> {
  const { cancelledError, runFolder, SubmittedRun } = await import('../cluster/index.js');
  const onError = connectionErrors(address.shown);
  const gradients = await GradientFiles.of(plan, out);
  refuseInputs(
    (gradients?.names ?? []).map((name) => ['--out', name]),
    plan.files.map(({ file }) => file),
  );
  const ended = async (run: SubmittedRun): Promise<Printable> => {
    const page = await reportOnParts(plan, subjects, report);
    const shown = new ShownProgress(quiet);
    try {
      if (!quiet)
        note(
          `run ${run.id}: ${plan.shards.length} shards. It goes on if you leave; 'join ${run.id}' returns to it.`,
        );
      await run.follow((progress) => shown.update(progress));
    } finally {
      shown.stop();
    }
    const merged = await mergePlan(plan, subjects, [runFolder(parts, run.id)], page?.add);
    await page?.write(merged);
    const written = await gradients?.place(runFolder(parts, run.id));
    return show(merged, plan.configuration.skipBadRows ? merged.skipped : undefined, quiet, written);
  };
  const run = await SubmittedRun.of(plan, { address, parts, onError, follows: true });
  try {
    for (;;) {
      if (submits) await run.submit();
      try {
        return { result: await ended(run), end: () => removeRun(plan, address, parts) };
      } catch (error) {
        // Perhaps while its parts were merged.
        if (await run.isCancelled()) throw cancelledError(run.id);
        // Another submitter may have had the result of this run just before this one followed it.
        if (!submits || !(await run.isRemoved())) throw error;
      }
    }
  } finally {
    await run.close();
  }
}

/** Removes a run whose result is printed. Does not wait for a queue that is gone. */
async function removeRun(plan: Plan, address: QueueAddress, parts: string): Promise<void> {
  const { SubmittedRun } = await import('../cluster/index.js');
  const connection = { ...address.connection, retryStrategy: () => null, commandTimeout: REMOVING_MS };
  const onError = () => {};
  try {
    const run = await SubmittedRun.of(plan, { address: { ...address, connection }, parts, onError });
    try {
      await run.remove();
    } finally {
      await run.close();
    }
  } catch (error) {
    note(`The run was not removed from the queue ${address.shown}: ${describeFailure(error)}`);
  }
}

// Longer than the ten seconds for which the connection for events waits for one.
const REMOVING_MS = 30_000;

const STAGES: Record<RunProgress['phase'], string> = {
  count: 'counting',
  merge: 'merging',
  compute: 'computing',
};

/** Shows the progress of a run over all workers. */
class ShownProgress {
  readonly #bar: ProgressBar;
  #tellsOfWorkers: boolean;
  #phase: RunProgress['phase'] | undefined;

  constructor(quiet: boolean) {
    this.#bar = new ProgressBar(quiet);
    this.#tellsOfWorkers = !quiet;
  }

  update({ phase, jobs, done, rows, tokens, retried, failed, workers }: RunProgress): void {
    if (workers === 0 && this.#tellsOfWorkers) note('No worker is connected. The run waits for one.');
    this.#tellsOfWorkers = false;
    if (phase !== this.#phase) this.#bar.begin(STAGES[phase]);
    this.#phase = phase;
    const counts = [
      `${done}/${jobs} shards`,
      `${workers} worker${workers === 1 ? '' : 's'}`,
      ...(retried > 0 ? [`${retried} retried`] : []),
      ...(failed > 0 ? [`${failed} failed`] : []),
    ];
    this.#bar.advance(done / jobs, rows, tokens, ` | ${counts.join(', ')}`);
  }

  stop(): void {
    this.#bar.stop();
  }
}
