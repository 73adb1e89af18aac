// The jobs of a run. A run is a plan that a queue works on. It has one job in the queue of runs, whose children in the
// queue of shards are the phases of the shards. The jobs have no data but these names: the plan and the parts are files.
import type { Job, JobsOptions, JobType, Queue } from 'bullmq';
import { Fields } from '../parts/fields.js';
import { PHASES, type Phase, type Plan } from '../parts/index.js';

export const RUNS = 'policy-loss-runs';
export const SHARDS = 'policy-loss-shards';

/** The phases of a run. Between counting and computing, the counts of all shards are merged. */
export type RunPhase = Phase | 'merge';

const RUN_PHASES: readonly RunPhase[] = [...PHASES, 'merge'];

/** The phases that a plan's run has, in order. */
export function phasesOf({ shards }: Pick<Plan, 'shards'>): RunPhase[] {
  return shards.length > 1 ? ['count', 'merge', 'compute'] : ['compute'];
}

/** Returns the number of jobs in a phase. */
export function jobsIn(phase: RunPhase, { shards }: Pick<Plan, 'shards'>): number {
  return phase === 'merge' ? 1 : shards.length;
}

/** The data of a run's job. */
export interface RunJob {
  run: string;
  /** The number of phases whose jobs were added. */
  begun: number;
}

/** The data of a shard's job. */
export interface ShardJob {
  run: string;
  phase: RunPhase;
  /** Always 0 in the phase 'merge'. */
  shard: number;
}

/** The result of a shard's job. */
export interface ShardDone {
  rows: number;
  /** The number of unmasked tokens. */
  tokens: number;
}

/** Returns the name of a plan's run: the beginning of the plan's hash. */
export function runOf({ hash }: Pick<Plan, 'hash'>): string {
  return hash.slice(0, RUN_LENGTH);
}

/** Returns whether a text can be the name of a run. */
export function isRun(text: string): boolean {
  return text.length === RUN_LENGTH && /^[0-9a-f]+$/.test(text);
}

const RUN_LENGTH = 16;

/** Returns the id of a run's job. */
export function runId(run: string): string {
  return `${run}-run`;
}

/** Returns the id of a shard's job. It depends on the plan, the phase and the shard only, so that no job is added twice. */
export function shardId({ run, phase, shard }: ShardJob): string {
  return `${run}-${phase}-${shard}`;
}

/** Returns what the id of a shard's job says; undefined if it is not the id of a job of this run. */
export function shardOf(id: string, run: string): Pick<ShardJob, 'phase' | 'shard'> | undefined {
  const [of, phase, shard = ''] = id.split('-', 3);
  const job = { run, phase: phase as RunPhase, shard: Number(shard) };
  return of === run && RUN_PHASES.includes(job.phase) && shardId(job) === id ? job : undefined;
}

/**
 * Reads the data of a shard's job, which anybody may have written who can write to the queue.
 * @throws LossError `ERR_INVALID_INPUT`
 */
export function shardJobFrom(data: unknown): ShardJob {
  const fields = new Fields(`a job of ${SHARDS}`, data);
  return {
    run: runFrom(fields),
    phase: fields.choice('phase', RUN_PHASES),
    shard: fields.count('shard'),
  };
}

/** Reads the result of a shard's job, as shardJobFrom() does. */
export function shardDoneFrom(result: unknown): ShardDone {
  const fields = new Fields(`a result of ${SHARDS}`, result);
  return { rows: fields.count('rows'), tokens: fields.count('tokens') };
}

/** Reads the data of a run's job, as shardJobFrom() does. */
export function runJobFrom(data: unknown): RunJob {
  const fields = new Fields(`a job of ${RUNS}`, data);
  return { run: runFrom(fields), begun: fields.count('begun', 3) };
}

/** Returns what `read` returns; undefined if it throws, because what it reads from the queue is not valid. */
export function validOrNone<T>(read: () => T): T | undefined {
  try {
    return read();
  } catch {
    return undefined;
  }
}

function runFrom(fields: Fields): string {
  const run = fields.text('run');
  if (!isRun(run)) throw fields.error('run', `${RUN_LENGTH} hexadecimal digits`, 'another text');
  return run;
}

/** Returns the ids of a run's jobs in the queue of shards that are in one of the given states. */
export async function shardsOf(run: string, shards: Queue, states: JobType[]): Promise<string[]> {
  const ids = await shards.getRanges(states, 0, -1);
  return ids.filter((id) => shardOf(id, run) !== undefined);
}

/** Removes a run's job with those of its shards. Returns false if a worker holds one of them. */
export async function removeUnlocked(job: Job): Promise<boolean> {
  try {
    await job.remove({ removeChildren: true });
    return true;
  } catch (error) {
    if (!/locked/.test((error as Error).message)) throw error;
    return false;
  }
}

/** How long finished jobs and marks are kept that nobody asks for. */
export const WEEK_SECONDS = 7 * 24 * 3600;

/**
 * The options that all jobs have. A job that fails is tried five times. Finished jobs are removed with their run, or
 * after a week if nobody asks for the run.
 * @param delayMs the wait before the second try. It doubles from try to try.
 */
export function jobOptions(delayMs: number): JobsOptions {
  return {
    attempts: 5,
    backoff: { type: 'exponential', delay: delayMs },
    removeOnComplete: { age: WEEK_SECONDS },
    removeOnFail: { age: WEEK_SECONDS },
    stackTraceLimit: 0,
  };
}
