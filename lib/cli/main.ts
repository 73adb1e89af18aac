#!/usr/bin/env node
// The file that runs when a user calls `policy-loss`.
import { note } from './output.js';
import { runProgram } from './program.js';

// A program that reads the output, such as `head`, may close the pipe early. This is not an error.
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (error.code !== 'EPIPE') throw error;
  process.exit();
});

const words = process.argv.slice(2);
showWarnings(words.includes('--quiet') || words.includes('-q'));
process.exitCode = await runProgram(words);

/** Prints each warning on one line, without the process id and the hints that Node would add. */
function showWarnings(quiet: boolean): void {
  process.removeAllListeners('warning');
  process.on('warning', ({ message }) => {
    if (!quiet) note(`warning: ${message}`);
  });
}
