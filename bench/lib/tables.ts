// Prints tables: for a terminal, or in Markdown for bench/README.md.
import Table from 'cli-table3';
import type { Sample } from './race.js';

/** A table's cells; the first column stands to the left, the others to the right. */
export interface TableContent {
  title: string;
  head: readonly string[];
  rows: readonly (readonly string[])[];
  /** What is to be said below it. */
  note?: string;
}

/** Gives what prints tables. */
export function printer(markdown: boolean): (table: TableContent) => void {
  return ({ title, head, rows, note }) => {
    const text = markdown ? inMarkdown(head, rows) : forTerminal(head, rows);
    console.log(
      `\n${title}\n${markdown ? '\n' : ''}${text}${note ? `\n${markdown ? '\n' : ''}${note}` : ''}`,
    );
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

/** Three significant digits, but all of a whole number's. */
export function digits(value: number): string {
  if (!Number.isFinite(value)) return '–';
  return Math.abs(value) >= 100 ? value.toFixed(0) : value.toPrecision(3);
}

/** The extremes of a sample, in its own unit times `scale`. */
export function spread({ least, most }: Sample, scale = 1): string {
  return `${digits(least * scale)} – ${digits(most * scale)}`;
}

/** How many times less `sample` took than `other`; empty where one of them was not measured. */
export function ratio(other: Sample | undefined, sample: Sample | undefined): string {
  return other && sample ? digits(other.median / sample.median) : '';
}

/** Millions of tokens per second. */
export function speed(tokens: number, { median }: Sample): string {
  return digits(tokens / median / 1e3);
}
