// What the help of several commands has in common.

/** Examples as every command's help ends with. */
export function examplesHelp(examples: readonly string[]): string {
  return `Examples:\n${examples.map((words) => `  $ policy-loss ${words}`).join('\n')}`;
}

/** What exit codes mean. */
export const EXIT_CODES = 'Exit codes: 0 done, 1 bad data, 2 bad usage.';
