// Help texts that several commands share.

/** Returns the examples, as a text that is shown at the end of a command's help. */
export function examplesHelp(examples: readonly string[]): string {
  return `Examples:\n${examples.map((words) => `  $ policy-loss ${words}`).join('\n')}`;
}

/** The sentence in help texts that explains the exit codes. */
export const EXIT_CODES = 'Exit codes: 0 done, 1 bad data, 2 bad usage.';
