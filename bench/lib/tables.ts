// Formats tables, for a terminal or as Markdown for bench/README.md.
import Table from 'cli-table3';
import type { Sample } from './race.js';
import type { Times } from './report.js';

/** The title and the cells of a table. The first column is aligned to the left, and the others to the right. */
export interface TableContent {
  title: string;
  head: readonly string[];
  rows: readonly (readonly string[])[];
}

/** Prints a table for a terminal. */
export function print({ title, head, rows }: TableContent): void {
  const table = new Table({
    head: [...head],
    // Without lines between the rows.
    chars: { mid: '', 'left-mid': '', 'mid-mid': '', 'right-mid': '' },
    style: { head: [], border: [] },
    colAligns: head.map((_, i) => (i === 0 ? 'left' : 'right')),
  });
  table.push(...rows.map((row) => row.map((cell) => cell.replaceAll('**', ''))));
  console.log(`\n${title}\n${table.toString()}`);
}

/** Returns a table in Markdown, without its title. */
export function inMarkdown({ head, rows }: TableContent): string {
  const line = (cells: readonly string[]) =>
    `| ${cells.map((cell) => cell.replaceAll('|', '\\|')).join(' | ')} |`;
  const rule = `|${head.map((_, i) => (i === 0 ? ' --- ' : ' ---: ')).join('|')}|`;
  return [line(head), rule, ...rows.map(line)].join('\n');
}

/** Returns a table of times. */
export function timesTable(title: string, times: Times, unit: 'ms' | 'µs'): TableContent {
  const scale = unit === 'µs' ? 1e3 : 1;
  return {
    title,
    head: ['', unit, 'min – max'],
    rows: Object.entries(times).map(([name, sample]) => [
      name,
      digits(sample.median * scale),
      spread(sample, scale),
    ]),
  };
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
