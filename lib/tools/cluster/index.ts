// Runs plans on a queue: parts as jobs of BullMQ on Redis.
export type { QueueAddress } from './address.js';
export { cancelledError, cancelRun } from './cancel.js';
export { findQueue } from './peers.js';
export { checkNoCode, planFile, runFolder, storedPlan } from './run-folder.js';
export type { RunProgress } from './run-watch.js';
export { ShardTasks } from './shard-tasks.js';
export { SubmittedRun } from './submitted-run.js';
export { startWorker } from './worker.js';
