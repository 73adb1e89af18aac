// `policy-loss run`: computes shards of a plan.
import { type Command, InvalidArgumentError, Option } from 'commander';
import { cudaIndex } from '../../../device/device.js';
import { LossError } from '../../../index.js';
import {
  gradientsFiles,
  PHASES,
  type Phase,
  type Plan,
  PlanRun,
  readPlan,
  type ShardRun,
} from '../../parts/index.js';
import { version } from '../about.js';
import { addDownloadOptions } from '../download-options.js';
import { helpAfter } from '../help.js';
import { LOSS_FILE_OPTION } from '../loss-file.js';
import { csv, type OutputOptions, type Printable, twoColumns } from '../output.js';
import { refuseInputs } from '../output-file.js';
import { plannedColumns, plannedSubjects } from '../planning.js';
import { collectorFor } from '../report-file.js';
import { OUTPUT_OPTIONS, type RolloutsOptions, runOnFiles } from '../rollouts-command.js';

/** The result of `policy-loss run`, as `--json` prints it. */
export interface PlanProgress {
  /** The hash of the plan. */
  plan: string;
  /** What was done, in order. */
  runs: ({ phase: Phase; shard: number } & ShardRun)[];
}

interface RunOptions extends OutputOptions {
  out: string;
  shard?: number;
  phase?: Phase;
  quiet?: boolean;
}

/** Adds the command `run` to the command-line program. */
export function addRun(program: Command): void {
  const command = program
    .command('run')
    .summary('compute shards of a plan')
    .description(
      "Computes shards of a plan that 'policy-loss plan' has written. Writes a part file for each, which " +
        "'policy-loss merge' reads.",
    )
    .argument('<plan>', 'the plan');
  for (const option of [
    new Option(
      '-o, --out <folder>',
      'the folder for part files; all workers need the same',
    ).makeOptionMandatory(),
    new Option('--shard <number>', 'the shard, counted from 0; all shards by default').argParser(parseShard),
    new Option(
      '--phase <name>',
      "the phase to run; by default all phases for all shards, and 'compute' for one shard",
    ).choices(PHASES),
    LOSS_FILE_OPTION(),
    ...OUTPUT_OPTIONS(),
  ])
    command.addOption(option);
  addDownloadOptions(command);
  command.addHelpText('after', helpAfter(EXAMPLES, HELP));
  command.action(async (file: string, options: RunOptions) => {
    const plan = await readPlan(file, version);
    const { shard, quiet } = options;
    if (shard !== undefined && shard >= plan.shards.length)
      throw new LossError('ERR_INVALID_OPTION', {
        option: 'shard',
        expected: `a number from 0 to ${plan.shards.length - 1}`,
        received: String(shard),
      });
    const { configuration } = plan;
    cudaIndex(configuration.device);
    const subjects = await plannedSubjects(file, plan, program);
    const settings: RolloutsOptions = {
      ...configuration,
      ...(quiet && { quiet }),
      ...(options.json && { json: true }),
      ...(options.csv && { csv: true }),
    };
    const collect = await collectorFor(configuration, subjects);
    const files = plan.files.map(({ file }) => file);
    const outputs = gradientsFiles(plan, options.out);
    refuseInputs(
      outputs.map((output) => ['--out', output]),
      files,
    );
    await runOnFiles(files, settings, plannedColumns(configuration), async (run) => {
      const planRun = new PlanRun(plan, options.out, subjects, run.settings, collect);
      const runs: PlanProgress['runs'] = [];
      for (const [phase, shard] of stepsOf(plan, options))
        runs.push({ phase, shard, ...(await planRun.run(phase, shard)) });
      return printable({ plan: plan.hash, runs });
    });
  });
}

const HELP = `\
If there are several shards, all of them must be counted before any is computed: run the phase 'count' for every shard,
in any order and on any machines, and then the phase 'compute'. The only shard of a plan needs no counting. A shard can
be run again at any time. Its files get their names when they are complete.`;

const EXAMPLES = [
  'run plan.json --out parts/',
  'run plan.json --phase count --shard 17 --out parts/',
  'run plan.json --shard 17 --out parts/',
];

function parseShard(text: string): number {
  const value = Number(text);
  if (!/^\d+$/.test(text) || !Number.isSafeInteger(value))
    throw new InvalidArgumentError('Expected a whole number of at least 0.');
  return value;
}

/** Returns the phases and shards to run, in order. */
function stepsOf({ shards }: Plan, { shard, phase }: RunOptions): [Phase, number][] {
  const numbers = shard === undefined ? shards.map((_, i) => i) : [shard];
  const phases = phase !== undefined ? [phase] : shard === undefined ? PHASES : (['compute'] as const);
  return phases
    .filter((phase) => phase === 'compute' || shards.length > 1)
    .flatMap((phase) => numbers.map((number): [Phase, number] => [phase, number]));
}

function printable(progress: PlanProgress): Printable {
  const { plan, runs } = progress;
  const head = ['phase', 'shard', 'rows', 'tokens', 'files'];
  const lines = runs.map(({ phase, shard, rows, tokens, files }) => [
    phase,
    shard,
    rows,
    tokens,
    files.join(' '),
  ]);
  const sum = (of: (run: ShardRun) => number) =>
    String(
      runs.filter(({ phase }) => phase === runs.at(-1)!.phase).reduce((total, run) => total + of(run), 0),
    );
  return {
    json: () => progress,
    csv: () => csv(head, lines),
    text: () =>
      twoColumns([
        ['plan', plan],
        ['phases', [...new Set(runs.map(({ phase }) => phase))].join(', ') || 'none'],
        ['shards', [...new Set(runs.map(({ shard }) => shard))].length.toString()],
        ['rows', sum(({ rows }) => rows)],
        ['tokens', sum(({ tokens }) => tokens)],
        ['files written', String(runs.reduce((total, { files }) => total + files.length, 0))],
      ]),
  };
}
