#!/usr/bin/env node
// The executable `policy-loss`.
import { note } from './output.js';
import { runProgram } from './program.js';

// A reader such as `head` may close the pipe early, which is not an error.
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (error.code !== 'EPIPE') throw error;
  process.exit();
});

const words = process.argv.slice(2);
showWarnings(words.includes('--quiet') || words.includes('-q'));
process.exitCode = await runProgram(words);

/** Shows each warning in one line, without the process id and hints that Node adds. */
function showWarnings(quiet: boolean): void {
  process.removeAllListeners('warning');
  process.on('warning', ({ message }) => {
    if (!quiet) note(`warning: ${message}`);
  });
}
