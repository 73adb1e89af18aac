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
  readonly #onError: (error: Error) => void;
  #timer: NodeJS.Timeout;
  #closed = false;

  /** @param onError called with errors of the connection. */
  constructor(worker: Worker<ShardJob>, queue: Queue, concurrency: number, onError: (error: Error) => void) {
    this.#worker = worker;
    this.#queue = queue;
    this.#concurrency = concurrency;
    worker.on('active', ({ id, data }) => this.#add(id!, String(data?.run)));
    worker.on('completed', ({ id }) => this.#runs.delete(id!));
    worker.on('failed', (job) => this.#runs.delete(job?.id ?? ''));
    this.#onError = onError;
    this.#timer = setTimeout(() => this.#check(), POLL_MS);
  }

  /** Returns whether a job that has failed was stopped. Must be called once for each. */
  hasStopped(id: string): boolean {
    return this.#stopped.delete(id);
  }

  close(): void {
    this.#closed = true;
    clearTimeout(this.#timer);
  }

  #add(id: string, run: string): void {
    this.#runs.set(id, run);
    // The end of a job that the worker has lost is not reported.
    this.#stopped.delete(id);
    const [oldest] = this.#runs.keys();
    if (this.#runs.size > this.#concurrency) this.#runs.delete(oldest!);
  }

  async #check(): Promise<void> {
    try {
      // Without a connection, this waits for one.
      for (const run of new Set(this.#runs.values()))
        if (await isCancelled(this.#queue, run)) this.#stop(run);
    } catch (error) {
      if (!this.#closed) this.#onError(error as Error);
    }
    if (!this.#closed) this.#timer = setTimeout(() => this.#check(), POLL_MS);
  }

  #stop(run: string): void {
    for (const [id, of] of this.#runs)
      if (of === run && !this.#stopped.has(id) && this.#worker.cancelJob(id)) this.#stopped.add(id);
  }
}
