// Formats results as tables, JSON or CSV, and shows the progress.
import { styleText } from 'node:util';
import { Presets, SingleBar } from 'cli-progress';
import Table from 'cli-table3';
import type { EvaluationProgress } from '../parts/index.js';
import { jsonText } from '../rollouts/index.js';
import { fitColumns, widthOf, wrapped } from './lines.js';
import { visible, writeResult } from './streams.js';

/** Formats a number with 6 significant digits, for people to read. */
export function readable(x: number): string {
  return String(Number(x.toPrecision(6)));
}

/** A value of a result: text, a number, or undefined if the value is absent. */
export type Value = string | number | undefined;

/** A style for text on a terminal: a colour or weight such as 'bold', or a list of them. */
export type Style = Parameters<typeof styleText>[0];

/** A line of text, which may have a style of its own. */
export type Line = string | { readonly text: string; readonly style: Style };

/** A cell of a table: a value, or lines of text. */
export type Cell = Value | Line | readonly Line[];

/**
 * Returns the text with a style applied to each of its lines if stdout is a terminal that shows colours. Otherwise
 * returns the text without the style.
 */
export function styled(style: Style, text: string): string {
  return text
    .split('\n')
    .map((line) => shownLine({ text: line, style }))
    .join('\n');
}

/** Returns a line as it is printed: with its style and with visible control characters. */
function shownLine(line: Line): string {
  if (typeof line === 'string') return visible(line);
  const text = visible(line.text);
  // hasColors() takes the environment variables NO_COLOR and TERM into account.
  return process.stdout.isTTY && process.stdout.hasColors() ? styleText(line.style, text) : text;
}

/**
 * Formats names and their values in two aligned columns.
 * @param align the alignment of the values.
 */
export function twoColumns(
  entries: readonly (readonly [name: string, value: Cell])[],
  align: 'left' | 'right' = 'right',
): string {
  return aligned(
    entries.map(([name, value]) => [inStyle('cyan', name), value]),
    ['left', align],
  );
}

/**
 * Formats a table with a header line.
 * @param align the alignment of all columns after the first. By default, a column that contains text is aligned left,
 * and a column that contains only numbers is aligned right.
 */
export function table(
  head: readonly Cell[],
  rows: readonly (readonly Cell[])[],
  align?: 'left' | 'right',
): string {
  const alignments = head.map((_, column) => {
    if (align !== undefined && column > 0) return align;
    return rows.some((row) => row[column] !== undefined && typeof row[column] !== 'number')
      ? 'left'
      : 'right';
  });
  return aligned(
    [
      head.map((name) => inStyle('bold', name)),
      ...rows.map((row) => row.map((cell, i) => (i === 0 ? inStyle('cyan', cell) : cell))),
    ],
    alignments,
  );
}

/**
 * Returns a line of text that says how many rows and tokens a result covers. It is printed under the result's table.
 */
export function countsOf(result: {
  rows: number;
  tokens: number;
  batches?: number;
  skipped?: number;
}): string {
  const { rows, tokens, batches, skipped } = result;
  return [
    `${rows} rows`,
    `${tokens} tokens`,
    ...(batches === undefined ? [] : [`${batches} batches`]),
    ...(skipped === undefined ? [] : [`${skipped} rows skipped`]),
  ].join(', ');
}

/** Returns a cell's lines, all with the same style. */
function inStyle(style: Style, cell: Cell): Line[] {
  return linesOf(cell).map((line) => (typeof line === 'string' ? { text: line, style } : line));
}

function linesOf(cell: Cell): readonly Line[] {
  if (cell === undefined) return ['–'];
  if (typeof cell === 'number') return [readable(cell)];
  return isLines(cell) ? cell : [cell];
}

function isLines(cell: Line | readonly Line[]): cell is readonly Line[] {
  return Array.isArray(cell);
}

/** Formats rows of cells as a table that fits the terminal: wrapped, or as several tables one below the other. */
function aligned(rows: readonly (readonly Cell[])[], alignments: readonly ('left' | 'right')[]): string {
  const cells = rows.map((row) => row.map(linesOf));
  const widest = (column: number, of: (text: string) => number) =>
    cells.flatMap((row) => row[column] ?? []).reduce((most, line) => Math.max(most, of(textOf(line))), 0);
  const natural = alignments.map((_, column) => widest(column, ({ length }) => length));
  const width = widthOf(process.stdout);
  const least = alignments.map((alignment, column) => {
    const word = widest(column, (text) => Math.max(...text.split(' ').map(({ length }) => length)));
    // Names and numbers, with the options above them, are wrapped only if they are very long.
    const isText = column > 0 && alignment === 'left';
    return isText ? word : Math.max(word, Math.min(natural[column]!, Math.floor(width / 2)));
  });
  return fitColumns(natural, least, width, NO_LINES.middle.length)
    .map((group) =>
      drawn(
        cells.map((row) =>
          group.map(({ column, width }) => (row[column] ?? []).flatMap((line) => wrappedLine(line, width))),
        ),
        group.map(({ column }) => alignments[column]!),
      ),
    )
    .join('\n\n');
}

