// A run as its submitter sees it: submits it, follows it to its end, and removes it.
import { setTimeout as sleep } from 'node:timers/promises';
import type { Job, Queue, QueueEvents } from 'bullmq';
import { LossError } from '../../index.js';
import type { Plan } from '../parts/index.js';
import type { QueueAccess } from './address.js';
import { cancelledError, isCancelled, removeCancelled, removeMark } from './cancel.js';
import {
  jobOptions,
  RUNS,
  type RunJob,
  removeUnlocked,
  runId,
  runOf,
  SHARDS,
  shardOf,
  shardsOf,
} from './jobs.js';
import { bullmq } from './peers.js';
import { checkNoCode, hasPlan, removedError, removeRunFolder, storePlan } from './run-folder.js';
import { type RunProgress, RunWatch } from './run-watch.js';

/** The queue and the folder of a submitter. */
interface SubmitterOptions extends QueueAccess {
  /** Whether other submitters must not remove the run before close(). */
  follows?: boolean;
}

/** A run of a plan. Any number of submitters can follow the same run. */
export class SubmittedRun {
  readonly id: string;
  readonly #plan: Plan;
  readonly #parts: string;
  readonly #runs: Queue;
  readonly #shards: Queue;
  readonly #events: QueueEvents;
  readonly #watch: RunWatch;

  private constructor(plan: Plan, parts: string, runs: Queue, shards: Queue, events: QueueEvents) {
    this.id = runOf(plan);
    this.#plan = plan;
    this.#parts = parts;
    this.#runs = runs;
    this.#shards = shards;
    this.#events = events;
    this.#watch = new RunWatch(this.id, plan);
    this.#watch.listen(events);
  }

  /**
   * Connects to the queue.
   * @throws LossError if the packages of the queue are not installed, or the plan needs code.
   */
  static async of(plan: Plan, options: SubmitterOptions): Promise<SubmittedRun> {
    const { address, parts, onError, follows = false } = options;
    checkNoCode(plan.configuration);
    const { Queue, QueueEvents } = await bullmq();
    const { connection } = address;
    const runs = new Queue(RUNS, {
      connection: { ...connection, ...(follows && { connectionName: followerName(runOf(plan)) }) },
    });
    const shards = new Queue(SHARDS, { connection });
    const events = new QueueEvents(SHARDS, { connection });
    const all: NodeJS.EventEmitter[] = [runs, shards, events];
    for (const each of all) each.on('error', onError);
    const run = new SubmittedRun(plan, parts, runs, shards, events);
    try {
      await Promise.all([runs.waitUntilReady(), shards.waitUntilReady(), events.waitUntilReady()]);
    } catch (error) {
      await run.close();
      throw error;
    }
    return run;
  }

