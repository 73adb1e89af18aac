// Help texts that several commands share.

/** Returns the examples that end a command's help. */
export function examplesHelp(examples: readonly string[]): string {
  return `Examples:\n${examples.map((words) => `  $ policy-loss ${words}`).join('\n')}`;
}

/** The meaning of the exit codes. */
export const EXIT_CODES = 'Exit codes: 0 done, 1 bad data, 2 bad usage.';
