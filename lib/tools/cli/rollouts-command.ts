// What all commands over rollout files have in common: some options and parts of the help, reading the files, reporting
// bad rows, and printing the result.
import { type Command, InvalidArgumentError, Option } from 'commander';
import { cudaIndex } from '../../device/device.js';
import { ALGORITHM_TYPE, KeyMapper, LOSS_FN, type LossError } from '../../index.js';
import type { EvaluationSettings, NonFiniteRow } from '../parts/index.js';
import { COLUMNS, describePlace, expandFiles, MAX_ROW_TOKENS, MAX_ROWS } from '../rollouts/index.js';
import { addDownloadOptions } from './download-options.js';
import { flagOf } from './flags.js';
import { helpAfter } from './help.js';
import { LOSS_FILE_OPTION } from './loss-file.js';
import { parseCount } from './numbers.js';
import { type OutputOptions, type Printable, ProgressBar, print } from './output.js';
import { refuseInputs } from './output-file.js';
import { note } from './streams.js';
import type { TypedSubject } from './typed-subjects.js';

/**
 * The name, the options and the help texts of a command over rollout files. The commands differ in these properties.
 */
export interface RolloutsCommandAbout {
  name: string;
  /** One line that describes the command in the list of commands. */
  summary: string;
  description: string;
  /** Whether the command computes losses or algorithms, so that it has the options that name them. */
  computes?: false;
  /** What the files are, for the help; one of the command's arguments per entry. By default, there is one list of files. */
  files?: readonly (readonly [argument: string, description: string])[];
  /** What --strict does, if it does more than to make errors of warnings. */
  strict?: string;
  /** Options that only this command has. */
  options?: readonly Option[];
  /** A paragraph of the help, between the options and the examples. */
  help?: string;
  examples: readonly string[];
}

/** Adds a command over rollout files to the command-line program. Returns the command. */
export function rolloutsCommand(program: Command, about: RolloutsCommandAbout): Command {
  const { name, summary, description, computes = true, files = FILES, options = [], help, examples } = about;
  const command = program.command(name).summary(summary).description(description);
  for (const [argument, meaning] of files) command.argument(argument, meaning);
  for (const option of [
    ...(computes ? SUBJECT_OPTIONS() : []),
    ...options,
    ...FILE_OPTIONS(about.strict),
    ...(computes ? [DEVICE_OPTION()] : []),
    ...OUTPUT_OPTIONS(),
  ])
    command.addOption(option);
  addDownloadOptions(command);
  const columns = computes ? `${COLUMNS_HELP}\n${LOSS_COLUMNS_HELP}` : COLUMNS_HELP;
  const paragraphs = [...(help ? [help] : []), `${columns}\n${NAMES_HELP}`];
  return command.addHelpText('after', helpAfter(examples, ...paragraphs));
}

const FILES = [
  [
    '<files...>',
    'rollouts (.jsonl, .parquet, .csv, .sqlite, .safetensors, .npz, or what a trainer wrote), directories, glob ' +
      'patterns, https:// and s3:// URLs, or - for JSON lines from standard input; several files are read as one',
  ],
] as const;

const COLUMNS_HELP = `Columns: ${Object.keys(COLUMNS).join(', ')}.`;
const LOSS_COLUMNS_HELP = `\
A loss or algorithm reads only those that it needs. If the files have no advantages, an algorithm computes its own; a
loss uses GRPO's, computed from reward and task_id. A loss over pairs takes rows in turns (chosen, rejected, …), rows
with equal pair_id in any order, or rows that hold both responses in columns such as chosen_logprobs and
rejected_logprobs. A loss of values needs no logprobs, and a loss of rewards needs only reward.`;
const NAMES_HELP =
  "If columns have other names, use --column for one column or --backend for a framework's names.";

