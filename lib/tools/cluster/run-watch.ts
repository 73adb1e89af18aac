// What is known about the progress of a run, over all workers.
import type { Job, QueueEvents } from 'bullmq';
import type { Plan } from '../parts/index.js';
import {
  jobsIn,
  phasesOf,
  type RunPhase,
  type ShardDone,
  shardDoneFrom,
  shardOf,
  validOrNone,
} from './jobs.js';

/** The progress of a run's current phase. */
export interface RunProgress {
  phase: RunPhase;
  /** The number of jobs in the phase: the shards, or 1 in the phase 'merge'. */
  jobs: number;
  done: number;
  /** The rows and the unmasked tokens of the jobs that are done. */
  rows: number;
  tokens: number;
  /** How often a job of this run failed or lost its worker, and was tried again, since the run is watched. */
  retried: number;
  /** The number of jobs that failed for good. */
  failed: number;
  /** The number of connected workers. */
  workers: number;
}

/** Adds up what the jobs of a run report. */
export class RunWatch {
  readonly #run: string;
  readonly #plan: Plan;
  readonly #done = new Map<RunPhase, Map<number, ShardDone>>();
  #retried = 0;
  #failed = 0;

  constructor(run: string, plan: Plan) {
    this.#run = run;
    this.#plan = plan;
  }

  /** Forgets what is done, because the run begins again. */
  clear(): void {
    this.#done.clear();
    this.#retried = 0;
    this.#failed = 0;
  }

  /** Takes part in the events of the queue of shards. */
  listen(events: QueueEvents): void {
    events.on('completed', ({ jobId, returnvalue }) => this.#add(jobId, returnvalue));
    const isOwn = (id: string) => shardOf(id, this.#run) !== undefined;
    events.on('delayed', ({ jobId }) => {
      if (isOwn(jobId)) this.#retried++;
    });
    events.on('stalled', ({ jobId }) => {
      if (isOwn(jobId)) this.#retried++;
    });
    events.on('failed', ({ jobId }) => {
      if (isOwn(jobId)) this.#failed++;
    });
  }

  /** Adds the jobs that were done before the events were listened to. */
  async catchUp(job: Job): Promise<void> {
    let cursor = 0;
    do {
      const { processed = {}, nextProcessedCursor = 0 } = await job.getDependencies({
        processed: { cursor, count: PAGE },
      });
      for (const [key, value] of Object.entries(processed)) this.#add(key.split(':').at(-1)!, value);
      cursor = nextProcessedCursor;
    } while (cursor !== 0);
  }

  /** Returns the progress of the phase that is not done yet; of the last one if all are. */
  progress(workers: number): RunProgress {
    const phases = phasesOf(this.#plan);
    const done = (phase: RunPhase) => this.#done.get(phase)?.size ?? 0;
    const phase = phases.find((phase) => done(phase) < jobsIn(phase, this.#plan)) ?? phases.at(-1)!;
    let [rows, tokens] = [0, 0];
    for (const shard of this.#done.get(phase)?.values() ?? []) {
      rows += shard.rows;
      tokens += shard.tokens;
    }
    return {
      phase,
      jobs: jobsIn(phase, this.#plan),
      done: done(phase),
      rows,
      tokens,
      retried: this.#retried,
      failed: this.#failed,
      workers,
    };
  }

  /**
   * Adds a job that is done. A job may be reported more than once, and counts once. A job that the run does not have, or
   * whose result is not valid, does not count, because anybody may report it who can write to the queue.
   */
  #add(id: string, value: unknown): void {
    const shard = shardOf(id, this.#run);
    if (!shard || shard.shard >= jobsIn(shard.phase, this.#plan)) return;
    const done = validOrNone(() => shardDoneFrom(typeof value === 'string' ? JSON.parse(value) : value));
    if (!done) return;
    const all = this.#done.get(shard.phase) ?? new Map<number, ShardDone>();
    all.set(shard.shard, done);
    this.#done.set(shard.phase, all);
  }
}

const PAGE = 1000;
