// `policy-loss merge`: merges the parts of a plan into the result of `policy-loss evaluate` or `policy-loss compare`.
import type { Command } from 'commander';
import { mergePlan, readPlan } from '../../parts/index.js';
import { version } from '../about.js';
import { helpAfter } from '../help.js';
import { LOSS_FILE_OPTION } from '../loss-file.js';
import { type OutputOptions, print } from '../output.js';
import { refuseInputs } from '../output-file.js';
import { showFor } from '../planned-result.js';
import { plannedSubjects } from '../planning.js';
import { REPORT_OPTION, reportOnParts } from '../report-file.js';
import { OUTPUT_OPTIONS } from '../rollouts-command.js';

/** Adds the command `merge` to the command-line program. */
export function addMerge(program: Command): void {
  const command = program
    .command('merge')
    .summary('merge the parts of a plan into one result')
    .description(
      "Merges the parts that 'policy-loss run' has written. Prints what 'policy-loss evaluate' would print for all " +
        "files, with the same bits; for a plan of several losses and algorithms, what 'policy-loss compare' would print.",
    )
    .argument('<plan>', 'the plan')
    .argument('<parts...>', 'folders with part files, or part files');
  for (const option of [REPORT_OPTION(), LOSS_FILE_OPTION(), ...OUTPUT_OPTIONS()]) command.addOption(option);
  command.addHelpText('after', helpAfter(EXAMPLES, HELP));
  command.action(async (file: string, parts: string[], { quiet, report, ...form }: MergeOptions) => {
    const plan = await readPlan(file, version);
    refuseInputs([['--report', report]], [file, ...parts, ...plan.files.map(({ file }) => file)]);
    const subjects = await plannedSubjects(file, plan, program);
    const page = await reportOnParts(plan, subjects, report);
    const result = await mergePlan(plan, subjects, parts, page?.add);
    await page?.write(result);
    const skipped = plan.configuration.skipBadRows ? result.skipped : undefined;
    await print(form, showFor(plan)(result, skipped, quiet === true, undefined));
  });
}

interface MergeOptions extends OutputOptions {
  quiet?: boolean;
  report?: string;
}

const HELP = `\
A part that is missing, is there twice, is damaged or belongs to another plan is an error that names it. 'batches' is the
number of parts in which the rows of all shards were computed. --report needs a plan made with --for-report; the page is
the one of 'policy-loss evaluate --report'.`;

const EXAMPLES = ['merge plan.json parts/', 'merge plan.json parts-of-a/ parts-of-b/ --json'];
