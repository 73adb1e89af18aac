#!/usr/bin/env node
// The file that runs when a user calls `policy-loss`.
import { removeTemporaryFolders } from '../rollouts/write/temporary.js';
import { runProgram } from './program.js';
import { note, noteConsole } from './streams.js';

// A program that reads the output, such as `head`, may close the pipe early. This is not an error. All other errors are
// also passed to the function that wrote.
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (error.code === 'EPIPE') process.exit();
});
process.stderr.on('error', () => {});

process.on('exit', removeTemporaryFolders);
for (const signal of ['SIGHUP', 'SIGINT', 'SIGQUIT', 'SIGTERM'] as const)
  process.once(signal, () => {
    removeTemporaryFolders();
    // once() has removed this handler, so the signal now ends the process. Its parent learns which signal it was.
    process.kill(process.pid, signal);
  });

// Only a bug causes such an error. Node would print its message as it is, but that may contain text from a file.
process.on('uncaughtException', (error) => {
  for (const line of (error.stack ?? String(error)).split('\n')) note(line);
  process.exit(1);
});

noteConsole();
const words = process.argv.slice(2);
showWarnings(words.includes('--quiet') || words.includes('-q'));
const code = await runProgram(words);
// A failed write to stderr may already have set the exit code.
if (code !== 0) process.exitCode = code;

/** Prints each warning on one line, without the process id and the hints that Node would add. */
function showWarnings(quiet: boolean): void {
  process.removeAllListeners('warning');
  process.on('warning', ({ message }) => {
    if (!quiet) note(`warning: ${message}`);
  });
}
