// Formats and prints tables, for a terminal or as Markdown for bench/README.md.
import Table from 'cli-table3';
import type { Sample } from './race.js';

/** The title and the cells of a table. The first column is aligned to the left, and the others to the right. */
export interface TableContent {
  title: string;
  head: readonly string[];
  rows: readonly (readonly string[])[];
}

/** Returns a function that prints a table, either as Markdown or for a terminal. */
export function printer(markdown: boolean): (table: TableContent) => void {
  return ({ title, head, rows }) => {
    const text = markdown ? inMarkdown(head, rows) : forTerminal(head, rows);
    console.log(`\n${title}\n${markdown ? '\n' : ''}${text}`);
  };
}

function forTerminal(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const table = new Table({
    head: [...head],
    style: { head: [], border: [] },
    colAligns: head.map((_, i) => (i === 0 ? 'left' : 'right')),
  });
  table.push(...rows.map((row) => [...row]));
  return table.toString();
}

function inMarkdown(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const line = (cells: readonly string[]) =>
    `| ${cells.map((cell) => cell.replaceAll('|', '\\|')).join(' | ')} |`;
  const rule = `|${head.map((_, i) => (i === 0 ? ' --- ' : ' ---: ')).join('|')}|`;
  return [line(head), rule, ...rows.map(line)].join('\n');
}

/**
 * Formats a number with three significant digits, or as a whole number from 100 on. NaN and infinities become a dash.
 */
export function digits(value: number): string {
  if (!Number.isFinite(value)) return '–';
  return Math.abs(value) >= 100 ? value.toFixed(0) : value.toPrecision(3);
}

/** Formats the smallest and the largest time of a sample, both multiplied by `scale`. */
export function spread({ least, most }: Sample, scale = 1): string {
  return `${digits(least * scale)} – ${digits(most * scale)}`;
}

/**
 * Formats the median time of `other` divided by the median time of `sample`. Returns '' if one of them was not
 * measured.
 */
export function ratio(other: Sample | undefined, sample: Sample | undefined): string {
  return other && sample ? digits(other.median / sample.median) : '';
}

/** Formats a speed in millions of tokens per second. `tokens` is the number of tokens that one call computes. */
export function speed(tokens: number, { median }: Sample): string {
  return digits(tokens / median / 1e3);
}

/**
 * Converts a sample of times, in milliseconds, to throughput in GB/s. The longest time gives the least throughput, and
 * the shortest time the most.
 */
export function gigabytesPerSecond(bytes: number, { median, least, most }: Sample) {
  const rate = (milliseconds: number) => bytes / milliseconds / 1e6;
  return { median: rate(median), least: rate(most), most: rate(least) };
}
