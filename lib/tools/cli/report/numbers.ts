// Formats numbers for the page, and rounds numbers for the data that is embedded in it.
import { readable } from '../output.js';
import { withMinus } from './short-number.js';

/** Formats a number with 6 significant digits, as on the terminal. */
export function full(x: number): string {
  return withMinus(readable(x));
}

/** Formats a count with thousands separators: 12,345. */
export function count(n: number): string {
  return Math.round(n).toLocaleString('en');
}

/** Formats a count with its noun: '1 token' or '13 tokens'. */
export function counted(n: number, noun: string): string {
  return `${count(n)} ${noun}${n === 1 ? '' : 's'}`;
}

/** Formats a fraction between 0 and 1 as a percentage. */
export function percent(share: number): string {
  const percentage = share * 100;
  if (percentage === 0 || percentage === 100) return `${percentage}%`;
  if (percentage < 0.1) return 'less than 0.1%';
  // A fraction below 1 must not be rounded up to 100%.
  return `${percentage > 99.9 ? 99.9 : Number(percentage.toPrecision(3))}%`;
}

/** Rounds a number to the given number of significant digits, for JSON. Returns null if the number is not finite. */
export function rounded(x: number, digits: number): number | null {
  return Number.isFinite(x) ? Number(x.toPrecision(digits)) : null;
}
