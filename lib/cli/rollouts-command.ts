// What all commands over rollout files have in common: their options, how files are read, what is said of bad rows, and
// how results are printed.
import { type Command, InvalidArgumentError, Option } from 'commander';
import { cudaIndex } from '../core/device.js';
import { ALGORITHM_TYPE, KeyMapper, type LossError, POLICY_LOSS_FN } from '../index.js';
import { expandFiles } from '../rollouts/index.js';
import type { EvaluationSettings } from './evaluation.js';
import { EXIT_CODES, examplesHelp } from './help.js';
import { note, type OutputOptions, type Printable, ProgressBar, print } from './output.js';

/** What tells one command from another. */
export interface RolloutsCommandAbout {
  name: string;
  /** One line, for the list of commands. */
  summary: string;
  description: string;
  /** Further options. */
  options?: readonly Option[];
  /** Words on what is special about it, between the options and the examples. */
  help?: string;
  examples: readonly string[];
}

/** Adds a command over rollout files to a program. */
export function rolloutsCommand(program: Command, about: RolloutsCommandAbout): Command {
  const { name, summary, description, options = [], help, examples } = about;
  const command = program
    .command(name)
    .summary(summary)
    .description(description)
    .argument(
      '<files...>',
      'rollouts: .jsonl, .parquet, .csv, .sqlite, .safetensors, .npz; globs; several files count as one',
    );
  for (const option of [...SUBJECT_OPTIONS(), ...options, ...FILE_OPTIONS(), ...OUTPUT_OPTIONS()])
    command.addOption(option);
  const parts = [...(help ? [help] : []), COLUMNS_HELP, EXIT_CODES, examplesHelp(examples)];
  return command.addHelpText('after', `\n${parts.join('\n\n')}`);
}

const COLUMNS_HELP = `\
Columns that are read: logprobs, old_logprobs, ref_logprobs, teacher_logprobs, advantages, action_mask, entropy,
reward, token_level_rewards, values, reward_baseline, task_id, run_id, expert, step, as the loss or the algorithm
needs them. Where the files have no advantages, an algorithm computes its own, and for a loss they come from reward and
task_id by GRPO's rule. Columns by another name: --column, or a framework's names with --backend.`;

const SUBJECT_OPTIONS = () => [
  new Option('--loss <name>', `a policy loss: ${POLICY_LOSS_FN.names().join(', ')}`),
  new Option('--algorithm <name>', `an algorithm: ${ALGORITHM_TYPE.names().join(', ')}`),
  new Option(
    '--config <file>',
    "the algorithm of a Trinity-RFT configuration, by the file's section algorithm",
  ),
];

// With columns, rows as they are read and what the runtime leaves lying about, well below 300 MB.
const BATCH_TOKENS = 2 ** 19;

const FILE_OPTIONS = () => [
  new Option(
    '--column <ours=theirs>',
    "what the files call a column, as in 'logprobs=lp'; may be repeated",
  ).argParser(parseColumn),
  new Option('--backend <name>', `whose names columns may have too: ${KeyMapper.names().join(', ')}`).default(
    'verl',
  ),
  new Option('--skip-bad-rows', 'leave out rows that are bad, and count them'),
  new Option(
    '--batch-tokens <number>',
    'the most tokens in memory at once; files with more are computed in parts that add up',
  )
    .default(BATCH_TOKENS)
    .argParser(parseCount),
  new Option('--device <name>', 'where to compute: cpu, cuda, cuda:1, …').default('cpu'),
];

/** The options of how results are printed. */
export const OUTPUT_OPTIONS = () => [
  new Option('--json', 'print one JSON object, numbers in full'),
  new Option('--csv', 'print comma-separated values, numbers in full').conflicts('json'),
  new Option('-q, --quiet', 'no progress and no notes, only the result and errors'),
];

function parseColumn(text: string, before: Record<string, string> = {}): Record<string, string> {
  const at = text.indexOf('=');
  if (at <= 0 || at === text.length - 1)
    throw new InvalidArgumentError("Expected a column and the files' name of it, as in 'logprobs=lp'.");
  return { ...before, [text.slice(0, at)]: text.slice(at + 1) };
}

function parseCount(text: string): number {
  const value = Number(text);
  if (!Number.isSafeInteger(value) || value < 1)
    throw new InvalidArgumentError('Expected a whole number of at least 1.');
  return value;
}

/** The values of the options that all these commands have. */
export interface RolloutsOptions extends OutputOptions {
  column?: Record<string, string>;
  backend: string;
  skipBadRows?: boolean;
  batchTokens: number;
  device: string;
  quiet?: boolean;
}

/** What a command is given to work on. */
export interface RolloutsRun {
  files: readonly string[];
  settings: EvaluationSettings;
  /** How many bad rows have been left out; undefined where that was not asked for. */
  readonly skipped: number | undefined;
}

/** Columns that a command wants of files: such as batches have, and others as they stand there. */
export type WantedColumns = Pick<EvaluationSettings['read'], 'columns' | 'keep'>;

/**
 * Runs a command over files, and prints what comes of it.
 * @param patterns files, or globs.
 * @param wanted columns beside those that are computed with.
 */
export async function runOnRollouts(
  patterns: readonly string[],
  { column, backend, skipBadRows, batchTokens, device, quiet = false, ...output }: RolloutsOptions,
  wanted: WantedColumns,
  compute: (run: RolloutsRun) => Promise<Printable>,
): Promise<void> {
  // Whether there is such a device, before files are looked at.
  cudaIndex(device);
  const files = await expandFiles(patterns);
  const progress = new ProgressBar(quiet);
  const skipped = new SkippedRows(quiet, progress);
  const run: RolloutsRun = {
    files,
    settings: {
      read: {
        ...(column && { rename: column }),
        backend,
        ...wanted,
        ...(skipBadRows && { skipBadRows, onBadRow: (error) => skipped.add(error) }),
      },
      batchTokens,
      device,
      progress,
    },
    get skipped() {
      return skipBadRows ? skipped.count : undefined;
    },
  };
  try {
    const result = await compute(run);
    progress.stop();
    skipped.sumUp();
    print(output, result);
  } finally {
    progress.stop();
  }
}

// Of more bad rows than these it is enough to know how many they are.
const BAD_ROWS_SHOWN = 5;

/** Bad rows that are left out. */
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
    note(`skipped: ${error.message}`);
  }

  sumUp(): void {
    const more = this.count - BAD_ROWS_SHOWN;
    if (!this.#quiet && more > 0) note(`skipped: ${more} more`);
  }
}
