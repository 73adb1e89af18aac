// `policy-loss worker`: computes the shards of the runs on a queue.
import { type Command, Option } from 'commander';
import { removeTemporaryFolders } from '../../rollouts/write/temporary.js';
import { version } from '../about.js';
import { addDownloadOptions, downloadsEnvironment } from '../download-options.js';
import { helpAfter } from '../help.js';
import { parseCount, parseSeconds } from '../numbers.js';
import {
  connectionErrors,
  environmentWithoutQueue,
  PARTS_OPTION,
  PARTS_VARIABLE,
  QUEUE_OPTION,
  type QueueOptions,
  requiredQueue,
} from '../queue-options.js';
import { note } from '../streams.js';

interface WorkerOptions extends Required<QueueOptions> {
  concurrency: number;
  lockSeconds: number;
  retrySeconds: number;
  quiet?: boolean;
}

/** Adds the command `worker` to the command-line program. */
export function addWorker(program: Command): void {
  const command = program
    .command('worker')
    .summary('compute the shards of runs on a queue')
    .description(
      "Computes the shards of all runs that 'policy-loss evaluate --queue' submits, until it is stopped.",
    );
  for (const option of [
    QUEUE_OPTION().makeOptionMandatory(),
    PARTS_OPTION().makeOptionMandatory(),
    new Option('--concurrency <number>', 'the number of shards at a time, each in a process of its own')
      .default(1)
      .argParser(parseCount),
    new Option(
      '--lock-seconds <number>',
      'the time after which a worker that does not answer loses its shards',
    )
      .default(30)
      .argParser(parseSeconds),
    new Option(
      '--retry-seconds <number>',
      'the wait before a shard that failed is tried again; it doubles from try to try, and the fifth is the last',
    )
      .default(1)
      .argParser(parseSeconds),
    new Option('-q, --quiet', 'print only errors'),
  ])
    command.addOption(option);
  addDownloadOptions(command);
  command.addHelpText('after', helpAfter(EXAMPLES, HELP));
  command.action(
    async ({ quiet = false, concurrency, lockSeconds, retrySeconds, ...options }: WorkerOptions) => {
      const { queue, parts } = requiredQueue(options);
      const stopped = stopSignal();
      const { findQueue, startWorker } = await import('../../cluster/index.js');
      const address = await findQueue(queue);
      const tell = quiet ? () => {} : note;
      const worker = await startWorker({
        ...{ address, parts, concurrency },
        program: version,
        lockMs: Math.ceil(1000 * lockSeconds),
        retryMs: Math.ceil(1000 * retrySeconds),
        shardProcess: new URL('../shard-process.js', import.meta.url),
        environment: { ...environmentWithoutQueue(), ...downloadsEnvironment(), [PARTS_VARIABLE]: parts },
        onDone: ({ run, phase, shard }, { rows, tokens }) =>
          tell(`run ${run}: ${phase} ${shard}: ${rows} rows, ${tokens} tokens`),
        onStopped: ({ run, phase, shard }) =>
          tell(`run ${run}: ${phase} ${shard} stopped, because the run is cancelled`),
        onFailed(job, tries, reason) {
          const what = job ? `run ${job.run}: ${job.phase} ${job.shard}` : 'a job that is not valid';
          note(`${what} failed, try ${tries}: ${reason}`);
        },
        onError: connectionErrors(address.shown),
      });
      tell(`waiting for shards from ${address.shown}`);
      await stopped;
      tell('ending after the shards in progress');
      await worker.close();
    },
  );
}

/** Resolves at the first signal to stop. The second one ends the process. */
function stopSignal(): Promise<void> {
  return new Promise((resolve) => {
    let stops = false;
    const stop = () => {
      if (stops) {
        removeTemporaryFolders();
        process.exit(1);
      }
      stops = true;
      resolve();
    };
    for (const signal of ['SIGINT', 'SIGTERM'] as const) {
      // Replaces the handler that ends the program at once.
      process.removeAllListeners(signal);
      process.on(signal, stop);
    }
  });
}

const HELP = `\
At SIGTERM or SIGINT (Ctrl-C), a worker finishes its shards and ends. At a second signal, it ends at once. The shards of
a worker that was killed are computed by others after --lock-seconds. Relative names of input files are taken from the
folder in which the worker was started. A worker loads no code: it refuses losses of a --loss-file.`;

const EXAMPLES = [
  'worker --queue redis://host:6379 --parts /shared/parts',
  'worker --queue env --parts /shared/parts --concurrency 4',
];
