// The module that a worker's processes run. Its default export computes a job of the queue of shards.
import { Command } from 'commander';
import { cudaIndex } from '../../device/device.js';
import { LossError } from '../../index.js';
import { ShardTasks } from '../cluster/shard-tasks.js';
import { removeTemporaryFolders } from '../rollouts/write/temporary.js';
import { version } from './about.js';
import { inheritDownloads } from './download-options.js';
import { flagOf } from './flags.js';
import { plannedColumns, plannedSubjects } from './planning.js';
import { PARTS_VARIABLE } from './queue-options.js';
import { collectorFor } from './report-file.js';
import { readingOf } from './rollouts-command.js';
import { note, noteConsole } from './streams.js';

process.on('exit', removeTemporaryFolders);
// When the worker has ended, in whatever way, nobody wants the shard. BullMQ would try to report to it for ever.
process.on('disconnect', () => process.exit(1));

noteConsole();
inheritDownloads();

// Prints nothing: an error of commander becomes the error of the job.
const program = new Command().exitOverride().configureOutput({ writeErr: () => {} });

const tasks = new ShardTasks({
  parts: process.env[PARTS_VARIABLE]!,
  program: version,
  subjectsOf: (file, plan) => plannedSubjects(file, plan, program),
  collectorOf: ({ configuration }, subjects) => collectorFor(configuration, subjects),
  settingsOf({ configuration }) {
    const { skipBadRows, batchTokens, device } = configuration;
    cudaIndex(device);
    return {
      read: {
        ...readingOf(configuration, plannedColumns(configuration)),
        onWarning: ({ message }) => note(`warning: ${message}`),
        ...(skipBadRows && { skipBadRows, onBadRow: () => {} }),
      },
      batchTokens,
      device,
      progress: { begin() {}, advance() {} },
    };
  },
});

/**
 * Runs a job. Its error names options as the command line does.
 * @param signal aborted when the run is cancelled. The process then ends, so that nothing goes on in it.
 */
export default async function run({ data }: { data: unknown }, _token?: string, signal?: AbortSignal) {
  signal?.addEventListener('abort', () => process.exit(1));
  try {
    return await tasks.run(data);
  } catch (error) {
    throw error instanceof LossError ? new Error(error.withOptionNames(flagOf).message) : error;
  }
}
