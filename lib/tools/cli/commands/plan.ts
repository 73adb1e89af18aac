// `policy-loss plan`: cuts rollout files into shards that any number of workers can compute, and writes them to a file.
import { type Command, Option } from 'commander';
import { LossError } from '../../../index.js';
import { GRADIENT_ENDINGS, type Plan, writePlan } from '../../parts/index.js';
import { checkGradientDtype } from '../../rollouts/index.js';
import type { GradientEnding } from '../gradient-files.js';
import { csv, type Printable, twoColumns } from '../output.js';
import {
  checkDevice,
  type PlanningOptions,
  plannedColumns,
  plannedFrom,
  planSubjects,
  SHARD_SIZE_OPTION,
} from '../planning.js';
import { rolloutsCommand, runOnRollouts } from '../rollouts-command.js';
import { typedSubjects } from '../typed-subjects.js';
import { type WritingOptions, writingOptions } from '../writing-options.js';

/** The result of `policy-loss plan`, as `--json` prints it. */
export interface Planned {
  /** The file of the plan. */
  file: string;
  /** The SHA-256 that tells which plan a part belongs to. */
  hash: string;
  /** The name of the policy loss or algorithm. If there are several, their names, separated by commas. */
  name: string;
  files: number;
  /** The size of all files. */
  bytes: number;
  shards: number;
  /** The phases in which each shard must be run. */
  phases: readonly string[];
}

interface PlanOptions extends PlanningOptions, WritingOptions {
  out: string;
  gradients?: GradientEnding;
  forReport?: boolean;
}

/**
 * Adds the command `plan` to the command-line program.
 * @param words the arguments of the command line.
 * @returns the arguments that commander must parse.
 * @throws LossError if the arguments name an unknown loss, algorithm or option, or no loss and no algorithm.
 */
export function addPlan(program: Command, words: readonly string[]): readonly string[] {
  const command = rolloutsCommand(program, {
    name: 'plan',
    summary: 'cut rollout files into shards for any number of workers',
    description:
      'Cuts rollout files into shards for any number of processes or machines, and writes the plan to a file. ' +
      "'policy-loss run' computes a shard, and 'policy-loss merge' prints what 'policy-loss evaluate' would print.",
    options: [
      new Option('-o, --out <file>', 'the file to write, such as plan.json').makeOptionMandatory(),
      SHARD_SIZE_OPTION(),
      new Option('--gradients <format>', 'also write the gradients, one file per shard').choices(
        GRADIENT_ENDINGS,
      ),
      ...writingOptions(),
      new Option('--for-report', "also collect what 'merge --report' needs"),
    ],
    help: HELP,
    examples: EXAMPLES,
  });
  if (words[0] !== command.name()) return words;
  const { subjects: typed, rest } = typedSubjects(command, words.slice(1), 'one or more');
  if (typed.length === 1) for (const option of typed[0]!.options) command.addOption(option);
  command.action(async (patterns: string[], options: PlanOptions) => {
    const planned = await plannedFrom(typed, command);
    // The plan may be for another machine, so its device need not be one of this machine.
    const { device = 'cpu', ...here } = options;
    checkDevice(device);
    const { gradients, forReport = false } = options;
    const compares = planned.length > 1;
    if (compares && gradients)
      throw new LossError('ERR_INVALID_OPTION', {
        option: 'gradients',
        expected: 'exactly one loss or algorithm, whose gradients to write',
        received: String(planned.length),
      });
    if (gradients) checkGradientDtype(options.dtype, `.${gradients}`);
    const wanted = plannedColumns({ ...(gradients && { gradients: { ids: options.ids } }), forReport });
    await runOnRollouts(patterns, here, typed, wanted, async (run) => {
      const plan = await planSubjects(run, planned, { ...options, device, ...(compares && { compares }) });
      await writePlan(options.out, plan);
      const names = planned.map(({ subject }) => subject.name);
      return printable(options.out, names.join(', '), plan);
    });
  });
  return [command.name(), ...rest];
}

const HELP = `\
JSON lines are cut at the ends of lines and Parquet files at row groups. Compressed files and other formats are not cut.
The files are read once, for the SHA-256 of each range, so that 'run' notices if one has changed. Their names are kept
as they are given: a relative name is relative to the folder in which 'run' is called.

The options of a loss or an algorithm are those of 'policy-loss evaluate'. If there are several, the plan is for
'policy-loss compare', and 'merge' prints what that would print. A plan has no code: a loss from --loss-file
is named, and 'run' and 'merge' need the same --loss-file.`;

const EXAMPLES = [
  "plan 'rollouts/*.jsonl' --algorithm grpo --out plan.json",
  'plan rollouts.parquet --loss ppo --clip-range 0.3 --shard-size 64M --out plan.json',
  'plan rollouts/ --loss ppo --loss gspo --out plan.json',
  'plan rollouts/ --loss gspo --gradients parquet --ids uid --out plan.json',
];

function printable(file: string, name: string, { hash, files, shards }: Plan): Printable {
  const planned: Planned = {
    file,
    hash,
    name,
    files: files.length,
    bytes: files.reduce((sum, { size }) => sum + size, 0),
    shards: shards.length,
    phases: shards.length > 1 ? ['count', 'compute'] : ['compute'],
  };
  return {
    json: () => planned,
    csv: () => {
      const { phases: _, ...cells } = planned;
      return csv(Object.keys(cells), [Object.values(cells)]);
    },
    text: () =>
      twoColumns([
        ['function', name],
        ['files', String(planned.files)],
        ['bytes', String(planned.bytes)],
        ['shards', String(planned.shards)],
        ['phases', planned.phases.join(', then ')],
        ['hash', hash],
        ['file', file],
      ]),
  };
}
