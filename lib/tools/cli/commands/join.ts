// `policy-loss join`: returns to a run on a queue.
import { type Command, Option } from 'commander';
import { version } from '../about.js';
import { makeFolderFor } from '../gradient-files.js';
import { helpAfter } from '../help.js';
import { type OutputOptions, print } from '../output.js';
import { refuseInputs } from '../output-file.js';
import { showFor } from '../planned-result.js';
import { plannedSubjects } from '../planning.js';
import { PARTS_OPTION, QUEUE_OPTION, type QueueOptions, requiredQueue } from '../queue-options.js';
import { connect, runPlan } from '../queue-run.js';
import { REPORT_OPTION } from '../report-file.js';
import { OUTPUT_OPTIONS } from '../rollouts-command.js';

interface JoinOptions extends OutputOptions, Required<QueueOptions> {
  quiet?: boolean;
  report?: string;
  out?: string;
}

/** Adds the command `join` to the command-line program. */
export function addJoin(program: Command): void {
  const command = program
    .command('join')
    .summary("return to a run of 'evaluate --queue' or another command")
    .description(
      "Returns to a run that 'policy-loss evaluate --queue' or another command with --queue has submitted. Waits for " +
        'its end, and prints its result.',
    )
    .argument('<run>', 'the name of the run');
  for (const option of [
    QUEUE_OPTION().makeOptionMandatory(),
    PARTS_OPTION().makeOptionMandatory(),
    REPORT_OPTION(),
    new Option('-o, --out <file>', "the name of the files to write, for a run of 'gradients --queue'"),
    ...OUTPUT_OPTIONS(),
  ])
    command.addOption(option);
  command.addHelpText('after', helpAfter(EXAMPLES));
  command.action(async (name: string, { quiet = false, report, out, ...options }: JoinOptions) => {
    const { queue, parts } = requiredQueue(options);
    const { planFile, storedPlan } = await import('../../cluster/index.js');
    if (out !== undefined) await makeFolderFor(out);
    const plan = await storedPlan(parts, name, version);
    refuseInputs(
      [['--report', report]],
      plan.files.map(({ file }) => file),
    );
    const subjects = await plannedSubjects(planFile(parts, name), plan, program);
    const { result, end } = await runPlan(plan, subjects, {
      ...{ address: await connect(queue), parts, quiet, show: showFor(plan), report, out },
      submits: false,
    });
    await print(options, result);
    await end();
  });
}

const EXAMPLES = ['join 3f2a90c1d4e5b678 --queue redis://host:6379 --parts /shared/parts'];