function textOf(line: Line): string {
  return visible(typeof line === 'string' ? line : line.text);
}

function wrappedLine(line: Line, width: number): Line[] {
  const lines = wrapped(textOf(line), width);
  return lines.map((text) => (typeof line === 'string' ? text : { text, style: line.style }));
}

function drawn(rows: readonly (readonly Line[])[][], colAligns: ('left' | 'right')[]): string {
  const lines = new Table({ chars: NO_LINES, style: PLAIN, colAligns });
  // cli-table3 takes quadratic time for a cell with several lines. So each line of such a cell becomes a row of its
  // own.
  for (const row of rows) {
    const cells = row.map((cell) => cell.map(shownLine));
    const height = Math.max(...cells.map(({ length }) => length));
    for (let line = 0; line < height; line++) lines.push(cells.map((cell) => cell[line] ?? ''));
  }
  return lines.toString().replace(/(?<! ) +$/gm, '');
}

// Turns off all borders, because cli-table3 draws every border that is not set to an empty string. `middle` is the gap
// between two columns.
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

/**
 * Formats a table as comma-separated values (RFC 4180) with a header line. Numbers keep all their digits, and may be
 * NaN, Infinity or -Infinity. Absent values become empty fields. Control characters become visible.
 */
export function csv(head: readonly string[], rows: readonly (readonly Value[])[]): string {
  const field = (value: Value) => {
    const text = visible(String(value ?? ''));
    return /[",]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [head, ...rows].map((row) => row.map(field).join(',')).join('\n');
}

/** The options that choose the form in which a result is printed. Without them, it is printed as a table. */
export interface OutputOptions {
  json?: boolean;
  csv?: boolean;
}

/** A result that can be printed in any of three forms. */
export interface Printable {
  /** Returns the object that `--json` prints. Numbers that are not finite become strings, such as "NaN". */
  json: () => unknown;
  csv: () => string;
  /** Returns the tables that are printed for people to read. */
  text: () => string;
}

/**
 * Prints a result on stdout in the chosen form.
 * @throws LossError `ERR_INVALID_INPUT` if stdout cannot be written.
 */
export async function print(form: OutputOptions, result: Printable): Promise<void> {
  const text = form.json ? visible(jsonText(result.json())) : form.csv ? result.csv() : result.text();
  await writeResult(`${text}\n`);
}

// The progress bar appears only after this many milliseconds, so that it never flashes up for short tasks.
const LONG_MS = 400;

/** A progress bar on stderr. It appears only if the work takes long and stderr is a terminal. */
export class ProgressBar implements EvaluationProgress {
  readonly #shows: boolean;
  #bar: SingleBar | undefined;
  readonly #since = performance.now();
  #what = '';
  #began = 0;

  /** @param quiet true if the bar must never appear. */
  constructor(quiet: boolean) {
    this.#shows = !quiet && process.stderr.isTTY;
  }

  begin(what: string): void {
    this.stop();
    this.#what = what;
    this.#began = performance.now();
  }

  /** @param more further text at the end of the bar. */
  advance(share: number, rows: number, tokens: number, more = ''): void {
    const now = performance.now();
    if (!this.#shows || now - this.#since < LONG_MS) return;
    const seconds = (now - this.#began) / 1000;
    const about = {
      what: this.#what,
      rows: rows.toLocaleString('en'),
      speed: inShort(tokens / seconds),
      left: share > 0 ? duration((seconds * (1 - share)) / share) : '–',
      more,
    };
    // Workers report some of these texts through the queue.
    const shown = Object.fromEntries(Object.entries(about).map(([name, text]) => [name, visible(text)]));
    if (this.#bar) this.#bar.update(Math.floor(share * STEPS), shown);
    else this.#bar = this.#start(share, shown);
  }

  /** Removes the bar from the terminal. */
  stop(): void {
    this.#bar?.stop();
    this.#bar = undefined;
  }

  #start(share: number, about: object): SingleBar {
    const bar = new SingleBar(
      {
        format: '{what} {bar} {percentage}% | {rows} rows | {speed} tokens/s | {left} left{more}',
        barsize: 24,
        clearOnComplete: true,
        gracefulExit: false,
        // Cuts the bar at the terminal's width. Otherwise line wrap would be off until the bar stops, and it would stay off
        // if a signal ended the program.
        linewrap: true,
        stream: process.stderr,
      },
      Presets.shades_classic,
    );
    bar.start(STEPS, Math.floor(share * STEPS), about);
    return bar;
  }
}

const STEPS = 1000;

/** Formats a number with 3 significant digits and a unit: 1234567 as 1.23M. */
function inShort(x: number): string {
  return new Intl.NumberFormat('en', { notation: 'compact', maximumSignificantDigits: 3 }).format(x);
}

function duration(seconds: number): string {
  const whole = Math.ceil(seconds);
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const two = (n: number) => String(n).padStart(2, '0');
  return hours > 0 ? `${hours}:${two(minutes)}:${two(rest)}` : `${minutes}:${two(rest)}`;
}
