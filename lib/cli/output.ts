// What the command line prints: tables for people on stdout, the progress of long reading on stderr.
import { stat } from 'node:fs/promises';
import { styleText } from 'node:util';
import { Presets, SingleBar } from 'cli-progress';
import Table from 'cli-table3';

/** A number for people, with 6 significant digits. */
export function readable(x: number): string {
  return String(Number(x.toPrecision(6)));
}

/** Names and values in two aligned columns; names are bold where stdout is a terminal that shows it. */
export function twoColumns(entries: readonly (readonly [name: string, value: string])[]): string {
  // hasColors() heeds NO_COLOR and TERM.
  const bold = process.stdout.isTTY && process.stdout.hasColors();
  const table = new Table({ chars: NO_LINES, style: PLAIN, colAligns: ['left', 'right'] });
  for (const [name, value] of entries) table.push([bold ? styleText('bold', name) : name, value]);
  return table.toString();
}

// cli-table3 draws and colours unless told of each line that it is not there.
const NO_LINES = {
  top: '',
  'top-mid': '',
  'top-left': '',
  'top-right': '',
  bottom: '',
  'bottom-mid': '',
  'bottom-left': '',
  'bottom-right': '',
  left: '',
  'left-mid': '',
  mid: '',
  'mid-mid': '',
  right: '',
  'right-mid': '',
  middle: '   ',
};
const PLAIN = { 'padding-left': 0, 'padding-right': 0, head: [], border: [] };

/** How far the reading of files has come. */
export interface ReadingProgress {
  /** @param bytes how many more have been read. @param rows how many there are by now. */
  advance(bytes: number, rows: number): void;
  /** Takes the bar away. */
  stop(): void;
}

// Less is read before a bar could be seen.
const LONG_INPUT = 2 ** 20;

/** A bar on stderr where that is a terminal and the files are long; nothing otherwise. */
export async function readingProgress(files: readonly string[]): Promise<ReadingProgress> {
  const none = { advance: () => {}, stop: () => {} };
  if (!process.stderr.isTTY) return none;
  const sizes = await Promise.all(
    // A file that cannot be read is for its reader to report.
    files.map((file) =>
      stat(file).then(
        ({ size }) => size,
        () => 0,
      ),
    ),
  );
  const total = sizes.reduce((sum, size) => sum + size, 0);
  if (total < LONG_INPUT) return none;
  const bar = new SingleBar(
    {
      format: 'reading {bar} {percentage}% | {rows} rows | {eta_formatted} left',
      clearOnComplete: true,
      hideCursor: true,
      stream: process.stderr,
    },
    Presets.shades_classic,
  );
  bar.start(total, 0, { rows: 0 });
  return {
    advance: (bytes, rows) => bar.increment(bytes, { rows }),
    stop: () => bar.stop(),
  };
}
