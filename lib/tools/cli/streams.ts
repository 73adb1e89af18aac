// Writes to stdout and stderr. Results go to stdout, everything else to stderr. Every write that fails is noticed.
import { fstatSync, writeFileSync } from 'node:fs';
import { format } from 'node:util';
import { LossError } from '../../base/errors.js';
import { describeFailure } from '../rollouts/source.js';
import { fitted } from './lines.js';

// All control characters, including line ends, and the characters that change the direction of text.
const HIDDEN = /[\p{Cc}\p{Zl}\p{Zp}\p{Bidi_Control}]/gu;
const SHORT: Readonly<Record<string, string>> = { '\n': '\\n', '\r': '\\r', '\t': '\\t' };

/**
 * Makes control characters visible: replaces each by its escape sequence in JSON, such as \u001b. Texts from files and
 * file names may contain such characters, and a terminal would obey them.
 */
export function visible(text: string): string {
  return text.replace(
    HIDDEN,
    (character) => SHORT[character] ?? `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`,
  );
}

/**
 * Writes text to stdout, unchanged. Resolves when all of it is written, and also if the reader of a pipe is gone.
 * @throws LossError `ERR_INVALID_INPUT` if the text cannot be written, for example because the disk is full.
 */
export async function writeResult(text: string): Promise<void> {
  try {
    await write(process.stdout, text);
  } catch (error) {
    const details = { at: 'stdout', expected: 'a writable stream', received: describeFailure(error) };
    throw new LossError('ERR_INVALID_INPUT', details, { cause: error });
  }
}

/**
 * Prints a message on stderr. Control characters in it become visible. A terminal shows it in lines that end between
 * words. Elsewhere, for example in a log, it is one line, which can be searched.
 */
export function note(message: string): void {
  // Nobody can be told that stderr fails, but the exit code shows it.
  write(process.stderr, `${onStderr(visible(message))}\n`).catch(() => {
    process.exitCode ||= 1;
  });
}

/** Returns a line as stderr shows it: in several lines if it is a terminal. */
export function onStderr(line: string): string {
  return process.stderr.isTTY ? fitted(line, process.stderr) : line;
}

/** Lets note() print what libraries write to the console as warnings, because it may contain text from a server. */
export function noteConsole(): void {
  for (const name of ['warn', 'error'] as const)
    console[name] = (...values: unknown[]) => {
      for (const line of format(...values).split('\n')) note(line);
    };
}

type Stream = typeof process.stdout | typeof process.stderr;

function write(stream: Stream, text: string): Promise<void> {
  return new Promise((resolve, reject) => {
    const done = (error?: NodeJS.ErrnoException | null) =>
      error && error.code !== 'EPIPE' ? reject(error) : resolve();
    if (!isFile(stream)) {
      stream.write(text, done);
      return;
    }
    // Node's stream does not notice if only the beginning of the text fits on the disk.
    try {
      writeFileSync(stream.fd, text);
      done();
    } catch (error) {
      done(error as NodeJS.ErrnoException);
    }
  });
}

// In a worker thread, the streams have no file descriptor.
function isFile({ fd }: { fd?: number }): boolean {
  return fd !== undefined && fstatSync(fd).isFile();
}