const SUBJECT_OPTIONS = () => [
  new Option('--loss <name>', `a loss: ${LOSS_FN.names().join(', ')}`),
  new Option(
    '--loss-expr <text>',
    "a policy loss as an expression, such as 'max(-A*r, -A*clip(r, 1-low, 1+high))', or 'NAME: EXPRESSION'",
  ),
  new Option('--algorithm <name>', `an algorithm: ${ALGORITHM_TYPE.names().join(', ')}`),
  new Option(
    '--config <file>',
    "take the algorithm and its options from a configuration of Trinity-RFT, verl, TRL or NeMo-RL; after it, '--framework <name>' says of which one, if the keys do not tell",
  ),
  LOSS_FILE_OPTION(),
];

// The default of --batch-tokens. With it, a command needs less than 300 MB of memory: for the columns of a part, for
// the rows that are being read, and for garbage that is not collected yet.
const BATCH_TOKENS = 2 ** 19;

const STRICT =
  'treat what only causes a warning as an error: a key that occurs twice in a JSON object, or pairs of rows with different prompts';

const FILE_OPTIONS = (strict = STRICT) => [
  new Option(
    '--column <ours=theirs>',
    "read a column under another name: logprobs=lp reads logprobs from the files' column lp; repeatable",
  ).argParser(parseColumn),
  new Option(
    '--backend <name>',
    `also recognise the column names of a framework: ${KeyMapper.names().join(', ')}`,
  ).default('verl'),
  new Option('--skip-bad-rows', 'skip invalid rows, and count them'),
  new Option('--strict', strict),
  new Option(
    '--batch-tokens <number>',
    'the largest number of tokens in memory at once; larger files are computed in parts, with the same result',
  )
    .default(BATCH_TOKENS)
    .argParser(parseCount),
  new Option(
    '--max-row-tokens <number>',
    'the largest number of tokens in a row; a longer row is invalid, so that no file can exhaust the memory',
  )
    .default(MAX_ROW_TOKENS)
    .argParser(parseCount),
  new Option('--max-rows <number>', 'the largest number of rows; a part of the memory depends on it')
    .default(MAX_ROWS)
    .argParser(parseCount),
];

/** Returns the option that chooses the device. */
export const DEVICE_OPTION = () =>
  new Option('--device <name>', 'where to compute: cpu, cuda, cuda:1, …').default('cpu');

/** Returns the options that choose the form of the output. */
export const OUTPUT_OPTIONS = () => [
  new Option('--json', 'print one JSON object, with all digits of each number; NaN is the string "NaN"'),
  new Option('--csv', 'print comma-separated values, with all digits of each number').conflicts('json'),
  new Option('-q, --quiet', 'print only the result and errors, without progress and notes'),
];

function parseColumn(text: string, before: Record<string, string> = {}): Record<string, string> {
  const at = text.indexOf('=');
  if (at <= 0 || at === text.length - 1)
    throw new InvalidArgumentError("Expected a column and its name in the files, such as 'logprobs=lp'.");
  return { ...before, [text.slice(0, at)]: text.slice(at + 1) };
}

/** The values of the options that all commands over rollout files have. */
export interface RolloutsOptions extends OutputOptions {
  column?: Record<string, string>;
  backend: string;
  skipBadRows?: boolean;
  strict?: boolean;
  batchTokens: number;
  maxRowTokens: number;
  maxRows: number;
  /** Absent for a command that computes nothing. */
  device?: string;
  quiet?: boolean;
  lossFile?: string[];
  /** The file of the output option --out, for the command that has it. */
  out?: string;
  /** The file of the output option --report, for the commands that have it. */
  report?: string;
}

/** The files and settings of one run of a command, and the number of rows that it has skipped. */
export interface RolloutsRun {
  files: readonly string[];
  settings: EvaluationSettings;
  /** The number of invalid rows that were skipped so far; undefined without --skip-bad-rows. */
  readonly skipped: number | undefined;
}

/**
 * The columns that a command needs in addition to the columns of its losses. `columns` become part of the batches, and
 * `keep` are passed on unchanged.
 */
export type WantedColumns = Pick<EvaluationSettings['read'], 'columns' | 'keep'>;

