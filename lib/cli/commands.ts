// The commands that compute, or that know what there is to compute with.
import type { Command } from 'commander';
import { addCompare } from './compare.js';
import { addDevices } from './devices.js';
import { addEvaluate } from './evaluate.js';
import { addGradients } from './gradients.js';
import { addList } from './list.js';
import { addSweep } from './sweep.js';

/**
 * Adds the commands to a program.
 * @param words those of the command line.
 * @returns the words to parse: each command has taken out of its own what only it understands.
 * @throws LossError for words that a command cannot understand.
 */
export function addCommands(program: Command, words: readonly string[]): readonly string[] {
  let left = words;
  for (const add of [addEvaluate, addCompare, addSweep, addGradients]) left = add(program, left);
  addList(program);
  addDevices(program);
  return left;
}
