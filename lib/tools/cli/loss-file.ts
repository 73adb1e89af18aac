// `--loss-file my-loss.mjs`: losses that a user has defined in a module of their own. Importing the module runs its code. No other file that a command reads can do that.
import { existsSync } from 'node:fs';
import { resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { Option } from 'commander';
import {
  type AnyLossFn,
  LOSS_FN,
  LossError,
  PolicyLossFn,
  type RegisteredClass,
  RewardLossFn,
  ValueLossFn,
} from '../../index.js';
import { describeFailure, errorAt, MISSING_FILE } from '../rollouts/source.js';
import { optionValues } from './flags.js';

const FLAG = '--loss-file';

/** Returns the option `--loss-file`, for the commands that take losses. */
export const LOSS_FILE_OPTION = () =>
  new Option(
    `${FLAG} <file>`,
    'a module (.mjs) that exports losses from defineLoss(), which --loss then accepts; its code runs; repeatable',
  ).argParser((file: string, before: string[] = []) => [...before, file]);

type LossClass = RegisteredClass<AnyLossFn> & { declaration: { name: string } };

/**
 * Imports the modules that the arguments of a command name, and registers the losses that they export.
 * @throws LossError `ERR_INVALID_INPUT` if a module cannot be imported or exports no loss; `ERR_INVALID_OPTION` if a
 * loss has the name of another one.
 */
export async function registerLossFiles(words: readonly string[]): Promise<void> {
  for (const file of optionValues(FLAG, words)) {
    const losses = await lossesOf(file);
    for (const loss of losses) register(file, loss);
  }
}

async function lossesOf(file: string): Promise<LossClass[]> {
  let exported: Record<string, unknown>;
  try {
    exported = await import(pathToFileURL(resolve(file)).href);
  } catch (error) {
    const received = existsSync(file) ? describeFailure(error) : MISSING_FILE;
    const details = { expected: 'a module that can be imported', received };
    throw errorAt({ file }, 'ERR_INVALID_INPUT', details, error);
  }
  const losses = [...new Set(Object.values(exported))].filter(isLossClass);
  if (losses.length === 0) {
    const names = Object.keys(exported).join(', ');
    throw errorAt({ file }, 'ERR_INVALID_INPUT', {
      expected: 'an export of a class that defineLoss() has made',
      received: names === '' ? 'no exports' : `the exports ${names}`,
      hint: 'The module must import the same copy of policy-loss as this program',
    });
  }
  return losses;
}

function isLossClass(value: unknown): value is LossClass {
  if (typeof value !== 'function' || !('declaration' in value)) return false;
  return [PolicyLossFn, ValueLossFn, RewardLossFn].some((Base) => value.prototype instanceof Base);
}

function register(file: string, loss: LossClass): void {
  const { name } = loss.declaration;
  try {
    LOSS_FN.register(name, loss);
  } catch (error) {
    const details = {
      at: `${FLAG} ${file}`,
      expected: 'losses with names of their own',
      received: `'${name}', which is the name of another loss`,
    };
    throw new LossError('ERR_INVALID_OPTION', details, { cause: error });
  }
}
