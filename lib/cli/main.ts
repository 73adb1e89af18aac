#!/usr/bin/env node
// The command line. Exit codes: 0 done, 1 bad data, 2 bad usage.
import { createRequire } from 'node:module';
import { Command, CommanderError } from 'commander';
import { LossError } from '../index.js';
import { addEvaluate } from './evaluate.js';
import { inKebabCase } from './function-options.js';

const { version, description } = createRequire(import.meta.url)('../../package.json') as Record<
  string,
  string
>;

process.exitCode = await run(process.argv.slice(2));

async function run(words: readonly string[]): Promise<number> {
  const program = new Command('policy-loss')
    .description(description!)
    .version(version!)
    .exitOverride()
    .showHelpAfterError('Add --help for the options and examples.');
  try {
    addEvaluate(program, words);
    await program.parseAsync(words, { from: 'user' });
    return 0;
  } catch (error) {
    // Commander has printed what it has to say.
    if (error instanceof CommanderError) return error.exitCode === 0 ? 0 : 2;
    if (!(error instanceof LossError)) throw error;
    const ofUsage = error.code === 'ERR_INVALID_OPTION' || error.code === 'ERR_UNKNOWN_NAME';
    process.stderr.write(`error: ${ofUsage ? inKebabCase(error.message) : error.message}\n`);
    return ofUsage ? 2 : 1;
  }
}
