// The command-line program `policy-loss` as a function: it parses the arguments, runs a command and returns the exit
// code. main.ts connects it to the process.
import { styleText } from 'node:util';
import { Command, CommanderError } from 'commander';
import { LossError, type LossErrorCode } from '../core/errors.js';
import { description, version } from './about.js';
import { addBuild } from './build.js';
import { flagOf } from './flags.js';
import { EXIT_CODES, examplesHelp } from './help.js';
import { note } from './output.js';

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
  'list gspo',
];

/**
 * Runs the program. Results go to stdout, everything else to stderr.
 * @param words the arguments of the command line, without the name of the program.
 * @returns the exit code: 0 done, 1 bad data, 2 bad usage.
 */
export async function runProgram(words: readonly string[]): Promise<number> {
  const program = new Command('policy-loss')
    .description(description)
    .version(version)
    .exitOverride()
    .showHelpAfterError('Add --help for the options and examples.')
    .configureHelp({ styleTitle: (text) => styleText('bold', text) })
    .addHelpText('after', `\n${EXIT_CODES}\n\n${examplesHelp(EXAMPLES)}`);
  addBuild(program);
  try {
    // `build` must work before the native module exists. So the other commands, which need that module, are imported
    // only if the command is not `build`.
    const left = words[0] === 'build' ? words : (await import('./commands.js')).addCommands(program, words);
    await program.parseAsync(left, { from: 'user' });
    return 0;
  } catch (error) {
    // Commander has already printed the error message or the help.
    if (error instanceof CommanderError) return error.exitCode === 0 ? 0 : 2;
    if (!(error instanceof LossError)) throw error;
    note(`error: ${error.withOptionNames(flagOf).message}`);
    return BAD_USAGE.includes(error.code) ? 2 : 1;
  }
}
