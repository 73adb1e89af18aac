// Runs the jobs of shards, in a process of its own for each shard at a time.
import { join } from 'node:path';
import { LossError } from '../../index.js';
import { type Collector, type EvaluationSettings, type Plan, PlanRun, type Subject } from '../parts/index.js';
import { partName, readCounts, readResult } from '../parts/part-file.js';
import { type ShardDone, type ShardJob, shardJobFrom } from './jobs.js';
import { checkNoCode, planFile, runFolder, storedPlan } from './run-folder.js';

/** How to run the jobs of shards. */
export interface ShardTasksOptions {
  /** The folder that has the folders of all runs. */
  parts: string;
  /** The version of this package. */
  program: string;
  /** Makes the functions of a plan. */
  subjectsOf: (file: string, plan: Plan) => Promise<readonly Subject[]>;
  /** Returns how a plan's rows are read and computed. */
  settingsOf: (plan: Plan) => EvaluationSettings;
  /** Returns what collects more about the rows of each shard, if the plan wants that. */
  collectorOf?: (plan: Plan, subjects: readonly Subject[]) => Promise<(() => Collector) | undefined>;
}

// A plan and the counts of all its rows take memory, so only those of the latest runs are kept.
const KEPT_RUNS = 2;

/** Runs the jobs of shards, one at a time. */
export class ShardTasks {
  readonly #options: ShardTasksOptions;
  readonly #runs = new Map<string, { plan: Plan; planRun: PlanRun }>();

  constructor(options: ShardTasksOptions) {
    this.#options = options;
  }

  /**
   * Runs a job. A shard whose part is there already is not computed again.
   * @param data the data of the job.
   * @throws LossError about the job, the plan, the files or the functions.
   */
  async run(data: unknown): Promise<ShardDone> {
    const job = shardJobFrom(data);
    const { plan, planRun } = await this.#opened(job.run);
    if (job.phase === 'merge') return planRun.mergeCounts();
    if (job.shard >= plan.shards.length)
      throw new LossError('ERR_INVALID_INPUT', {
        at: planFile(this.#options.parts, job.run),
        expected: `a shard from 0 to ${plan.shards.length - 1}`,
        received: String(job.shard),
      });
    const { rows, tokens } =
      (await this.#partOf(job as ShardJob & { phase: 'count' | 'compute' }, plan)) ??
      (await planRun.run(job.phase, job.shard));
    return { rows, tokens };
  }

  async #partOf({ run, phase, shard }: ShardJob & { phase: 'count' | 'compute' }, plan: Plan) {
    const file = join(runFolder(this.#options.parts, run), partName({ phase, shard }));
    try {
      return await (phase === 'count' ? readCounts(file, plan) : readResult(file, plan));
    } catch (error) {
      // The part is missing or damaged, so it is written anew.
      if (error instanceof LossError) return undefined;
      throw error;
    }
  }

  async #opened(run: string) {
    const known = this.#runs.get(run);
    if (known) {
      // Moves the run behind those that were not used since.
      this.#runs.delete(run);
      this.#runs.set(run, known);
      return known;
    }
    const { parts, program, subjectsOf, settingsOf, collectorOf } = this.#options;
    const plan = await storedPlan(parts, run, program);
    checkNoCode(plan.configuration);
    const subjects = await subjectsOf(planFile(parts, run), plan);
    const collect = await collectorOf?.(plan, subjects);
    const planRun = new PlanRun(plan, runFolder(parts, run), subjects, settingsOf(plan), collect);
    const opened = { plan, planRun };
    this.#runs.set(run, opened);
    const [oldest] = this.#runs.keys();
    if (this.#runs.size > KEPT_RUNS) this.#runs.delete(oldest!);
    return opened;
  }
}
