// Fits text and tables into the width of a terminal.

// The width of a terminal that does not tell its own, and the smallest width into which text is fitted.
const USUAL_WIDTH = 80;
const LEAST_WIDTH = 40;

// The smallest width to which the text next to a long name is wrapped.
const LEAST_TEXT = 16;

/** Returns the number of characters in a line of a stream's terminal. Other streams have the usual width. */
export function widthOf({ columns }: { columns?: number }): number {
  return Math.max(columns || USUAL_WIDTH, LEAST_WIDTH);
}

/**
 * Joins words into lines of at most `width` characters. A word that is longer than that gets a line of its own.
 * @param separator text that is appended to every word except the last, such as a comma.
 */
export function inLines(words: readonly string[], separator: string, width: number): string[] {
  const lines: string[] = [];
  words.forEach((word, i) => {
    const shown = i < words.length - 1 ? word + separator : word;
    const line = lines.at(-1);
    if (line !== undefined && line.length + 1 + shown.length <= width)
      lines[lines.length - 1] = `${line} ${shown}`;
    else lines.push(shown);
  });
  return lines;
}

/** Divides a text into lines of at most `width` characters, between words. */
export function wrapped(text: string, width: number): string[] {
  return text.length <= width ? [text] : inLines(text.split(' '), '', width);
}

/** Returns a text as a stream's terminal shows it: in lines that end between words. */
export function fitted(text: string, stream: { columns?: number } = process.stdout): string {
  return wrapped(text, widthOf(stream)).join('\n');
}

/** A column of a table, by its index, and its width in characters. */
export interface FittedColumn {
  column: number;
  width: number;
}

/**
 * Fits the columns of a table into a width. Text is wrapped if that is enough. Otherwise the columns are divided into
 * groups, which are printed one below the other, and all begin with the first column.
 * @param natural the widths of the columns without wrapping.
 * @param least the widths of their longest words.
 * @param gap the space between two columns.
 */
export function fitColumns(
  natural: readonly number[],
  least: readonly number[],
  width: number,
  gap: number,
): FittedColumn[][] {
  const groups: number[][] = [];
  for (let column = 1; column < natural.length; column++) {
    const group = groups.at(-1);
    const wider = [...(group ?? [0]), column];
    if (group && sizeOf(wider, (i) => least[i]!, gap) <= width) group.push(column);
    else groups.push([0, column]);
  }
  return (groups.length > 0 ? groups : [[0]]).map((group) => {
    let cap = Math.max(...group.map((i) => natural[i]!));
    // If a name and a long word cannot stand in one line, only lines with such a word are too long.
    const most = Math.max(width - natural[0]! - gap, LEAST_TEXT);
    const leastOf = (i: number) => (group.length === 2 && i > 0 ? Math.min(least[i]!, most) : least[i]!);
    const fitted = (i: number) => Math.max(leastOf(i), Math.min(natural[i]!, cap));
    while (cap > 1 && sizeOf(group, fitted, gap) > width) cap--;
    return group.map((column) => ({ column, width: fitted(column) }));
  });
}

function sizeOf(group: readonly number[], widthAt: (column: number) => number, gap: number): number {
  return group.reduce((sum, column) => sum + widthAt(column), gap * (group.length - 1));
}
