// Help texts that several commands share.

/** Returns the text at the end of a command's help: paragraphs of its own, the exit codes, and examples. */
export function helpAfter(examples: readonly string[], ...paragraphs: readonly string[]): string {
  const shown = `Examples:\n${examples.map((words) => `  $ policy-loss ${words}`).join('\n')}`;
  return `\n${[...paragraphs, EXIT_CODES, shown].join('\n\n')}`;
}

const EXIT_CODES = 'Exit codes: 0 done, 1 bad data, 2 bad usage.';
