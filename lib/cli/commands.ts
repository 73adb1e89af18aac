// The commands that need the native module, which is all of them except `build`.
import type { Command } from 'commander';
import { addCompare } from './compare.js';
import { addDevices } from './devices.js';
import { addEvaluate } from './evaluate.js';
import { addGradients } from './gradients.js';
import { addList } from './list.js';
import { addSweep } from './sweep.js';

/**
 * Adds all commands except `build` to the command-line program.
 * @param words the arguments of the command line.
 * @returns the arguments that commander must parse. The arguments that only a command itself understands, such as the
 * options of a loss, are removed.
 * @throws LossError for arguments that a command does not understand.
 */
export function addCommands(program: Command, words: readonly string[]): readonly string[] {
  let left = words;
  for (const add of [addEvaluate, addCompare, addSweep, addGradients]) left = add(program, left);
  addList(program);
  addDevices(program);
  return left;
}
