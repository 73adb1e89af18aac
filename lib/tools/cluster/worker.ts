// A worker takes the jobs of any runs. Jobs of runs are short: they add the jobs of the next phase. Jobs of shards are
// computed in processes of their own, so that the worker always answers the queue.
import type { Job, Queue } from 'bullmq';
import type { QueueAddress } from './address.js';
import { cancelledError, isCancelled } from './cancel.js';
import { CancelWatch } from './cancel-watch.js';
import {
  jobOptions,
  jobsIn,
  phasesOf,
  RUNS,
  runJobFrom,
  SHARDS,
  type ShardDone,
  type ShardJob,
  shardId,
  shardJobFrom,
  validOrNone,
} from './jobs.js';
import { bullmq } from './peers.js';
import { storedPlan } from './run-folder.js';

/** The options of a worker. */
export interface WorkerOptions {
  address: QueueAddress;
  /** The folder that has the folders of all runs. */
  parts: string;
  /** The version of this package. */
  program: string;
  /** The number of shards that are computed at a time, each in a process of its own. */
  concurrency: number;
  /** The milliseconds after which a worker that does not answer loses its shards. */
  lockMs: number;
  /** The wait before a shard that failed is tried again. It doubles from try to try. */
  retryMs: number;
  /** The module whose default export runs a shard's job. */
  shardProcess: URL;
  /** The environment of the processes. */
  environment: NodeJS.ProcessEnv;
  onDone: (job: ShardJob, done: ShardDone) => void;
  /** Called when a shard was stopped because its run is cancelled. */
  onStopped: (job: ShardJob) => void;
  /**
   * @param job undefined if it is not a valid job.
   * @param tries the number of tries so far.
   */
  onFailed: (job: ShardJob | undefined, tries: number, reason: string) => void;
  /** Called with errors of the connection, which is then tried again. */
  onError: (error: Error) => void;
}

// A shard that ends its worker this often, for example because it needs too much memory, fails its run.
const MAX_STALLED = 5;

/** Starts a worker. It ends when the result's close() is called, after the shards in progress. */
export async function startWorker(options: WorkerOptions): Promise<{ close(): Promise<void> }> {
  const { address, lockMs, onError } = options;
  const { Queue, Worker, WaitingChildrenError, UnrecoverableError } = await bullmq();
  const { connection } = address;
  const common = {
    connection,
    lockDuration: lockMs,
    stalledInterval: lockMs,
    maxStalledCount: MAX_STALLED,
    autorun: false,
  };
  const shardsQueue = new Queue(SHARDS, { connection });
  const shards = new Worker<ShardJob, ShardDone>(SHARDS, options.shardProcess, {
    ...common,
    concurrency: options.concurrency,
    workerForkOptions: { env: options.environment },
  });
  const watch = new CancelWatch(shards, shardsQueue, options.concurrency, onError);
  shards.on('completed', ({ data }, done) => options.onDone(data, done));
  shards.on('failed', (job, { message }) => {
    if (!job) return;
    const shard = validOrNone(() => shardJobFrom(job.data));
    if (shard && watch.hasStopped(job.id!)) options.onStopped(shard);
    else options.onFailed(shard, job.attemptsMade, message);
  });
  const advance = async (job: Job, token?: string) => {
    const { run } = runJobFrom(job.data);
    if (await isCancelled(shardsQueue, run)) throw new UnrecoverableError(cancelledError(run).message);
    if (!(await advanceRun(job, token!, shardsQueue, options))) throw new WaitingChildrenError();
  };
  const runs = new Worker(RUNS, advance, common);
  // When a shard fails, so does its run. Nobody needs the rest of it.
  runs.on('failed', (job) => {
    if (job?.finishedOn !== undefined) job.removeUnprocessedChildren().catch(onError);
  });
  const all: NodeJS.EventEmitter[] = [shards, runs, shardsQueue];
  for (const each of all) each.on('error', onError);
  for (const worker of [shards, runs]) worker.run().catch(onError);
  return {
    async close() {
      await Promise.all([shards.close(), runs.close()]);
      watch.close();
      await shardsQueue.close();
    },
  };
}

// Redis runs the commands of a batch without a break.
const BATCH = 1000;

/**
 * Adds the jobs of a run's next phase when the jobs of the phase before are done.
 * @returns whether the run is done. Otherwise its job is moved to those that wait for their children.
 */
async function advanceRun(
  job: Job,
  token: string,
  shards: Queue,
  { parts, program, retryMs }: WorkerOptions,
): Promise<boolean> {
  const { run, begun } = runJobFrom(job.data);
  const plan = await storedPlan(parts, run, program);
  const phases = phasesOf(plan);
  for (let next = begun; !(await job.moveToWaitingChildren(token)); next++) {
    const phase = phases[next];
    if (phase === undefined) return true;
    const parent = { id: job.id!, queue: job.queueQualifiedName };
    const options = { ...jobOptions(retryMs), parent, failParentOnFailure: true };
    for (let shard = 0; shard < jobsIn(phase, plan); shard += BATCH)
      await shards.addBulk(
        Array.from({ length: Math.min(BATCH, jobsIn(phase, plan) - shard) }, (_, i) => {
          const data: ShardJob = { run, phase, shard: shard + i };
          return { name: phase, data, opts: { ...options, jobId: shardId(data) } };
        }),
      );
    await job.updateData({ run, begun: next + 1 });
  }
  return false;
}
