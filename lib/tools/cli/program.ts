// The command-line program `policy-loss` as a function: it parses the arguments, runs a command and returns the exit
// code. main.ts connects it to the process.
import { styleText } from 'node:util';
import { Command, CommanderError } from 'commander';
import { LossError, type LossErrorCode } from '../../base/errors.js';
import { description, version } from './about.js';
import { addBuild } from './commands/build.js';
import { BadResult } from './exit.js';
import { flagOf } from './flags.js';
import { helpAfter } from './help.js';
import { widthOf } from './lines.js';
import { note, onStderr, visible, writeResult } from './streams.js';

/** The error codes that mean a wrong command line (exit code 2). All other codes mean bad data (exit code 1). */
const BAD_USAGE: readonly LossErrorCode[] = [
  'ERR_INVALID_OPTION',
  'ERR_UNKNOWN_NAME',
  'ERR_DEVICE_UNAVAILABLE',
];

const EXAMPLES = [
  'evaluate rollouts.jsonl --loss ppo',
  'compare rollouts.jsonl --loss ppo --loss gspo --algorithm grpo',
  'sweep rollouts.jsonl --loss ppo --clip-range 0.1:0.4:0.05',
  'gradients rollouts.jsonl --loss ppo --out gradients.safetensors',
  'doctor rollouts.jsonl',
  'diff step_7_yesterday.jsonl step_7_today.jsonl',
  'list gspo',
];

/**
 * Runs the program. Results go to stdout, everything else to stderr.
 * @param words the arguments of the command line, without the name of the program.
 * @returns the exit code: 0 done, 1 bad data, 2 bad usage. With `doctor --strict`, findings count as bad data.
 */
export async function runProgram(words: readonly string[]): Promise<number> {
  const help: Promise<void>[] = [];
  const program = new Command('policy-loss')
    .description(description)
    .version(version, '-v, --version')
    .exitOverride()
    .showHelpAfterError('Add --help for the options and examples.')
    .configureOutput({
      getOutHelpWidth: () => widthOf(process.stdout),
      getErrHelpWidth: () => widthOf(process.stderr),
      writeOut: (text) => help.push(writeResult(text)),
      outputError: (message, writeErr) => writeErr(visibleLines(message, words)),
    })
    .configureHelp({ minWidthToWrap: 20, styleTitle: (text) => styleText('bold', text) })
    .addHelpText('after', helpAfter(EXAMPLES));
  addBuild(program);
  try {
    const code = await runCommand(program, words);
    await Promise.all(help);
    return code;
  } catch (error) {
    if (!(error instanceof LossError)) throw error;
    report(error);
    return BAD_USAGE.includes(error.code) ? 2 : 1;
  }
}

/** Parses the arguments and runs the command. Returns the exit code. */
async function runCommand(program: Command, words: readonly string[]): Promise<0 | 1 | 2> {
  try {
    // `build` must work before the native module exists. So the other commands, which need that module, are imported
    // only if the command is not `build`.
    const left =
      words[0] === 'build' ? words : await (await import('./commands.js')).addCommands(program, words);
    await program.parseAsync(left, { from: 'user' });
    return 0;
  } catch (error) {
    if (error instanceof BadResult) return 1;
    if (!(error instanceof CommanderError)) throw error;
    // Commander has already printed the error message or the help.
    return error.exitCode === 0 ? 0 : 2;
  }
}

/**
 * Makes control characters in a message visible, except line ends that do not come from the command line.
 * @param words the arguments of the command line.
 */
function visibleLines(message: string, words: readonly string[]): string {
  const values = words.map((word) => word.slice(word.indexOf('=') + 1));
  return [...words, ...values]
    .reduce((text, word) => text.replaceAll(word, visible), message)
    .split('\n')
    .map((line) => onStderr(visible(line)))
    .join('\n');
}

function report(error: LossError): void {
  const { message } = error.withOptionNames(flagOf);
  // The message about a missing native module has a line for each place that was tried, and one about an expression ends
  // with a mark under the place. Other line ends can only come from a file or the command line.
  const marked = hasPosition(error) ? MARKED.exec(message)?.slice(1) : undefined;
  const lines = error.code === 'ERR_NATIVE_LOAD' ? message.split('\n') : (marked ?? [message]);
  lines.forEach((line, i) => {
    note(i === 0 ? `error: ${line}` : line);
  });
}

const MARKED = /^(.*)\n( {2}[^\n]*)\n( *\^)$/s;

function hasPosition(error: unknown): boolean {
  return error instanceof LossError && (error.position !== undefined || hasPosition(error.cause));
}
