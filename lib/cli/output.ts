// Output of the command line: results go to stdout as tables, JSON or CSV; progress and notes go to stderr.
import { styleText } from 'node:util';
import { Presets, SingleBar } from 'cli-progress';
import Table from 'cli-table3';
import type { EvaluationProgress } from '../parts/index.js';

/** Returns a number with 6 significant digits, for people. */
export function readable(x: number): string {
  return String(Number(x.toPrecision(6)));
}

/** A cell of a table: text, a number, or nothing. */
export type Cell = string | number | undefined;

/** The colours and weights of a piece of text on a terminal. */
export type Style = Parameters<typeof styleText>[0];

/** Returns text with each line styled, if stdout is a terminal with colours; otherwise the text itself. */
export function styled(style: Style, text: string): string {
  // hasColors() respects NO_COLOR and TERM.
  if (!process.stdout.isTTY || !process.stdout.hasColors()) return text;
  return text
    .split('\n')
    .map((line) => styleText(style, line))
    .join('\n');
}

/** Returns names and values in two aligned columns. */
export function twoColumns(
  entries: readonly (readonly [name: string, value: Cell])[],
  align: 'left' | 'right' = 'right',
): string {
  return aligned(
    entries.map(([name, value]) => [styled('cyan', name), shown(value)]),
    ['left', align],
  );
}

/**
 * Returns a table with a header line.
 * @param align the alignment of all columns after the first; by default, numbers align right and text aligns left.
 */
export function table(
  head: readonly string[],
  rows: readonly (readonly Cell[])[],
  align?: 'left' | 'right',
): string {
  const alignments = head.map((_, column) => {
    if (align !== undefined && column > 0) return align;
    return rows.some((row) => typeof row[column] === 'string') ? 'left' : 'right';
  });
  return aligned(
    [
      head.map((name) => styled('bold', name)),
      ...rows.map((row) => row.map((cell, i) => (i === 0 ? styled('cyan', shown(cell)) : shown(cell)))),
    ],
    alignments,
  );
}

/** Returns the line under a table that says how many rows and tokens it covers. */
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

/**
 * Breaks words into lines of at most `width` characters. A longer word gets a line of its own.
 * @param separator follows every word except the last.
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

function shown(cell: Cell): string {
  if (cell === undefined) return '–';
  return typeof cell === 'number' ? readable(cell) : cell;
}

function aligned(rows: readonly (readonly string[])[], colAligns: readonly ('left' | 'right')[]): string {
  const lines = new Table({ chars: NO_LINES, style: PLAIN, colAligns: [...colAligns] });
  // cli-table3 needs quadratic time for cells with several lines, so each line becomes a row of the table.
  for (const row of rows) {
    const cells = row.map((cell) => cell.split('\n'));
    const height = Math.max(...cells.map(({ length }) => length));
    for (let line = 0; line < height; line++) lines.push(cells.map((cell) => cell[line] ?? ''));
  }
  return lines.toString().replace(/ +$/gm, '');
}

// cli-table3 draws every border that is not set to an empty string.
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
 * Returns comma-separated values (RFC 4180) with a header line. Numbers have all their digits; absent and non-finite
 * values are empty.
 */
export function csv(head: readonly string[], rows: readonly (readonly Cell[])[]): string {
  const quoted = (cell: Cell) => {
    if (cell === undefined || (typeof cell === 'number' && !Number.isFinite(cell))) return '';
    const text = String(cell);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [head, ...rows].map((row) => row.map(quoted).join(',')).join('\n');
}

/** The form in which a result is printed; a table by default. */
export interface OutputOptions {
  json?: boolean;
  csv?: boolean;
}

/** A result in all forms. */
export interface Printable {
  /** The object that `--json` prints, with null for non-finite numbers. */
  json: () => unknown;
  csv: () => string;
  /** The table that people read. */
  text: () => string;
}

/** Prints a result on stdout in the chosen form. */
export function print({ json, csv }: OutputOptions, result: Printable): void {
  const text = json ? JSON.stringify(result.json()) : csv ? result.csv() : result.text();
  process.stdout.write(`${text}\n`);
}

/** Prints a line on stderr. */
export function note(message: string): void {
  process.stderr.write(`${message}\n`);
}

// Shorter work shows no progress bar.
const LONG_MS = 400;

/** A progress bar on stderr during long work, if stderr is a terminal. */
export class ProgressBar implements EvaluationProgress {
  readonly #shows: boolean;
  #bar: SingleBar | undefined;
  readonly #since = performance.now();
  #what = '';
  #began = 0;

  /** @param quiet hides the bar. */
  constructor(quiet: boolean) {
    this.#shows = !quiet && process.stderr.isTTY;
  }

  begin(what: string): void {
    this.stop();
    this.#what = what;
    this.#began = performance.now();
  }

  advance(share: number, rows: number, tokens: number): void {
    const now = performance.now();
    if (!this.#shows || now - this.#since < LONG_MS) return;
    const seconds = (now - this.#began) / 1000;
    const about = {
      what: this.#what,
      rows: rows.toLocaleString('en'),
      speed: inShort(tokens / seconds),
      left: share > 0 ? duration((seconds * (1 - share)) / share) : '–',
    };
    if (this.#bar) this.#bar.update(Math.floor(share * STEPS), about);
    else this.#bar = this.#start(share, about);
  }

  /** Removes the bar from the terminal. */
  stop(): void {
    this.#bar?.stop();
    this.#bar = undefined;
  }

  #start(share: number, about: object): SingleBar {
    const bar = new SingleBar(
      {
        format: '{what} {bar} {percentage}% | {rows} rows | {speed} tokens/s | {left} left',
        barsize: 24,
        clearOnComplete: true,
        gracefulExit: false,
        stream: process.stderr,
      },
      Presets.shades_classic,
    );
    bar.start(STEPS, Math.floor(share * STEPS), about);
    return bar;
  }
}

const STEPS = 1000;

/** Returns a number such as 1234567 as 1.23M. */
function inShort(x: number): string {
  return new Intl.NumberFormat('en', { notation: 'compact', maximumSignificantDigits: 3 }).format(x);
}

function duration(seconds: number): string {
  const whole = Math.ceil(seconds);
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const two = (n: number) => String(n).padStart(2, '0');
  return hours > 0 ? `${hours}:${two(minutes)}:${two(rest)}` : `${minutes}:${two(rest)}`;
}
