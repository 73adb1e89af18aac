// `policy-loss cancel`: cancels a run on a queue.
import { type Command, Option } from 'commander';
import { helpAfter } from '../help.js';
import {
  connectionErrors,
  PARTS_OPTION,
  QUEUE_OPTION,
  type QueueOptions,
  requiredQueue,
} from '../queue-options.js';
import { connect } from '../queue-run.js';
import { note } from '../streams.js';

interface CancelOptions extends Required<QueueOptions> {
  quiet?: boolean;
}

/** Adds the command `cancel` to the command-line program. */
export function addCancel(program: Command): void {
  const command = program
    .command('cancel')
    .summary('cancel a run on a queue')
    .description(
      'Cancels a run on a queue. Workers stop its shards, its jobs and its folder are removed, and commands that wait ' +
        'for its result end with an error. Other runs go on.',
    )
    .argument('<run>', 'the name of the run');
  for (const option of [
    QUEUE_OPTION().makeOptionMandatory(),
    PARTS_OPTION().makeOptionMandatory(),
    new Option('-q, --quiet', 'print only errors'),
  ])
    command.addOption(option);
  command.addHelpText('after', helpAfter(EXAMPLES, HELP));
  command.action(async (run: string, { quiet = false, ...options }: CancelOptions) => {
    const { queue, parts } = requiredQueue(options);
    const { cancelRun } = await import('../../cluster/index.js');
    const tell = quiet ? () => {} : note;
    const address = await connect(queue);
    const onError = connectionErrors(address.shown);
    const hadFolder = await cancelRun(run, { address, parts, onError }, (shards) =>
      tell(`waiting until workers have stopped ${shards} shard${shards === 1 ? '' : 's'}`),
    );
    tell(`run ${run} is cancelled${hadFolder ? '' : `; ${parts} has no parts of it`}`);
  });
}

const HELP = `\
Waits until no worker holds a shard of the run. A worker that was killed or stopped holds its shards for --lock-seconds.
A run that is cancelled can be cancelled again, and the command that submitted it can submit it again.`;

const EXAMPLES = ['cancel 3f2a90c1d4e5b678 --queue redis://host:6379 --parts /shared/parts'];