/**
 * Runs a command over rollout files, and prints its result.
 * @param patterns file names or glob patterns.
 * @param subjects the losses and algorithms to compute. Their configurations are files that the command reads.
 * @param wanted the columns that the command needs in addition to the columns of its losses.
 * @param compute computes the result from the files.
 */
export async function runOnRollouts(
  patterns: readonly string[],
  options: RolloutsOptions,
  subjects: readonly TypedSubject[],
  wanted: WantedColumns,
  compute: (run: RolloutsRun) => Promise<Printable>,
): Promise<void> {
  // Throws an error for an unknown device before any file is read.
  cudaIndex(options.device);
  const files = await expandFiles(patterns);
  const configurations = subjects.filter(({ choice }) => choice === '--config').map(({ name }) => name);
  const { out, report, lossFile = [] } = options;
  const outputs = [
    ['--out', out],
    ['--report', report],
  ] as const;
  refuseInputs(outputs, [...files, ...configurations, ...lossFile]);
  await runOnFiles(files, options, wanted, compute);
}

/**
 * Runs a command over files whose names are known, and prints its result.
 * @param wanted the columns that the command needs in addition to the columns of its losses.
 * @param compute computes the result from the files.
 */
export async function runOnFiles(
  files: readonly string[],
  options: RolloutsOptions,
  wanted: WantedColumns,
  compute: (run: RolloutsRun) => Promise<Printable>,
): Promise<void> {
  const { skipBadRows, batchTokens, device = 'cpu', quiet = false } = options;
  const progress = new ProgressBar(quiet);
  const skipped = new SkippedRows(quiet, progress);
  const run: RolloutsRun = {
    files,
    settings: {
      read: {
        ...readingOf(options, wanted),
        onWarning({ message }) {
          if (quiet) return;
          progress.stop();
          note(`warning: ${message}`);
        },
        ...(skipBadRows && { skipBadRows, onBadRow: (error) => skipped.add(error) }),
      },
      batchTokens,
      device,
      progress,
      ...(!quiet && {
        onNonFinite: ({ name }, loss, row) => {
          progress.stop();
          note(`warning: ${name}: ${describeNonFinite(loss, row)}`);
        },
      }),
    },
    get skipped() {
      return skipBadRows ? skipped.count : undefined;
    },
  };
  try {
    const result = await compute(run);
    progress.stop();
    skipped.sumUp();
    await print(options, result);
  } finally {
    progress.stop();
  }
}

/** Returns how options say that rows are read, without what to do with bad and with doubtful rows. */
export function readingOf(
  { column, backend, strict = false, maxRowTokens, maxRows }: RolloutsOptions,
  wanted: WantedColumns,
): EvaluationSettings['read'] {
  return { ...(column && { rename: column }), backend, ...wanted, maxRowTokens, maxRows, strict };
}

function describeNonFinite(loss: number, row: NonFiniteRow | undefined): string {
  const what = Number.isFinite(loss) ? 'the gradient is not finite' : `the loss is ${loss}`;
  if (!row) return what;
  const { place, value } = row;
  const index = value?.index === undefined ? '' : `[${value.index}]`;
  const reason = value ? `, where ${value.column}${index} is ${value.number}` : '';
  return `${what}, first because of ${describePlace(place)}${reason}`;
}

// Only this many bad rows are reported one by one. Further ones are only counted.
const BAD_ROWS_SHOWN = 5;

/** Counts the rows that were skipped because they are invalid, and reports them on stderr. */
class SkippedRows {
  count = 0;
  readonly #quiet: boolean;
  readonly #progress: ProgressBar;

  constructor(quiet: boolean, progress: ProgressBar) {
    this.#quiet = quiet;
    this.#progress = progress;
  }

  add(error: LossError): void {
    this.count++;
    if (this.#quiet || this.count > BAD_ROWS_SHOWN) return;
    this.#progress.stop();
    note(`skipped: ${error.withOptionNames(flagOf).message}`);
  }

  sumUp(): void {
    const more = this.count - BAD_ROWS_SHOWN;
    if (!this.#quiet && more > 0) note(`skipped: ${more} more`);
  }
}
