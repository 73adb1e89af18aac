// The commands that need the native module, which is all of them except `build`.
import type { Command } from 'commander';
import { addCancel } from './cancel.js';
import { addCompare } from './compare.js';
import { addDevices } from './devices.js';
import { addDiff } from './diff.js';
import { addDoctor } from './doctor.js';
import { addEvaluate } from './evaluate.js';
import { addGradients } from './gradients.js';
import { addIdentify } from './identify.js';
import { addJoin } from './join.js';
import { addList } from './list.js';
import { addLogprobs } from './logprobs.js';
import { registerLossFiles } from './loss-file.js';
import { addMerge } from './merge.js';
import { addPlan } from './plan.js';
import { addRun } from './run.js';
import { addSweep } from './sweep.js';
import { addWorker } from './worker.js';

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
  for (const add of [addEvaluate, addCompare, addSweep, addGradients, addDiff, addPlan])
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
  return left;
}
