// Stops the shards of cancelled runs that a worker computes.
import type { Queue, Worker } from 'bullmq';
import { isCancelled } from './cancel.js';
import type { ShardJob } from './jobs.js';

const POLL_MS = 1000;

/** Asks about the runs of a worker's shards, while it has any. */
export class CancelWatch {
  readonly #worker: Worker<ShardJob>;
  readonly #queue: Queue;
  readonly #concurrency: number;
  // The shards in progress: their runs, by the ids of the jobs.
  readonly #runs = new Map<string, string>();
  readonly #stopped = new Set<string>();
  readonly #timer: NodeJS.Timeout;

  /** @param onError called with errors of the connection. */
  constructor(worker: Worker<ShardJob>, queue: Queue, concurrency: number, onError: (error: Error) => void) {
    this.#worker = worker;
    this.#queue = queue;
    this.#concurrency = concurrency;
    worker.on('active', ({ id, data }) => this.#add(id!, String(data?.run)));
    worker.on('completed', ({ id }) => this.#runs.delete(id!));
    worker.on('failed', (job) => this.#runs.delete(job?.id ?? ''));
    this.#timer = setInterval(() => this.#check().catch(onError), POLL_MS);
  }

  /** Returns whether a job that has failed was stopped. Must be called once for each. */
  hasStopped(id: string): boolean {
    return this.#stopped.delete(id);
  }

  close(): void {
    clearInterval(this.#timer);
  }

  #add(id: string, run: string): void {
    this.#runs.set(id, run);
    // The end of a job that the worker has lost is not reported.
    const [oldest] = this.#runs.keys();
    if (this.#runs.size > this.#concurrency) this.#runs.delete(oldest!);
  }

  async #check(): Promise<void> {
    for (const run of new Set(this.#runs.values())) {
      if (!(await isCancelled(this.#queue, run))) continue;
      for (const [id, of] of this.#runs)
        if (of === run && !this.#stopped.has(id) && this.#worker.cancelJob(id)) this.#stopped.add(id);
    }
  }
}
