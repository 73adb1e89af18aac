// Cancels runs. A mark in Redis says that a run is cancelled: workers stop its shards, and those who follow it end. A run
// that is submitted again loses its mark.
import { setTimeout as sleep } from 'node:timers/promises';
import type { JobType, Queue } from 'bullmq';
import { LossError } from '../../index.js';
import type { QueueAccess } from './address.js';
import { RUNS, removeUnlocked, runId, SHARDS, shardsOf, WEEK_SECONDS } from './jobs.js';
import { bullmq } from './peers.js';
import { checkRun, hasPlan, removeRunFolder } from './run-folder.js';

/** Returns whether a run is cancelled. */
export async function isCancelled(queue: Queue, run: string): Promise<boolean> {
  const client = await queue.getBackend().client;
  return (await client.get(markOf(run))) !== null;
}

/** Removes the mark of a run that is cancelled, so that it can be submitted again. */
export async function removeMark(queue: Queue, run: string): Promise<void> {
  const client = await queue.getBackend().client;
  await client.del(markOf(run));
}

function markOf(run: string): string {
  return `policy-loss-cancelled:${run}`;
}

/** The error of those who follow a run that is cancelled. */
export function cancelledError(run: string): LossError {
  return new LossError('ERR_INVALID_INPUT', {
    at: `run ${run}`,
    expected: 'a run that nobody has cancelled',
    received: 'a cancelled one',
  });
}

/**
 * Cancels a run: removes its jobs and its folder. Waits until the workers have stopped its shards. A run that is cancelled
 * already, but not completely, is cancelled to the end.
 * @param onWaiting called once if shards are in progress, with their number.
 * @returns whether the folder had the run.
 * @throws LossError `ERR_INVALID_INPUT` if the name is not that of a run, or if neither the queue nor the folder has it.
 */
export async function cancelRun(
  run: string,
  { address, parts, onError }: QueueAccess,
  onWaiting: (shards: number) => void,
): Promise<boolean> {
  checkRun(run);
  const { Queue } = await bullmq();
  const { connection } = address;
  const [runs, shards] = [new Queue(RUNS, { connection }), new Queue(SHARDS, { connection })];
  for (const each of [runs, shards]) each.on('error', onError);
  try {
    if (!(await isKnown(run, runs, shards, parts)))
      throw new LossError('ERR_INVALID_INPUT', {
        at: `run ${run}`,
        expected: 'a run of this queue',
        received: 'a name that neither the queue nor the folder for parts has',
      });
    // The mark comes first, so that nobody takes the run for one that the queue has lost.
    const client = await runs.getBackend().client;
    await client.set(markOf(run), 'cancelled', { EX: WEEK_SECONDS });
    await removeCancelled(run, runs, shards, onWaiting);
    const known = await hasPlan(parts, run);
    if (await isCancelled(runs, run)) await removeRunFolder(parts, run);
    return known;
  } finally {
    await Promise.all([runs.close(), shards.close()]);
  }
}

async function isKnown(run: string, runs: Queue, shards: Queue, parts: string): Promise<boolean> {
  if ((await isCancelled(runs, run)) || (await runs.getJob(runId(run)))) return true;
  // Without a plan, a folder of this name may be anything.
  return (await hasPlan(parts, run)) || (await shardsOf(run, shards, STATES)).length > 0;
}

/**
 * Removes the jobs of a run that is cancelled. Waits for those that workers hold.
 * @param onWaiting called once if shards are in progress, with their number.
 */
export async function removeCancelled(
  run: string,
  runs: Queue,
  shards: Queue,
  onWaiting: (shards: number) => void = () => {},
): Promise<void> {
  // The run may be submitted again meanwhile.
  for (let tells = true; await isCancelled(runs, run); ) {
    const job = await runs.getJob(runId(run));
    if (job) {
      // No worker can take these while others hold shards.
      await job.removeUnprocessedChildren();
      if (await removeUnlocked(job)) continue;
    } else {
      const left = await shardsOf(run, shards, STATES);
      if (left.length === 0) return;
      for (const id of left) await shards.remove(id);
    }
    const held = await shardsOf(run, shards, ['active']);
    if (tells && held.length > 0) {
      tells = false;
      onWaiting(held.length);
    }
    await sleep(POLL_MS);
  }
}

const STATES: JobType[] = ['active', 'waiting', 'delayed', 'prioritized', 'completed', 'failed'];
const POLL_MS = 200;