  /**
   * Submits the run, unless it is in progress. A run that has ended begins again, but shards that have parts are not
   * computed again. A run that is cancelled begins again when its shards have stopped.
   */
  async submit(): Promise<void> {
    if (await this.isCancelled()) {
      await removeCancelled(this.id, this.#runs, this.#shards);
      await removeMark(this.#runs, this.id);
    }
    await storePlan(this.#parts, this.#plan);
    if ((await this.#job())?.finishedOn !== undefined) await this.#removeJobs();
    await this.#add();
  }

  /**
   * Waits until the run has ended. A run that the queue does not know, because it has lost its data, is submitted again.
   * @param onProgress called about twice per second.
   * @throws LossError `ERR_INVALID_INPUT` if a shard has failed for good, or if the run was cancelled or removed; see
   * isRemoved().
   */
  async follow(onProgress: (progress: RunProgress) => void): Promise<void> {
    for (let first = true; ; first = false) {
      // The state comes first, so that the progress of a run that has ended is complete.
      const state = await this.#runs.getJobState(runId(this.id));
      const job = await this.#job();
      // The run is cancelled before its job is removed or its shards fail.
      if (await this.isCancelled()) throw cancelledError(this.id);
      if (!job) {
        if (await this.isRemoved()) throw removedError(this.#parts, this.id);
        await this.#add();
        continue;
      }
      if (first || state === 'completed' || state === 'failed') await this.#watch.catchUp(job);
      onProgress(this.#watch.progress(await this.#shards.getWorkersCount()));
      if (state === 'completed') return;
      if (state === 'failed') throw await this.#failure(job);
      await sleep(POLL_MS);
    }
  }

  /** Removes the run from the queue, and its parts, unless others follow it. The last of them removes it. */
  async remove(): Promise<void> {
    if (await this.#hasFollowers()) return;
    await removeRunFolder(this.#parts, this.id);
    await this.#removeJobs();
  }

  /** Returns whether somebody has removed the run since it was submitted. */
  async isRemoved(): Promise<boolean> {
    return !(await hasPlan(this.#parts, this.id));
  }

  /** Returns whether somebody has cancelled the run since it was submitted. */
  isCancelled(): Promise<boolean> {
    return isCancelled(this.#runs, this.id);
  }

  /** Disconnects from the queue. The run goes on. */
  async close(): Promise<void> {
    const all = [this.#events, this.#runs, this.#shards];
    // Without a connection, closing would wait for the next one.
    const timer = setTimeout(() => {
      for (const each of all) each.disconnect().catch(() => {});
    }, CLOSE_MS);
    await Promise.all(all.map((each) => each.close())).finally(() => clearTimeout(timer));
  }

  async #hasFollowers(): Promise<boolean> {
    // A server need not allow the command. If a run is removed that others follow, they submit it again.
    const lists = await this.#runs
      .getBackend()
      .getClientList()
      .catch(() => []);
    const name = ` name=${followerName(this.id)} `;
    return lists.some((list) => list.includes(name));
  }

  #job(): Promise<Job | undefined> {
    return this.#runs.getJob(runId(this.id));
  }

  async #add(): Promise<void> {
    if (!(await this.#job())) await this.#removeStrays();
    this.#watch.clear();
    const data: RunJob = { run: this.id, begun: 0 };
    await this.#runs.add('run', data, { ...jobOptions(RETRY_MS), jobId: runId(this.id) });
  }

  /** Removes the jobs of shards that were left without their run. The queue would not run one again that has failed. */
  async #removeStrays(): Promise<void> {
    const ids = await shardsOf(this.id, this.#shards, ['completed', 'failed']);
    for (const id of ids) await this.#shards.remove(id);
  }

  /**
   * Removes the jobs of a run that has ended. Those of shards that are still in progress after a failure must end first.
   * Meanwhile, another submitter may have begun the run again.
   */
  async #removeJobs(): Promise<void> {
    for (;;) {
      const job = await this.#job();
      if (job?.finishedOn === undefined) return;
      if (!(await removeUnlocked(job))) await sleep(POLL_MS);
    }
  }

  async #failure(job: Job): Promise<LossError> {
    const { failed = [] } = await job.getDependencies({ failed: { cursor: 0, count: 1 } });
    const id = failed[0]?.split(':').at(-1) ?? '';
    const shard = shardOf(id, this.id);
    const child: Job | undefined = shard && (await this.#shards.getJob(id));
    if (!shard || !child) return new LossError('ERR_INVALID_INPUT', `run ${this.id}: ${job.failedReason}`);
    const what = shard.phase === 'merge' ? 'merging the counts' : `shard ${shard.shard}, ${shard.phase}`;
    const tries = child.attemptsMade > 1 ? ` after ${child.attemptsMade} tries` : '';
    return new LossError('ERR_INVALID_INPUT', `run ${this.id}, ${what}${tries}: ${child.failedReason}`);
  }
}

/** Returns the name that the connection of a submitter has while it follows a run. The server lists these names. */
function followerName(run: string): string {
  return `policy-loss:${run}`;
}

const CLOSE_MS = 10_000;
const POLL_MS = 500;
const RETRY_MS = 1000;
