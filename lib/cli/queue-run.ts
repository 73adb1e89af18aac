// Runs plans on a queue, and prints their results.
import type { Command } from 'commander';
import type { RunProgress } from '../cluster/index.js';
import { mergePlan, type Plan } from '../parts/index.js';
import { printable } from './evaluate.js';
import { type Printable, ProgressBar } from './output.js';
import { checkDevice, type PlanningOptions, planSubject } from './plan.js';
import { connectionErrors, type QueueOptions, requiredQueue } from './queue-options.js';
import { runOnRollouts } from './rollouts-command.js';
import { note } from './streams.js';
import { makeSubject, readConfiguration, type TitledSubject, type TypedSubject } from './typed-subjects.js';

/** Evaluates a loss or an algorithm by the workers of a queue, and prints the result. */
export async function evaluateOnQueue(
  patterns: readonly string[],
  options: PlanningOptions & QueueOptions,
  typed: TypedSubject,
  command: Command,
): Promise<void> {
  const { queue, parts } = requiredQueue(options);
  const config = typed.choice === '--config' ? await readConfiguration(typed.name) : undefined;
  const subject = await makeSubject({ ...typed, config }, command);
  const { device = 'cpu', ...here } = options;
  checkDevice(device);
  const quiet = options.quiet === true;
  const { findQueue } = await import('../cluster/index.js');
  // Finds a wrong URL before all files are read.
  await findQueue(queue);
  let end = async () => {};
  await runOnRollouts(patterns, here, [typed], {}, async (run) => {
    const plan = await planSubject(run, { ...typed, config }, subject, { ...options, device });
    const submitted = await runPlan(plan, [subject], { queue, parts, quiet, submits: true });
    end = submitted.end;
    return submitted.result;
  });
  await end();
}

/** How to run a plan on a queue. */
export interface RunPlanOptions extends Required<QueueOptions> {
  quiet: boolean;
  /** Whether a run that has ended begins again. Otherwise its result is returned. */
  submits: boolean;
}

/**
 * Runs a plan on a queue.
 * @returns the result, and a function that removes the run, to be called when the result is printed.
 */
export async function runPlan(
  plan: Plan,
  subjects: readonly TitledSubject[],
  { queue, parts, quiet, submits }: RunPlanOptions,
): Promise<{ result: Printable; end: () => Promise<void> }> {
  const { findQueue, runFolder, SubmittedRun } = await import('../cluster/index.js');
  const address = await findQueue(queue);
  const run = await SubmittedRun.of(plan, { address, parts, onError: connectionErrors(address.shown) });
  const shown = new ShownProgress(quiet);
  try {
    if (submits) await run.submit();
    if (!quiet)
      note(
        `run ${run.id}: ${plan.shards.length} shards. It goes on if you leave; 'join ${run.id}' returns to it.`,
      );
    await run.follow((progress) => shown.update(progress));
    shown.stop();
    const merged = await mergePlan(plan, subjects, [runFolder(parts, run.id)]);
    const skipped = plan.configuration.skipBadRows ? merged.skipped : undefined;
    return {
      result: printable(merged, undefined, skipped, quiet),
      async end() {
        await run.remove();
        await run.close();
      },
    };
  } catch (error) {
    await run.close();
    throw error;
  } finally {
    shown.stop();
  }
}

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
    const counts = [`${done}/${jobs} shards`, `${retried} retried`, `${failed} failed`, `${workers} workers`];
    this.#bar.advance(done / jobs, rows, tokens, ` | ${counts.join(', ')}`);
  }

  stop(): void {
    this.#bar.stop();
  }
}
