// The commands that need the native module, which is all of them except `build`.
import type { Command } from 'commander';
import { unknownName } from '../../base/errors.js';
import { addCancel } from './commands/cancel.js';
import { addCompare } from './commands/compare.js';
import { addCompletion } from './commands/completion.js';
import { addDevices } from './commands/devices.js';
import { addDiff } from './commands/diff.js';
import { addDistill } from './commands/distill.js';
import { addDoctor } from './commands/doctor.js';
import { addEvaluate } from './commands/evaluate.js';
import { addGradients } from './commands/gradients.js';
import { addIdentify } from './commands/identify.js';
import { addJoin } from './commands/join.js';
import { addList } from './commands/list.js';
import { addLogprobs } from './commands/logprobs.js';
import { addMerge } from './commands/merge.js';
import { addPlan } from './commands/plan.js';
import { addRun } from './commands/run.js';
import { addSweep } from './commands/sweep.js';
import { addWorker } from './commands/worker.js';
import { flagsIn } from './flags.js';
import { registerLossFiles } from './loss-file.js';
import { asksForHelp, takeOptions } from './words.js';

/** The commands that have the option `--loss-file`. */
const TAKING_LOSS_FILES = [
  'evaluate',
  'compare',
  'sweep',
  'gradients',
  'diff',
  'plan',
  'run',
  'merge',
  'list',
];

/**
 * Adds all commands except `build` to the command-line program.
 * @param words the arguments of the command line.
 * @returns the arguments that commander must parse. The arguments that only a command itself understands, such as the
 * options of a loss, are removed.
 * @throws LossError for arguments that a command does not understand, and for a `--loss-file` without losses.
 */
export async function addCommands(program: Command, words: readonly string[]): Promise<readonly string[]> {
  // The losses of these files have options, which the commands must know to read their arguments.
  if (TAKING_LOSS_FILES.includes(words[0]!)) await registerLossFiles(words);
  let left = words;
  for (const add of [addEvaluate, addCompare, addSweep, addGradients, addDiff, addPlan, addDistill])
    left = add(program, left);
  addRun(program);
  addMerge(program);
  addWorker(program);
  addJoin(program);
  addCancel(program);
  addDoctor(program);
  addIdentify(program);
  addLogprobs(program);
  addList(program);
  addDevices(program);
  addCompletion(program);
  checkWords(program, left);
  return left;
}

/**
 * Refuses an unknown command, and an unknown flag before anything else, such as a missing argument.
 * @throws LossError `ERR_UNKNOWN_NAME` or `ERR_INVALID_OPTION`
 */
function checkWords(program: Command, words: readonly string[]): void {
  const [name] = words;
  if (name === undefined || name.startsWith('-') || name === 'help' || asksForHelp(words)) return;
  const command = program.commands.find((each) => each.name() === name);
  if (!command) {
    const names = program.commands.map((each) => each.name());
    throw unknownName('ERR_UNKNOWN_NAME', 'command', name, names);
  }
  const known = [...command.options.map(({ long }) => long!), '--help'];
  const unknown = flagsIn(takeOptions(words, command.options, []).rest).find((flag) => !known.includes(flag));
  if (unknown !== undefined)
    throw unknownName('ERR_INVALID_OPTION', `option of ${command.name()}`, unknown, known);
}
