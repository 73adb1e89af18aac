// The commands that need the native module, which is all of them except `build`.
import type { Command } from 'commander';
import { addCompare } from './compare.js';
import { addDevices } from './devices.js';
import { addEvaluate } from './evaluate.js';
import { addGradients } from './gradients.js';
import { addList } from './list.js';
import { addSweep } from './sweep.js';

/**
 * Adds the commands to a program.
 * @param words the words of the command line.
 * @returns the words that remain for commander: a command removes those that only it understands.
 * @throws LossError for words that a command does not understand.
 */
export function addCommands(program: Command, words: readonly string[]): readonly string[] {
  let left = words;
  for (const add of [addEvaluate, addCompare, addSweep, addGradients]) left = add(program, left);
  addList(program);
  addDevices(program);
  return left;
}
