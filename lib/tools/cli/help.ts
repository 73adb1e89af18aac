// Help texts that several commands share.
import { inLines, widthOf, wrapped } from './lines.js';

/** Returns the text at the end of a command's help: paragraphs of its own, the exit codes, and examples. */
export function helpAfter(examples: readonly string[], ...paragraphs: readonly string[]): () => string {
  return () => {
    const width = widthOf(process.stdout);
    const shown = examples.map((words) => exampleLines(`policy-loss ${words}`, width).join('\n'));
    const texts = [...paragraphs, EXIT_CODES].map((text) => reflowed(text, width));
    return `\n${[...texts, `Examples:\n${shown.join('\n')}`].join('\n\n')}`;
  };
}

const EXIT_CODES = 'Exit codes: 0 done, 1 bad data, 2 bad usage.';

// The paragraphs of a text are separated by blank lines. Other line ends are only those of the source.
function reflowed(text: string, width: number): string {
  return text
    .split('\n\n')
    .map((paragraph) => wrapped(paragraph.replaceAll('\n', ' '), width).join('\n'))
    .join('\n\n');
}

// Continues a long command in further lines, as a shell does. A quoted word stays whole.
function exampleLines(command: string, width: number): string[] {
  const words = command.match(/(?:[^\s']|'[^']*')+/g)!;
  return inLines(words, '', width - '      '.length - ' \\'.length).map((line, i, all) => {
    const indent = i === 0 ? '  $ ' : '      ';
    return `${indent}${line}${i < all.length - 1 ? ' \\' : ''}`;
  });
}
